"""Comparison of runs: groups, figures, curves, differences, and the command that writes the page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gflownet.errors import UserError
from gflownet.evaluation.store.rows import EvaluationRecord, EvaluationStatus
from gflownet.files import sealed
from gflownet.report.__main__ import main, run_folders
from gflownet.report.compared.figures import CURVES, estimate_of, figures_of, group_curve
from gflownet.report.compared.groups import differences, groups_of, num_unknown_seeds, problems_of, repeated_seeds
from gflownet.report.compared.page import Comparison, comparison_page, verdict_of
from gflownet.report.page import RunData
from gflownet.report.results import Finalist, FinalResults, Results, Side
from tests import small_run
from tests.finished_runs import copy_finished

finished = small_run.finished_toy
BEST, *_, MEAN_TIME = CURVES


def a_run(
    seed: int | str = 0,
    *,
    name: str = "run",
    scores: Sequence[float | None] = (),
    top: Finalist | None = None,
    **options: Any,
) -> RunData:
    """Return a run with the scores of its evaluations, two seconds each (None: failed)."""
    records = [
        EvaluationRecord(
            hash="h",
            key=str(index),
            graph="{}",
            score=score or 0.0,
            status=EvaluationStatus.OK if score is not None else EvaluationStatus.FAILED,
            seconds=2.0,
            step=index,
        )
        for index, score in enumerate(scores)
    ]
    return RunData(
        folder=Path(name),
        run_id=name,
        config={"seed": seed, "task": "digits", "log_dir": name, "wandb": {"name": name}, **options},
        config_text="",
        status=None,
        metrics=(),
        evaluations=records,
        top=(),
        results=Results(final=FinalResults((top,))) if top else Results(),
        front=(),
        certificate=None,
    )


def test_runs_with_other_seeds_are_one_group() -> None:
    runs = [a_run(10, name="a"), a_run(2, name="b"), a_run(0, name="c", model={"num_emb": 8}), a_run(1, name="d")]
    first, second = groups_of(runs)
    assert first.seeds == [1, 2, 10], "sorted as numbers"
    assert second.seeds == [0]
    assert first.name == "digits"
    assert second.name == "model.num_emb=8"
    (difference,) = differences([first, second])
    assert (difference.key, difference.values) == ("model.num_emb", ("-", "8"))


def test_runs_with_values_from_the_environment_are_separate_groups() -> None:
    rate = {"learning_rate": "${oc.env:LR}"}
    runs = [a_run(0, name="a", opt=rate), a_run(1, name="b", opt=rate)]
    groups = groups_of(runs)
    assert [group.seeds for group in groups] == [[0], [1]]
    (difference,) = differences(groups)
    assert (difference.key, set(difference.values)) == ("opt.learning_rate", {"unknown, ${oc.env:LR}"})
    assert groups[0].name == "opt.learning_rate=unknown, ${oc.env:LR} (1)"
    assert len(groups_of([a_run(0, other="${task}"), a_run(1, other="${task}")])) == 1, "a value of the config"
    url = {"store_url": "postgresql://user:${oc.env:PASSWORD}@host/name"}
    assert len(groups_of([a_run(0, evaluation=url), a_run(1, evaluation=url)])) == 1, "a place, not a setting"


def test_seeds_from_the_environment_are_not_repeated() -> None:
    (group,) = groups_of([a_run("${oc.env:SEED}", name=name) for name in "ab"])
    assert repeated_seeds(group) == []
    assert num_unknown_seeds(group) == 2
    (group,) = groups_of([a_run(3, name=name) for name in "ab"])
    assert repeated_seeds(group) == [3]


def test_estimate_is_a_t_interval_of_the_known_values() -> None:
    values = [0.8, 0.9, math.nan, 0.85]
    estimate = estimate_of(values)
    known = [0.8, 0.9, 0.85]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(known), scale=stats.sem(known))
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((0.85, low, high))
    single = estimate_of([0.5])
    assert single.mean == 0.5
    assert math.isnan(single.low)
    assert math.isnan(estimate_of([math.nan]).mean)


def test_figures_of_a_group() -> None:
    final, other = Finalist(0, 0.3, test_score=0.7, final=Side("rank 0", 0.7)), Finalist(0, 0.5, test_score=0.9)
    (group,) = groups_of([a_run(0, scores=[0.1, None, 0.3, 0.2], top=final), a_run(1, scores=[0.5, 0.4], top=other)])
    figures = figures_of(group)
    assert figures["best_score"].values == (0.3, 0.5)
    assert figures["test_score"].values == pytest.approx((0.7, 0.9))
    assert figures["evaluations"].mean == 3
    assert figures["failed"].values == (25, 0)
    assert figures["final_score"].values == pytest.approx((0.7, math.nan), nan_ok=True)


def test_best_curve_is_a_step_function_over_common_places() -> None:
    (group,) = groups_of([a_run(0, scores=[0.1, 0.3, None, 0.9]), a_run(1, scores=[0.2, 0.1, 0.5])])
    curve = group_curve(group, BEST)
    assert curve is not None
    assert (curve.x[0], curve.x[-1]) == (1, 3), "the shorter run ends at its third evaluation"
    at_two = next(i for i, x in enumerate(curve.x) if x >= 2)
    assert curve.mean[0] == pytest.approx(0.15)
    assert curve.mean[at_two - 1] == pytest.approx(0.15), "no value of the future"
    assert curve.mean[at_two] == pytest.approx(0.25)
    assert curve.mean[-1] == pytest.approx(0.4)
    low, high = stats.t.interval(0.95, 1, loc=0.4, scale=stats.sem([0.3, 0.5]))
    assert (curve.low[-1], curve.high[-1]) == pytest.approx((max(low, 0.0), min(high, 1.0)))


def comparison(*runs: RunData) -> Comparison:
    groups = groups_of(runs)
    return Comparison(
        groups=groups,
        figures=[figures_of(group) for group in groups],
        curves={kind.key: [group_curve(group, kind) for group in groups] for kind in CURVES},
        differences=differences(groups),
    )


@pytest.mark.parametrize(
    ("scores", "end"),
    [
        (((0.1, 0.2), (0.5, 0.6)), "lr=1: too few seeds against lr=0, +0.4000 [+0.4000, +0.4000], 2 seeds."),
        (((0.1, 0.2, 0.9), (0.5, 0.6, 0.9)), "not separated from lr=0, +0.2667 [-0.3070, +0.8404], 3 seeds."),
        (((0.1, 0.2, 0.3), (0.5, 0.6, 0.7)), "better than lr=0, +0.4000 [+0.4000, +0.4000], 3 seeds."),
    ],
)
def test_verdict_names_the_better_group_and_the_doubt(scores: Sequence[Sequence[float]], end: str) -> None:
    runs = [
        a_run(seed, scores=[value], lr=rate) for rate, values in enumerate(scores) for seed, value in enumerate(values)
    ]
    verdict = verdict_of(comparison(*runs), problems_of(groups_of(runs))[0])
    assert verdict.startswith("Highest best score in the search: 0.")
    assert "of lr=1; next is 0." in verdict
    assert verdict.endswith(end)


def test_groups_that_share_seeds_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """Group 1 is 0.1 better on each of 5 shared seeds, far less than the seeds differ; other seeds do not count."""
    starts = [0.1, 0.3, 0.5, 0.5, 0.7]
    runs = [a_run(seed, scores=[start], lr=0) for seed, start in enumerate(starts)]
    runs += [a_run(seed, scores=[start + 0.1], lr=1) for seed, start in reversed([*enumerate(starts)])]
    runs += [a_run(8, scores=[0.0], lr=1), a_run(9, scores=[None], lr=0), a_run(9, scores=[0.9], lr=1)]
    runs += [a_run(7, scores=[0.6], lr=0), a_run(7, name="again", scores=[0.1], lr=0), a_run(7, scores=[0.9], lr=1)]
    compared = comparison(*runs)
    paired = compared.paired(1, 0, "best_score")
    assert paired is not None
    assert (paired.mean, paired.low, paired.high, paired.num_seeds) == pytest.approx((0.1, 0.1, 0.1, 5))
    verdict = verdict_of(compared, *compared.problems)
    assert verdict.endswith("Seed by seed, lr=1: better than lr=0, +0.1000 [+0.1000, +0.1000], 5 seeds.")
    apart = comparison(*(a_run(seed, scores=[seed / 100], lr=int(seed > 3)) for seed in range(1, 7)))
    unpaired = verdict_of(apart, *apart.problems)
    assert unpaired.endswith("lr=1: better than lr=0, +0.0300 [+0.0073, +0.0527], 3 seeds.")
    page = comparison_page(compared, folder=tmp_path)
    assert "lr=0 minus lr=1" in page
    assert "-0.1000 [-0.1000, -0.1000]" in page
    (entry,) = json.loads(compared.to_json())["paired"]
    assert (entry["first"], entry["second"], entry["figure"], entry["num_seeds"]) == ("lr=0", "lr=1", "best_score", 5)
    assert "Paired differences" not in comparison_page(comparison(*runs[:5]), folder=tmp_path)


@pytest.mark.parametrize(
    "other", [{"task": "images"}, {"task_options": {"table": "b.csv"}}, {"budget": {"evaluations": 9}}]
)
def test_runs_of_other_tasks_data_or_budgets_are_not_ranked_together(other: dict[str, Any], tmp_path: Path) -> None:
    compared = comparison(a_run(0, name="a", scores=[0.9499]), a_run(0, name="b", scores=[0.9994], **other))
    first, second = compared.problems
    assert (first.places, second.places) == ((0,), (1,))
    assert [verdict_of(compared, problem) for problem in compared.problems] == ["", ""]
    page = comparison_page(compared, folder=tmp_path)
    assert page.count("<caption>Final figures by group") == 2
    assert page.count("are not ranked together") == 1
    assert "Paired differences" not in page
    assert json.loads(compared.to_json())["paired"] == []
    assert "Highest" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_intervals_stay_within_the_range_of_the_figure() -> None:
    (group,) = groups_of([a_run(seed, scores=[score]) for seed, score in enumerate((0.99, 1.0, 0.9))])
    figures = figures_of(group)
    assert figures["best_score"].high == 1.0
    curve = group_curve(group, BEST)
    assert curve is not None
    assert max(curve.high) == 1.0
    assert (figures["failed"].low, figures["evaluations"].low) == (0.0, 1.0)
    assert estimate_of([0.01, 0.9, 0.0], upper=1.0).low == 0.0
    assert estimate_of([1.5, 2.5, 9.0], upper=1.0).high > 9.0, "a task with larger scores"


@pytest.fixture
def folders(finished: Path, tmp_path: Path) -> Path:
    """Return a folder with two copies of a run, the second with another seed."""
    for name, seed in (("seed_10", 10), ("seed_2", 2)):
        copy_finished(finished, tmp_path / "runs" / name)
        (tmp_path / "runs" / name / "report.html").unlink()
        path = tmp_path / "runs" / name / "run.json"
        marker = json.loads(path.read_text())
        marker["config"]["seed"] = seed
        path.write_text(json.dumps(sealed(marker)))
    return tmp_path / "runs"


def test_run_folders_of_paths_patterns_and_parents(folders: Path, tmp_path: Path) -> None:
    both = [folders / "seed_2", folders / "seed_10"]
    assert run_folders([tmp_path]) == run_folders([folders]) == run_folders([folders / "seed_*"]) == both
    assert run_folders([folders / "seed_10", folders]) == both[::-1], "each once"
    (folders / "comparison.html").touch()
    assert run_folders([folders / "comparison.html", *both]) == both, "a shell expands * to files too"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("empty", "empty: expected a run folder or a folder with runs, got neither"),
        ("nope", "no such folder: nope"),
        ("nope*", "nope*: expected run folders, got a pattern that matches none"),
    ],
)
def test_path_without_run_is_one_line(tmp_path: Path, monkeypatch, path: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as error:
        run_folders([Path(path)])
    assert str(error.value) == message


def test_command_compares(folders: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folders)
    assert main([".", "--json", "figures.json"]) == 0
    assert capsys.readouterr().out == "report: comparison.html\nreport: figures.json\n"
    page = (folders / "comparison.html").read_text()
    assert "Comparison of 2 runs" in page
    assert "The runs differ only in their seeds." in page
    assert len(json.loads((folders / "figures.json").read_text())["groups"][0]["runs"]) == 2
    assert main([".", "--json", "figures.json"]) == 0, "own files are replaced"
    (folders / "comparison.html").write_text("mine")
    (folders / "figures.json").write_text("{}")
    for arguments in (["."], [".", "--output", "new.html", "--json", "figures.json"]):
        assert main(arguments) == 2
        assert ": expected no file or " in capsys.readouterr().err
    assert (folders / "comparison.html").read_text() == "mine"
    assert not (folders / "new.html").exists()


def test_command_rebuilds_the_page(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folders / "seed_2"
    assert main([str(folder)]) == 0
    assert (folder / "report.html").exists()
    assert main([str(folder), "--output", str(folders / "one.html")]) == 0
    assert main([str(folders), "--each"]) == 0
    assert (folders / "seed_10" / "report.html").exists()
    capsys.readouterr()
