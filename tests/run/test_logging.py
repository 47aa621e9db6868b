"""Metric logs: metrics.jsonl, wandb (working, absent, broken), console."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from gflownet.config import WandbConfig
from gflownet.run.executor_status import COUNTS
from gflownet.run.logging import METRICS_NAME, TIME_KEYS, MetricLogger, MetricsFile, WandbLog, has_wandb_key


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_steps(path: Path, steps: range, *, resume_step: int | None = None) -> None:
    file = MetricsFile(path, resume_step=resume_step)
    for step in steps:
        file.write(step, {"loss": 1 / step, "num_distinct": step})
    file.close()


def test_metrics_file_one_json_object_per_step(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    file = MetricsFile(path)
    file.write(1, {"loss": 0.1, "num_distinct": 3, "log_Z": math.nan, "score_best": -math.inf})
    assert path.read_text() == '{"step": 1, "loss": 0.1, "num_distinct": 3, "log_Z": null, "score_best": null}\n'
    file.close()


def test_metrics_file_of_new_run_is_empty(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    write_steps(path, range(1, 5))
    write_steps(path, range(1, 3))
    assert [row["step"] for row in rows_of(path)] == [1, 2]


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


def test_metrics_file_warns_about_missing_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / METRICS_NAME
    write_steps(path, range(5, 7), resume_step=4)
    assert [row["step"] for row in rows_of(path)] == [5, 6]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: expected one row for each of 4 steps, got 0; continuing without"
    ]
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"\xff\n", b"[5]\n", b'{"step": "5"}\n', b'{"step": 5, "run": "other"}\n', b"[" * 10_000 + b"\n"):
        caplog.clear()
        path.write_bytes(damaged + lines[1])
        write_steps(path, range(7, 8), resume_step=6)
        assert [row["step"] for row in rows_of(path)] == [6, 7]
        assert [record.getMessage() for record in caplog.records] == [
            f"{path}: expected one row for each of 6 steps, got 1, line 1 is damaged; continuing without"
        ]


def test_metrics_file_warns_about_damaged_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / METRICS_NAME
    write_steps(path, range(1, 3))
    path.write_bytes(b"{damaged\n" + path.read_bytes())
    write_steps(path, range(3, 4), resume_step=2)
    assert [row["step"] for row in rows_of(path)] == [1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: expected one row for each of 2 steps, got 2, line 1 is damaged; continuing without"
    ]


def test_metrics_file_rows_contain_run_id(tmp_path: Path) -> None:
    path = tmp_path / METRICS_NAME
    with closing(MetricsFile(path, run="a" * 32)) as file:
        file.write(1, {"loss": 0.5})
    with closing(MetricsFile(path, run="a" * 32, resume_step=1)) as file:
        file.write(2, {"loss": 0.5})
    assert rows_of(path) == [{"step": step, "loss": 0.5, "run": "a" * 32} for step in (1, 2)]


class FakeWandb(ModuleType):
    """Fake wandb that records calls and fails on request."""

    def __init__(self, failing: dict[str, str]) -> None:
        super().__init__("wandb")
        self.failing = failing
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.Settings = SimpleNamespace
        self.summary: dict[str, float] = {}

    def init(self, **options: Any) -> FakeWandb:
        self._call(f"init {options['mode']}", options)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self._call("log", {"step": step, **values})

    def finish(self) -> None:
        self._call("finish", {})

    def _call(self, name: str, options: dict[str, Any]) -> None:
        self.calls.append((name, options))
        if name in self.failing:
            raise RuntimeError(self.failing[name])

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


@pytest.fixture
def no_wandb_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no netrc"))


def log_two_steps(
    monkeypatch: pytest.MonkeyPatch, folder: Path, mode: Any, **failing: str
) -> tuple[FakeWandb, list[str]]:
    fake, lines = FakeWandb({name.replace("_", " "): text for name, text in failing.items()}), []
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = WandbLog(folder, WandbConfig(mode=mode), config={"seed": "${oc.env:S}"}, print_line=lines.append)
    log.write(1, {"loss": 0.5})
    log.write(2, {"loss": 0.25})
    log.close()
    return fake, lines


@pytest.mark.usefixtures("no_wandb_key")
def test_wandb_without_key_is_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake, lines = log_two_steps(monkeypatch, tmp_path, "online")
    assert fake.names == ["init offline", "log", "log", "finish"]
    assert len(lines) == 1
    assert "no API key" in lines[0]


@pytest.mark.usefixtures("no_wandb_key")
def test_wandb_with_key_is_online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    fake, lines = log_two_steps(monkeypatch, tmp_path, "online")
    options = fake.calls[0][1]
    assert (fake.names[0], lines) == ("init online", [])
    assert options["dir"] == tmp_path
    assert options["config"] == {"seed": "${oc.env:S}"}
    assert 0 < options["settings"].init_timeout < 60
    assert 0 < options["settings"].finish_timeout < 60
    assert fake.calls[2][1] == {"step": 2, "loss": 0.25}
    again, _ = log_two_steps(monkeypatch, tmp_path, "online")
    assert again.calls[0][1]["id"] == options["id"], "a resumed run goes on in the same wandb run"


def test_wandb_summary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake, lines = FakeWandb({}), []
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = WandbLog(tmp_path, WandbConfig(mode="offline"), config={}, print_line=lines.append)
    log.summarise({"certificate/l1": 0.5})
    assert (fake.summary, lines) == ({"certificate/l1": 0.5}, [])
    monkeypatch.setattr(fake, "summary", None)
    log.summarise({"certificate/l1": 0.25})
    assert lines == ["wandb: the run has no summary: 'NoneType' object has no attribute 'update'"]
    WandbLog(tmp_path, WandbConfig(mode="disabled"), config={}, print_line=lines.append).summarise(
        {"certificate/l1": 0.5}
    )
    assert len(lines) == 1


@pytest.mark.usefixtures("no_wandb_key")
def test_wandb_key_in_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not has_wandb_key()
    (tmp_path / "netrc").write_text("machine wandb.example login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not has_wandb_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example:8080/path")
    assert has_wandb_key()
    (tmp_path / "netrc").write_text("not a netrc file")
    assert not has_wandb_key()


def test_wandb_failures_print_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    fake, lines = log_two_steps(monkeypatch, tmp_path, "online", init_online="unreachable\nlong story")
    assert fake.names == ["init online", "init offline", "log", "log", "finish"]
    assert lines == ["wandb: online logging failed, continuing offline: unreachable"]
    fake, lines = log_two_steps(monkeypatch, tmp_path, "online", init_online="a", init_offline="b")
    assert fake.names == ["init online", "init offline"]
    assert lines[1] == "wandb: offline logging failed, metrics.jsonl is complete: b"
    fake, lines = log_two_steps(monkeypatch, tmp_path, "offline", log="pipe closed")
    assert fake.names == ["init offline", "log"]
    assert lines == ["wandb: logging stopped at step 1, metrics.jsonl continues: pipe closed"]
    fake, lines = log_two_steps(monkeypatch, tmp_path, "offline", finish="gone")
    assert [line.partition(",")[0] for line in lines] == ["wandb: the run was not finished"]


def test_disabled_wandb_is_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    log = WandbLog(tmp_path, WandbConfig(mode="disabled"), config={}, print_line=pytest.fail)
    log.write(1, {"loss": 1.0})
    log.close()
    assert list(tmp_path.iterdir()) == []


REAL_RUN = """
import sys, pathlib
from gflownet.config import WandbConfig
from gflownet.run.logging import MetricLogger
folder = pathlib.Path(sys.argv[1])
with MetricLogger(folder, num_training_steps=2, print_every=1, wandb=WandbConfig(), config={"seed": 1}) as logger:
    for step in (1, 2):
        logger.write(step, {"loss": 1 / step})
