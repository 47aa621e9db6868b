"""Calls of a working, absent and broken wandb; real offline runs: test_logged_run.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gflownet.config import WandbConfig
from gflownet.report.results import Results
from gflownet.run.logging import MetricLogger
from gflownet.run.run_log import RunResults
from gflownet.run.view import PlannedWork
from gflownet.run.wandb_log import WandbLog, has_wandb_key


class FakeWandb(ModuleType):
    """Fake wandb that records calls and fails on request."""

    def __init__(self, failing: dict[str, str]) -> None:
        super().__init__("wandb")
        self.failing = failing
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.Settings = SimpleNamespace
        self.summary: dict[str, float] = {}
        self.step_metrics: dict[str, str | None] = {}
        self.dir = "no folder"
        self.id = ""

    def init(self, **options: Any) -> FakeWandb:
        self._call(f"init {options['mode']}", options)
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.step_metrics[name] = step_metric

    def log(self, values: dict[str, float], step: int) -> None:
        self._call("log", {"at": step, **values})

    def finish(self, exit_code: int = 0) -> None:
        self._call("finish", {"exit_code": exit_code})

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
    config = {"seed": "${oc.env:S}", "api_key": "hunter2"}
    log = WandbLog(folder, WandbConfig(mode=mode), config=config, print_line=lines.append)
    log.write(1, {"loss": 0.5})
    log.write(2, {"loss": 0.25, "num_distinct": 7, "score_best": 0.5, "seconds": 3.5})
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
    assert options["config"] == {"seed": "${oc.env:S}", "api_key": "***"}
    assert 0 < options["settings"].init_timeout < 60
    assert 0 < options["settings"].finish_timeout < 60
    values = {"train/loss": 0.25, "evaluation/num_distinct": 7, "score/score_best": 0.5}
    assert fake.calls[2][1] == {"at": 2, "step": 2, "evaluations": 7, "seconds": 3.5, **values}
    assert fake.step_metrics == {"step": None, "evaluations": None, "seconds": None, "*": "step"}
    again, _ = log_two_steps(monkeypatch, tmp_path, "online")
    assert again.calls[0][1]["id"] == options["id"], "a resumed run goes on in the same wandb run"


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
    options = WandbConfig(mode="disabled")
    with MetricLogger(tmp_path, planned=PlannedWork(num_steps=1), print_every=1, wandb=options, config={}) as logger:
        logger.write(1, {"loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_wandb_skips_steps_that_a_killed_session_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log_two_steps(monkeypatch, tmp_path, "offline")
    fake = FakeWandb({})
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = WandbLog(tmp_path, WandbConfig(mode="offline"), config={}, print_line=pytest.fail, logged_step=2)
    for step in (1, 2, 3):
        log.write(step, {"loss": 0.5})
    assert [options["at"] for name, options in fake.calls if name == "log"] == [3]
    other = FakeWandb({})
    monkeypatch.setitem(sys.modules, "wandb", other)
    (tmp_path / "new").mkdir()
    log = WandbLog(tmp_path / "new", WandbConfig(mode="offline"), config={}, print_line=pytest.fail, logged_step=2)
    log.write(1, {"loss": 0.5})
    assert [options["at"] for name, options in other.calls if name == "log"] == [1], "no session has logged to wandb"


def test_failed_run_has_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for state, exit_code in (("failed", 1), ("completed", 0), ("interrupted", 0)):
        fake = FakeWandb({})
        monkeypatch.setitem(sys.modules, "wandb", fake)
        log = WandbLog(tmp_path, WandbConfig(mode="offline"), config={}, print_line=pytest.fail)
        log.close(RunResults(Results(), checkpoint=None, architectures=(), report=None, state=state, seconds=2.5))
        assert fake.calls[-1] == ("finish", {"exit_code": exit_code})
        assert fake.summary == {"state": state, "total_seconds": 2.5}
