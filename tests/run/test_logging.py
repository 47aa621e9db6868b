"""Metric logs: metrics.jsonl and console."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from gflownet.config import TensorBoardConfig, WandbConfig
from gflownet.files import CHECKSUM
from gflownet.run.logging import METRICS_NAME, MetricLogger, MetricsFile
from gflownet.run.view import PlannedWork
from tests.run.test_wandb_log import FakeWandb


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file without their checksums."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != CHECKSUM} for row in rows]


def write_steps(path: Path, steps: range, *, resume_step: int | None = None) -> None:
    file = MetricsFile(path, resume_step=resume_step)
    for step in steps:
        file.write(step, {"loss": 1 / step, "num_distinct": step})
    file.close()


def test_metrics_file_one_json_object_per_step(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    file = MetricsFile(path)
    file.write(1, {"loss": 0.1, "num_distinct": 3, "log_Z": math.nan, "score_best": -math.inf})
    row = '{"step": 1, "loss": 0.1, "num_distinct": 3, "log_Z": null, "score_best": null, "checksum": "4655d000"}\n'
    assert path.read_text() == row
    file.close()


@pytest.mark.parametrize("torn", ["", '{"step": 10, "lo', '{"step": 9}'])
def test_metrics_file_resume_equals_uninterrupted(torn: str, tmp_path: Path) -> None:
    """The last checkpoint was of step 4, the run was killed in step 9 or 10, perhaps within a line."""
    whole, resumed = tmp_path / "whole.jsonl", tmp_path / "resumed.jsonl"
    write_steps(whole, range(1, 13))
    write_steps(resumed, range(1, 9))
    with resumed.open("a") as file:
        file.write(torn)
    write_steps(resumed, range(5, 13), resume_step=4)
    assert resumed.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["resumed.jsonl", "whole.jsonl"]


def test_metric_logger_writes_all_logs(tmp_path: Path) -> None:
    output = io.StringIO()
    options = WandbConfig(mode="disabled")
    console = Console(file=output, width=120)
    with MetricLogger(
        tmp_path,
        planned=PlannedWork(num_steps=4),
        print_every=2,
        wandb=options,
        config={},
        resume_step=1,
        console=console,
    ) as logger:
        logger.print("[bold]as written[/bold]")
        logger.write(2, {"loss": 1.5, "seconds": 0.1})
    assert output.getvalue().startswith("[bold]as written[/bold]\nstep 2/4 | loss 1.5\n")
    assert rows_of(tmp_path / METRICS_NAME) == [{"step": 2, "loss": 1.5, "seconds": 0.1}]
    with pytest.raises(ValueError, match="closed file"):
        logger.write(3, {"loss": 1.0})


def test_offline_run_ends_with_the_line_that_uploads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, is_printed in (("offline", True), ("online", False), ("disabled", False)):
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        monkeypatch.setitem(sys.modules, "wandb", FakeWandb({}))
        output, options = io.StringIO(), WandbConfig(mode=cast(Any, mode))
        console, folder = Console(file=output, width=80), tmp_path / "my run"
        with MetricLogger(
            folder, planned=PlannedWork(num_steps=1), print_every=1, wandb=options, config={}, console=console
        ):
            pass
        line = f"wandb: metrics are offline; to upload: wandb sync '{folder}/wandb'/offline-run-*\n"
        assert output.getvalue() == (line if is_printed else ""), mode


def test_error_of_a_drawing_is_one_line_and_the_log_goes_on(tmp_path: Path) -> None:
    def rows_of_a_broken_task() -> list[Any]:
        raise ValueError("no network\nof this graph")

    output = io.StringIO()
    console = Console(file=output, width=120)
    options = {
        "planned": PlannedWork(num_steps=2),
        "print_every": 1,
        "wandb": WandbConfig(mode="disabled"),
        "config": {},
    }
    with MetricLogger(tmp_path, **options, tensorboard=TensorBoardConfig(use=True), console=console) as logger:
        logger.write(1, {"loss": 1.0})
        logger.write_leaders(["hash"], rows_of_a_broken_task)
        logger.write(2, {"loss": 0.5})
    assert "the best architectures are not shown in the logs: no network\n" in output.getvalue()
    assert [row["loss"] for row in rows_of(tmp_path / METRICS_NAME)] == [1.0, 0.5]


def test_metrics_file_warns_about_damaged_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / METRICS_NAME
    write_steps(path, range(1, 3))
    path.write_bytes(b"{damaged\n" + path.read_bytes())
    write_steps(path, range(3, 4), resume_step=2)
    assert [row["step"] for row in rows_of(path)] == [1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: expected one row for each of 2 steps, got 2, line 1 is damaged; continuing without"
    ]
