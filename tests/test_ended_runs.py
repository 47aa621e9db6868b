"""Killed and terminated runs, in every phase, and their resumed sessions; tests/run/test_stages.py ends stages."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gflownet.records.status import RunState, read_status
from gflownet.terminal import interrupts
from gflownet.train import main
from tests.finished_runs import FinishedRuns
from tests.small_run import SMALL
from tests.tiny_run import metric_rows
from tests.toy_tasks import RewardsHiddenNodes

SETTINGS = (*SMALL, "report.every=0")
TEN_MINUTES = 600.0


class Stuck(RewardsHiddenNodes):
    """Sends a signal at one place of a run, once, and then takes ten minutes there."""

    number = signal.SIGTERM
    num_calls = 0

    def stop_here(self) -> None:
        note = Path(f"{cast(Any, self.config).log_dir}.signal")
        if not note.exists():
            note.write_text(repr(time.monotonic()))
            os.kill(os.getpid(), self.number)
            end = time.monotonic() + TEN_MINUTES
            while time.monotonic() < end:
                time.sleep(0.01)


class StuckStart(Stuck):
    def __init__(self, config) -> None:
        super().__init__(config)
        self.stop_here()


class HangsUp(Stuck):
    number = signal.SIGHUP

    def log_reward(self, scores, conditioning):
        self.num_calls += 1
        if self.num_calls == 7:
            self.stop_here()
        return super().log_reward(scores, conditioning)


class StuckFinal(Stuck):
    is_cheap = False

    def test(self, graph, *, seed):
        self.stop_here()
        return super().test(graph, seed=seed)


class StuckCertificate(Stuck):
    def sample_conditioning(self, num, *, generator):
        if num > 100:  # the certificate looks for quantiles
            self.stop_here()
        return super().sample_conditioning(num, generator=generator)


class StuckReport(Stuck):
    def words(self, graph) -> str:
        if Path(f"{cast(Any, self.config).log_dir}.last").exists():
            self.stop_here()
        return super().words(graph)

    def test(self, graph, *, seed):
        Path(f"{cast(Any, self.config).log_dir}.last").touch()
        return super().test(graph, seed=seed)


@dataclass(frozen=True)
class Ending:
    """A run that a signal ends."""

    task: str
    status: int
    words: str = ""  # on stdout
    options: tuple[str, ...] = ()
    abandon_s: float = 0.5  # seconds until a step is abandoned
    end_s: float = 300.0  # seconds until the process ends in any case; few where no report is expected

    def session(self, folder: Path, *options: str) -> tuple[int, str, str]:
        """Take a session in a fork of this process; return its status, output and errors."""
        streams = [folder.with_suffix(f".{name}") for name in ("out", "err")]
        child = os.fork()
        if not child:
            for number, path in enumerate(streams, 1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests were started with nohup
            interrupts.ABANDON_S, interrupts.END_S = self.abandon_s, self.end_s
            status = main([*SETTINGS, f"task={self.task}", f"log_dir={folder}", *self.options, *options])
            sys.stdout.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output, error = (path.read_text() for path in streams)
        return status, output, error


OWN = "tests.test_ended_runs:"
ENDINGS = {
    "step": Ending(f"{OWN}HangsUp", 129, "is abandoned: a resumed run continues from the last checkpoint"),
    "report": Ending(f"{OWN}StuckReport", 143, end_s=1.0),
}
SLOW = {
    "killed": Ending("tests.toy_tasks:DiesOnce", -signal.SIGKILL),
    "terminated": Ending("tests.toy_tasks:Terminates", 143, "best architectures"),
    "start": Ending(f"{OWN}StuckStart", -signal.SIGTERM),
    "final stage": Ending(f"{OWN}StuckFinal", 143, "best architectures", ("final.top=1", "evaluation.executor=inline")),
    "certificate": Ending(f"{OWN}StuckCertificate", 143, "certificate: none, interrupted", ("certify=true",)),
}


@pytest.mark.parametrize("name", [*ENDINGS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_ended_run_stops_in_time_and_resumes_exactly(name: str, finished_runs: FinishedRuns, tmp_path: Path):
    ending, folder = (ENDINGS | SLOW)[name], tmp_path / "run"
    status, output, error = ending.session(folder)
    assert status == ending.status
    assert ending.words in output
    note = Path(f"{folder}.signal")
    assert not note.exists() or time.monotonic() - float(note.read_text()) < 60, "not the ten minutes of a step"
    if name == "report":
        assert error.startswith("\nstopping: running evaluations are cancelled")
        assert error.endswith("stopped 1 s after the signal, before the report was complete\n")
        recorded = read_status(folder)
        assert recorded is not None
        assert (recorded.state, recorded.message) == (RunState.INTERRUPTED, "SIGTERM")
    status, output, error = ending.session(folder, "resume=auto")
    assert (status, error) == (0, "")
    assert "best architectures" in output
    assert metric_rows(folder) == metric_rows(finished_runs("toy"))
