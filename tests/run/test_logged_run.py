"""A run of two sessions, read back from the offline files of wandb and the event files of TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gflownet.run.run_log import AXES, group_of
from tests.run.wandb_records import WandbRecords, listing, read_session
from tests.small_run import run

OPTIONS = (
    *("wandb.mode=offline", "wandb.checkpoint_every=1", "wandb.group=of the test", "wandb.tags=[first, second]"),
    *("tensorboard.use=true", "report.every=0", "checkpoint_every=2", "algo.num_from_policy=2"),
    *("certify=true", "certify_samples=8", "certify_max_states=20", "evaluation.executor=inline"),
    "wandb.project=${oc.env:PROJECT_OF_THE_TEST}",
)
STEPS = (4, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with 4 steps, resumed for 2 more; wandb's home directory is beside it."""
    home = tmp_path_factory.mktemp("logged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROJECT_OF_THE_TEST", "secret project")
        patch.setenv("HOME", str(home / "home"))
        for name in ("WANDB_DATA_DIR", "WANDB_RUN_ID", "WANDB_DIR", "WANDB_PROJECT", "WANDB_MODE"):
            patch.delenv(name, raising=False)
        for number, steps in enumerate(STEPS):
            assert run(home / "run", *OPTIONS, f"num_training_steps={steps}", *(["resume=true"] if number else [])) == 0
    return home / "run"


@pytest.fixture(scope="module")
def session(folder: Path) -> WandbRecords:
    return read_session(folder, number=1)[0]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_wandb_sessions_are_one_run_without_overlap(folder: Path) -> None:
    first, second = (read_session(folder, number=number)[0] for number in (0, 1))
    assert first.run_id == second.run_id == (folder / "wandb" / "run_id").read_text()
    assert [row["_step"] for row in (*first.history, *second.history)] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in (*first.history, *second.history)] == [1, 2, 3, 4, 5, 6]
    assert first.exit_code == second.exit_code == 0


def test_wandb_history_contains_all_metrics_in_groups(folder: Path, session: WandbRecords) -> None:
    assert session.step_metrics == {"step": "", "evaluations": "", "seconds": "", "*": "step"}
    for row, logged in zip(rows_of(folder)[STEPS[0] :], session.history, strict=True):
        for key, value in row.items():
            if key in ("run", "checksum"):
                continue
            assert logged[key if key in AXES else f"{group_of(key)}/{key}"] == value
        assert logged["evaluations"] == row["num_distinct"]
    assert {key.partition("/")[0] for key in session.history[0] if "/" in key} == {"score", "train", "evaluation"}


def test_wandb_listing_names_every_item(session: WandbRecords) -> None:
    lines = "\n".join(listing(session))
    for item in (
        *("axes: step, evaluations, seconds", "steps: [5, 6]", "metric score/score_best", "metric train/log_Z"),
        *("histogram samples/scores", "histogram samples/log_rewards", "table-file top/architectures"),
        *("html-file top/drawing_0", "html-file report/page", "artifact run_table", "artifact report report-"),
        *("artifact model checkpoint-", "artifact model architectures-", "summary best/score", "summary state"),
        *("summary certificate/has_converged", "system memory_percent", "config: log_dir, seed, task"),
    ):
        assert item in lines


def test_wandb_histograms(folder: Path) -> None:
    first, last = (read_session(folder, number=number)[0].history[-1] for number in (0, 1))
    for row, num_steps in ((first, 4), (last, 2)):
        for key in ("samples/scores", "samples/log_rewards"):
            assert row[key]["_type"] == "histogram"
            assert sum(row[key]["values"]) == 2 * num_steps, "samples of all steps of the session"


def test_wandb_table_and_drawings(folder: Path) -> None:
    records, media = read_session(folder, number=1)
    entries = json.loads((folder / "top_architectures.json").read_text())
    *_, last = (each for each in records.artifacts if each.type == "run_table")
    files = {content.path: Path(content.local_path) for content in last.manifest.contents}
    table = json.loads(files["top/architectures.table.json"].read_text())
    columns = ["rank", "score", "low", "high", "test_score", "num_parameters", "words", "drawing", "load"]
    assert table["columns"] == columns
    rows = [dict(zip(columns, row, strict=True)) for row in table["data"]]
    assert [(row["rank"], row["score"], row["num_parameters"]) for row in rows] == [
        (entry["rank"], entry["validation_score"], entry["num_parameters"]) for entry in entries
    ]
    assert rows[1]["load"] == f'gflownet.load("{folder / "top_architectures.json"}", rank=1, weights=False)'
    drawing = records.history[-1]["top/drawing_1"]
    assert drawing["_type"] == rows[1]["drawing"]["_type"] == "html-file"
    svg = (folder / "architectures" / "rank_1.svg").read_text()
    assert (media / drawing["path"]).read_text() == files[rows[1]["drawing"]["path"]].read_text() == svg
    assert "top/architectures" in read_session(folder, number=0)[0].history[1], "at each checkpoint"


def test_wandb_report_is_the_final_page(folder: Path) -> None:
    records, media = read_session(folder, number=1)
    page = (folder / "report.html").read_text()
    assert (media / records.history[-1]["report/page"]["path"]).read_text() == page
    (artifact,) = (each for each in records.artifacts if each.type == "report")
    assert Path(artifact.manifest.contents[0].local_path).read_text() == page


def test_wandb_artifacts(folder: Path) -> None:
    first, second = (read_session(folder, number=number)[0] for number in (0, 1))
    checkpoints = [
        [sorted(each.aliases) for each in records.artifacts if each.name == f"checkpoint-{records.run_id}"]
        for records in (first, second)
    ]
    assert checkpoints == [
        [["latest", "step-2"], ["latest", "step-4"], ["final", "latest", "step-4"]],
        [["latest", "step-6"], ["final", "latest", "step-6"]],
    ]
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
    assert session.summary["best/score"] == best["validation_score"]
    assert session.summary["best/test_score"] == best["test_score"]
    assert session.summary["best/num_parameters"] == best["num_parameters"]
    assert session.summary["certificate/flow_consistency"] == certificate["flow_consistency"]
    assert session.summary["certificate/has_converged"] == 0
    assert session.summary["score/score_best"] == rows_of(folder)[-1]["score_best"]
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
    assert {"score/score_best", "train/loss", "evaluation/num_distinct"} <= set(tags["scalars"])
    assert [event.step for event in events.Scalars("score/score_best")] == [1, 2, 3, 4, 5, 6]
    losses = [event.value for event in events.Scalars("train/loss")]
    assert losses == pytest.approx([row["loss"] for row in rows], rel=1e-6)
    assert [event.step for event in events.Histograms("samples/scores")] == [4, 6]
    assert events.Histograms("samples/scores")[0].histogram_value.num == 8
    assert {"config/text_summary", "top/architectures/text_summary"} <= set(tags["tensors"])
    text = events.Tensors("top/architectures/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "| 0 | 0.4 |" in text
    assert "rank=0, weights=False" in text


def test_tensorboard_ignores_steps_after_the_checkpoint(tmp_path: Path) -> None:
    """A killed run has logged steps that its resumed session repeats."""
    from gflownet.run.tensorboard_log import TensorBoardLog

    for resume_step, steps in ((None, range(1, 7)), (3, range(4, 6))):
        log = TensorBoardLog(tmp_path, config_text="", print_line=pytest.fail, resume_step=resume_step)
        for step in steps:
            log.write(step, {"loss": step + (resume_step or 0)})
        log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in events] == [(1, 1), (2, 2), (3, 3), (4, 7), (5, 8)]
