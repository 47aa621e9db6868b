"""A run of two sessions, read back from the offline files of wandb and the event files of TensorBoard."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gflownet.report.results import read_results
from gflownet.report.verdict import is_random
from gflownet.run.run_log import AXES, group_of
from gflownet.search.config import ORIGINS
from tests.run.wandb_records import WandbRecords, listing, read_session
from tests.small_run import run

OPTIONS = (
    "wandb.mode=offline",
    *("tensorboard.use=true", "report.every=0", "checkpoint_every=2", "algo.num_from_policy=2", "seed=3"),
    *("certify=true", "certify_samples=8", "certify_max_states=20", "evaluation.executor=inline"),
    *("task=tests.toy_tasks:Trains", "search.method=surrogate", "search.surrogate.name=gaussian_process"),
    *("search.num_initial=3", "search.batch_size=2", "print_every=1"),
    *("search.sampler.num_updates=7", "search.sampler.num_verified=0"),
    *("final.top=2", "final.num_seeds=2", "final.num_random=4", "final.share=0.4"),
    "wandb.project=${oc.env:PROJECT_OF_THE_TEST}",
)
BUDGETS = (9, 12)  # evaluations


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run that was continued; wandb's home directory is beside it."""
    home = tmp_path_factory.mktemp("logged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROJECT_OF_THE_TEST", "secret project")
        patch.setenv("HOME", str(home / "home"))
        for name in ("WANDB_DATA_DIR", "WANDB_RUN_ID", "WANDB_DIR", "WANDB_PROJECT", "WANDB_MODE"):
            patch.delenv(name, raising=False)
        for number, budget in enumerate(BUDGETS):
            options = [*OPTIONS, f"budget.evaluations={budget}", *(["resume=true"] if number else [])]
            assert run(home / "run", *options) == 0
    return home / "run"


@pytest.fixture(scope="module")
def session(folder: Path) -> WandbRecords:
    return read_session(folder, number=1)[0]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_wandb_sessions_are_one_run_with_rows_of_every_phase(folder: Path) -> None:
    first, second = (read_session(folder, number=number)[0] for number in (0, 1))
    assert first.run_id == second.run_id == (folder / "wandb" / "run_id").read_text()
    assert first.name == second.name == "run-seed3"
    assert first.exit_code == second.exit_code == 0
    own_steps = [row["_step"] for row in (*first.history, *second.history)]
    assert own_steps == sorted(set(own_steps)), "wandb drops rows that go back"
    resumed_after = rows_of(folder)[-1]["step"] - len(
        [row for row in second.history if "final/num_trainings" not in row]
    )
    for records, num_before in ((first, 0), (second, resumed_after)):
        phases = [phase_of(row) for row in records.history]
        assert sorted(set(phases), key=phases.index) == ["search", "sampler", "final"]
        assert phases == sorted(phases, key=["search", "sampler", "final"].index)
        num_trainings = [row["final/num_trainings"] for row in records.history if "final/num_trainings" in row]
        steps = [row["step"] for row in records.history]
        last = steps[len(steps) - len(num_trainings) - 1]
        assert steps == [*range(num_before + 1, last + 1), *(last + num for num in num_trainings)], "one axis"
        seconds = [row["seconds"] for row in records.history]
        assert seconds == sorted(seconds)


def phase_of(row: dict[str, Any]) -> str:
    if "final/num_trainings" in row:
        assert max(row.get("final/final_score_best", 0), row.get("final/random_score_best", 0)) > 0
        return "final"
    return "sampler" if {"train/loss", "train/log_Z", "score/predicted_score_mean"} <= row.keys() else "search"


def test_wandb_history_contains_all_metrics_in_groups(folder: Path, session: WandbRecords) -> None:
    assert session.step_metrics == {"step": "", "evaluations": "", "seconds": "", "*": "step"}
    logged_rows = {row["step"]: row for row in session.history if "final/num_trainings" not in row}
    rows = [row for row in rows_of(folder) if row["step"] in logged_rows]
    assert len(rows) == len(logged_rows) > 3
    for row in rows:
        logged = logged_rows[row["step"]]
        for key, value in row.items():
            if key in ("run", "checksum"):
                continue
            assert logged[key if key in AXES else f"{group_of(key)}/{key}"] == value
        assert logged.get("evaluations") == row.get("num_distinct")
    groups = {key.partition("/")[0] for row in session.history for key in row if "/" in key}
    assert groups == {"score", "train", "evaluation", "search", "final", "samples", "top", "report"}