"""


@pytest.mark.usefixtures("no_wandb_key")
def test_wandb_offline_run_writes_in_run_folder(tmp_path: Path, checkout: Path) -> None:
    command = [sys.executable, "-c", REAL_RUN, str(tmp_path)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True, timeout=60)
    first, *lines = done.stdout.splitlines()
    assert "no API key" in first
    assert [line.partition(" |")[0] for line in lines] == ["step 1/2", "step 2/2"]
    assert done.stderr == ""
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1
    assert not (checkout / "wandb").exists()
    assert [row["loss"] for row in rows_of(tmp_path / METRICS_NAME)] == [1.0, 0.5]


def test_metric_logger_writes_all_logs(tmp_path: Path) -> None:
    output = io.StringIO()
    options = WandbConfig(mode="disabled")
    console = Console(file=output, width=120)
    with MetricLogger(
        tmp_path, num_training_steps=4, print_every=2, wandb=options, config={}, resume_step=1, console=console
    ) as logger:
        logger.print("[bold]as written[/bold]")
        logger.write(2, {"loss": 1.5, "seconds": 0.1})
    assert output.getvalue().startswith("[bold]as written[/bold]\nstep 2/4 | loss 1.5 |")
    assert rows_of(tmp_path / METRICS_NAME) == [{"step": 2, "loss": 1.5, "seconds": 0.1}]
    with pytest.raises(ValueError, match="closed file"):
        logger.write(3, {"loss": 1.0})


def test_time_keys() -> None:
    search = {"method_seconds_per_evaluation", "method_share", "evaluation_seconds"}
    assert {"evaluations_per_second", "seconds", "run", "in_flight", "busy_share", *search, *COUNTS} == TIME_KEYS
