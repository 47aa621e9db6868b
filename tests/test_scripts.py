"""Every script of scripts/ documents itself, and its quick run ends with consistent rows and exit status."""

from __future__ import annotations

import json
import math
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.bench import FALLS_SHORT, HOLDS, SKIPPED, at_least, at_most, figure, finish, parse_arguments
from scripts.bench_real import LONGER, Result, front_rows, gain_row, problem_of, rows_of, trainings_of

FOLDER = Path(__file__).resolve().parent.parent / "scripts"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py") if "parse_arguments(__doc__" in path.read_text())
ROW_TYPES = {"name": str, "value": (int, float), "unit": str, "goal": str, "holds": bool}


def test_scripts_are_discovered() -> None:
    assert {"bench_sampling.py", "bench_serving.py", "race_torchgfn.py"} <= set(SCRIPTS)
    assert "bench.py" not in SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_help(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run in this process, which has already imported torch."""
    monkeypatch.setattr(sys, "argv", [str(FOLDER / name), "--help"])
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert f"python scripts/{name}" in text
    assert all(option in text for option in ("--quick", "--json FILE"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_quick_run(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Missed goals do not fail the test: tests/conftest.py lists them at the end of the session."""
    path = tmp_path / "rows.json"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / name), "--quick", "--json", str(path)],
        cwd=tmp_path,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (HOLDS, FALLS_SHORT, SKIPPED), f"{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    for row in rows:
        assert row.keys() == ROW_TYPES.keys()
        assert all(isinstance(row[key], kind) for key, kind in ROW_TYPES.items()), row
        assert math.isfinite(row["value"]), row
        assert row["goal"] or row["holds"], row
        assert row["name"] in done.stdout
    names = [(row["name"], row["unit"]) for row in rows]
    assert len(set(names)) == len(names)
    assert (done.returncode == SKIPPED) == (not rows)
    assert (done.returncode == FALLS_SHORT) == (not all(row["holds"] for row in rows))
    skipped = [line for line in done.stdout.splitlines() if line.startswith("skipped: ")]
    assert rows or skipped
    for line in skipped:
        record_property("quick run", f"{name}: {line}")
    for row in rows:
        if not row["holds"]:
            record_property("quick run", f"{name}: {row['name']}: {row['value']:.4g} {row['unit']}, goal {row['goal']}")


def test_rows_compare_with_their_goals() -> None:
    rows = [at_least("a", 2, "x", 2), at_least("a", 1, "x", 2), at_most("a", 2, "x", 2), at_most("a", 3, "x", 2)]
    rows += [at_least("a", 1, "x", None), at_most("a", 1, "x", None)]
    assert [row.holds for row in rows] == [True, False, True, False, True, True]
    assert [row.goal for row in rows] == [">= 2", ">= 2", "<= 2", "<= 2", "", ""]


def test_gains_of_a_search_are_paired_by_seed() -> None:
    sides = {"auto": (0.9, 0.5), "random": (0.8, 0.4), "evolution": (0.7, 0.6)}
    results = {side: [Result([value], [], 8, 1.0) for value in values] for side, values in sides.items()}
    rows = {row.name: row for row in rows_of("recorded_digits", results, has_goals=True)}
    assert rows["recorded_digits: above random [+0.1000, +0.1000]"].value == pytest.approx(0.1)
    evolution = next(row for name, row in rows.items() if "above evolution" in name)
    assert (evolution.value, evolution.goal, evolution.holds) == (pytest.approx(0.05), ">= 0", True)
    goals = ("", ">= 0", "interval > 0", "interval not below 0")
    assert [gain_row("a", [0.0, 0.3], [0.1, 0.5], goal).holds for goal in goals] == [True, False, False, True]
    assert not gain_row("a", [0.0, 0.0], [0.1, 0.1], goals[-1]).holds
    assert [trainings_of(name, "random", 60) for name in ("recorded_digits", "mnist1d")] == [180, 60]
    assert [trainings_of("recorded_digits", side, 60) for side in ("auto", "evolution", "tpe")] == [60, 90, 90]
    assert [trainings_of("mnist1d", side, 60, is_front=True) for side in ("auto", "random", LONGER)] == [60, 60, 180]


@pytest.mark.parametrize(("random", "holds"), [((0.8, 0.41), True), ((0.8, 0.6), False)])
def test_front_is_above_others_by_intervals(random, holds) -> None:
    sides = {"auto": (0.9, 0.5), "random": random, LONGER: (0.95, 0.6)}
    results = {side: [Result([value], [], 8, 1.0) for value in values] for side, values in sides.items()}
    rows = [*rows_of("images", results, has_goals=True, is_front=True)]
    assert [(row.goal, row.holds) for row in rows if "above" in row.name] == [("interval > 0", holds), ("", True)]
    assert [(row.value, row.holds) for row in front_rows(rows, 5)] == [(4 + holds, True)]
    assert not [*front_rows(rows, 4)]
    assert {type(row.holds) for row in rows} == {bool}, "as JSON needs"


@pytest.mark.parametrize("seed", range(3))
def test_recorded_training_that_judges_is_not_seen(seed: int) -> None:
    options = problem_of("recorded_mnist1d", seed, is_front=False)[1]
    seen, judge = (next(each for each in options if name in each) for name in ("seed_columns", "test_column"))
    assert judge.endswith(f"score_seed{seed}")
    assert f"score_seed{seed}" not in seen
    assert seen.count("score_seed") == 2


@pytest.mark.parametrize(
    ("rows", "status"),
    [([figure("a", 1.0)], HOLDS), ([figure("a", 1.0), at_least("b", 1.0, "x", 2.0)], FALLS_SHORT), ([], SKIPPED)],
)
def test_finish_exit_status(rows, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finish(rows, json_path=tmp_path / "rows.json") == status
    assert [row["name"] for row in json.loads((tmp_path / "rows.json").read_text())] == [row.name for row in rows]
    assert capsys.readouterr().out.count("FALLS SHORT") == int(status == FALLS_SHORT)


def test_parse_arguments_rejects_unknown_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", "--quik"])
    with pytest.raises(SystemExit) as exit_info:
        parse_arguments("a script", profile="a part")
    assert exit_info.value.code == 2
    assert "--profile" in capsys.readouterr().err