def test_wandb_listing_names_every_item(session: WandbRecords) -> None:
    lines = "\n".join(listing(session))
    for item in (
        *("axes: step, evaluations, seconds", "metric final/num_trainings", "metric final/random_score_best"),
        *("histogram samples/scores", "histogram samples/log_rewards", "table-file top/architectures"),
        *("html-file top/drawing_0", "html-file report/page", "artifact run_table", "artifact report report-"),
        *("artifact model checkpoint-", "artifact model architectures-", "summary best/score", "summary state"),
        *("summary certificate/has_converged", "system memory_percent", "config: log_dir, seed, task"),
    ):
        assert item in lines


def test_wandb_console_output(folder: Path, session: WandbRecords) -> None:
    for words in ("search.method=surrogate", "training of the sampler 6/6", "best architectures", "everything about"):
        assert words in session.console
    assert f"report: {folder / 'report.html'}" in session.console


def test_wandb_histograms(folder: Path) -> None:
    for number in (0, 1):
        records = read_session(folder, number=number)[0]
        (row,) = (row for row in records.history if "samples/log_rewards" in row)
        assert row["samples/log_rewards"]["_type"] == "histogram"
        assert sum(row["samples/log_rewards"]["values"]) == (2 + number) * 8, "samples of all updates"


def test_wandb_table_of_candidates(folder: Path) -> None:
    records, media = read_session(folder, number=1)
    entries = json.loads((folder / "top_architectures.json").read_text())
    *_, last = (each for each in records.artifacts if each.type == "run_table")
    files = {content.path: Path(content.local_path) for content in last.manifest.contents}
    table = json.loads(files["top/architectures.table.json"].read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    finalists = rows[: len(entries)]
    for row, entry in zip(finalists, entries, strict=True):
        # A finalist that only the longer run has may have no new seed: the shorter one has spent their number.
        mean = entry.get("final", {"mean": entry["validation_score"]})["mean"]
        expected = entry["rank"], entry["validation_score"], mean, entry["num_parameters"]
        assert (row["rank"], row["search_score"], row["score"], row["num_parameters"]) == expected
        assert row["low"] is None or row["low"] < row["score"] < row["high"]
    with closing(sqlite3.connect(folder / "evaluations.sqlite")) as store:
        stored = store.execute("SELECT score, seconds FROM evaluations WHERE seed = 0").fetchall()
    assert sorted((row["search_score"], row["seconds"]) for row in rows) == sorted(stored), "all candidates"
    others = rows[len(entries) :]
    assert all(row["rank"] is row["score"] is None for row in others)
    assert [row["search_score"] for row in others] == sorted((row["search_score"] for row in others), reverse=True)
    origins = Counter(row["origin"] for row in rows)
    assert origins["first design"] == 3
    assert set(origins) <= set(ORIGINS.values())
    assert rows[1]["load"].endswith(f'gflownet.load("{folder / "top_architectures.json"}", rank=1, weights=False)')
    assert {row["drawing"]["_type"] for row in rows} == {"html-file"}
    drawing = records.history[-1]["top/drawing_1"]
    svg = (folder / "architectures" / "rank_1.svg").read_text()
    assert (media / drawing["path"]).read_text() == svg
    assert files[rows[1]["drawing"]["path"]].read_text() == svg
    assert "top/architectures" in read_session(folder, number=0)[0].history[1], "at each checkpoint"


def test_wandb_report_is_the_final_page(folder: Path) -> None:
    records, media = read_session(folder, number=1)
    page = (folder / "report.html").read_text()
    assert (media / records.history[-1]["report/page"]["path"]).read_text() == page
    (artifact,) = (each for each in records.artifacts if each.type == "report")
    assert Path(artifact.manifest.contents[0].local_path).read_text() == page


def test_wandb_artifacts(folder: Path) -> None:
    first, second = (read_session(folder, number=number)[0] for number in (0, 1))
    last = rows_of(folder)[-1]["step"]
    checkpoints = [
        [sorted(each.aliases) for each in records.artifacts if each.name == f"checkpoint-{records.run_id}"]
        for records in (first, second)
    ]
    assert checkpoints[1][-1] == ["final", "latest", f"step-{last}"]
    best = next(each for each in second.artifacts if each.name == f"architectures-{second.run_id}")
    names = {content.path for content in best.manifest.contents}
    assert {"top_architectures.json", "config.yaml", "architectures/rank_0.svg"} <= names
    for records in (first, second):
        for artifact in records.artifacts:
            for content in artifact.manifest.contents:
                path = Path(content.local_path)
                assert path.stat().st_size == content.size, "still there, also for a deleted checkpoint"
                assert path.is_relative_to(folder / "wandb")


def test_wandb_summary_and_config(folder: Path, session: WandbRecords) -> None:
    best = json.loads((folder / "top_architectures.json").read_text())[0]
    certificate = json.loads((folder / "certificate.json").read_text())["certificates"][0]
    assert session.summary["best/score"] == best["final"]["mean"]
    sides = {is_random(each.reference): each.reference for each in read_results(folder).comparisons}
    for group, side in (("random", sides[True]), ("reference/majority class", sides[False])):
        assert session.summary[f"{group}/score"] == side.mean
        assert session.summary[f"{group}/test_score"] == side.test_score
        ends = [session.summary.get(f"{group}/{end}", math.nan) for end in ("low", "high")]
        assert ends == pytest.approx([side.low, side.high], nan_ok=True)
        assert side.name in session.summary[f"{group}/verdict"]
        assert "rank 0 (" in session.summary[f"{group}/verdict"]
    assert session.summary["best/test_score"] == best["test_score"]
    assert session.summary["best/num_parameters"] == best["num_parameters"]
    assert session.summary["certificate/flow_consistency"] == certificate["flow_consistency"]
    assert session.summary["certificate/has_converged"] == 0
    searched = [row for row in rows_of(folder) if "score_best" in row]
    assert session.summary["score/score_best"] == searched[-1]["score_best"]
    assert session.summary["state"] == "completed"
    assert session.project == "secret project"
    assert session.config["wandb"]["project"] == "${oc.env:PROJECT_OF_THE_TEST}", "secrets are not resolved"
    assert session.config["algo"]["num_from_policy"] == 2


def test_wandb_system_metrics(session: WandbRecords) -> None:
    assert {"memory_percent", "proc.memory.rssMB", "proc.cpu.threads"} <= session.system


def test_wandb_writes_nothing_outside_of_the_run_folder(folder: Path) -> None:
    home = folder.parent / "home"
    files = [path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()]
    assert [name for name in files if "/logs/" not in name and not name.endswith("settings")] == []
    assert not Path("wandb").exists(), "nor in the folder of the process"


def test_tensorboard_sessions_are_one_run(folder: Path) -> None:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"histograms": 0}).Reload()
    rows = rows_of(folder)
    tags = events.Tags()
    assert {"score/score_best", "train/loss", "evaluation/num_distinct", "final/num_trainings"} <= set(tags["scalars"])
    searched, trained = ([row for row in rows if key in row] for key in ("score_best", "loss"))
    assert [event.step for event in events.Scalars("score/score_best")] == [row["step"] for row in searched]
    losses = [event.value for event in events.Scalars("train/loss")]
    assert losses == pytest.approx([row["loss"] for row in trained], rel=1e-6)
    assert events.Histograms("samples/log_rewards")[0].histogram_value.num == 16
    assert {"config/text_summary", "top/architectures/text_summary"} <= set(tags["tensors"])
    text = events.Tensors("top/architectures/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| 0 | 0.4" in text
    assert "rank=0, weights=False" in text


def test_tensorboard_ignores_steps_after_the_checkpoint(tmp_path: Path) -> None:
    """A killed run has logged steps that its resumed session repeats."""
    from gflownet.run.run_log import TensorBoardLog

    for resume_step, steps in ((None, range(1, 7)), (3, range(4, 6))):
        log = TensorBoardLog(tmp_path, config_text="", print_line=pytest.fail, resume_step=resume_step)
        for step in steps:
            log.write(step, {"loss": step + (resume_step or 0)})
        log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in events] == [(1, 1), (2, 2), (3, 3), (4, 7), (5, 8)]
