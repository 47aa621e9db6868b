"""Killed and terminated runs, in every phase, and their resumed sessions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gflownet.records.status import RunState, read_status
from gflownet.train import main
from tests.tiny_run import metric_rows
from tests.toy_tasks import RewardsHiddenNodes

SETTINGS = (
    "wandb.mode=disabled",
    "num_training_steps=5",
    "algo.num_from_policy=4",
    "replay.num_from_replay=2",
    "replay.warmup=2",
    "model.num_emb=8",
    "model.num_layers=1",
    "model.num_heads=1",
    "env.max_hidden_nodes=2",
    "env.max_edges=4",
    "checkpoint_every=2",
    "report.every=0",
    "final.top=0",
)
TEN_MINUTES = 600.0
# One process imports everything and runs each command line in a child; it prints status and time of the end of each.
HOST = """
import json, os, signal, sys, time
import gflownet.certificate
import gflownet.report.page
import gflownet.run.trainer
from gflownet.cli import interrupts
from gflownet.train import main

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests were started with nohup
for name, end_s, arguments in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        for number, end in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{end}", os.O_WRONLY | os.O_CREAT), number)
        interrupts.END_S = end_s
        status = main(arguments)
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), time.monotonic(), flush=True)
"""


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


class StuckStep(Stuck):
    def log_reward(self, scores, conditioning):
        self.num_calls += 1
        if self.num_calls == 7:
            self.stop_here()
        return super().log_reward(scores, conditioning)


class HangsUp(StuckStep):
    number = signal.SIGHUP


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
    end_s: float = 300.0  # seconds until the process ends in any case; few where no report is expected
    is_resumed: bool = True

    @property
    def name(self) -> str:
        return self.task.rpartition(":")[2]


OWN = "tests.test_ended_runs:"
ENDINGS = {
    "fast": (
        Ending(f"{OWN}HangsUp", 129, "step 4 is abandoned: a resumed run continues from the last checkpoint"),
        Ending(f"{OWN}StuckReport", 143, end_s=5.0, is_resumed=False),
    ),
    "slow": (
        Ending("tests.toy_tasks:DiesOnce", -signal.SIGKILL),
        Ending("tests.toy_tasks:Terminates", 143, "best architectures"),
        Ending(f"{OWN}StuckStart", -signal.SIGTERM),
        Ending(f"{OWN}StuckStep", 143, "step 4 is abandoned"),
        Ending(f"{OWN}StuckFinal", 143, "best architectures", ("final.top=1", "evaluation.executor=inline")),
        Ending(f"{OWN}StuckCertificate", 143, "certificate: none, interrupted", ("certify=true",)),
        Ending(f"{OWN}StuckReport", 143, end_s=5.0),
    ),
}


@pytest.fixture(scope="module", params=["fast", pytest.param("slow", marks=pytest.mark.slow)])
def ended(request, tmp_path_factory, checkout) -> tuple[Path, list[tuple[Ending, list[tuple[int, float]]]]]:
    """Return a folder with an uninterrupted run and ended ones, and status and time of the end of their sessions."""
    folder, endings = tmp_path_factory.mktemp("ended"), ENDINGS[request.param]
    assert main([*SETTINGS, "task=tests.toy_tasks:RewardsHiddenNodes", f"log_dir={folder / 'whole'}"]) == 0
    commands = []
    for ending in endings:
        options = [*SETTINGS, f"task={ending.task}", f"log_dir={folder / ending.name}", *ending.options]
        commands.append((str(folder / f"{ending.name} first"), ending.end_s, options))
        if ending.is_resumed:
            commands.append((str(folder / f"{ending.name} again"), 300.0, [*options, "resume=auto"]))
    command = [sys.executable, "-c", HOST, json.dumps(commands)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True, timeout=500)
    ends = iter((int(line.split()[0]), float(line.split()[1])) for line in done.stdout.splitlines())
    return folder, [(ending, [next(ends) for _ in range(1 + ending.is_resumed)]) for ending in endings]


def test_ended_runs_stop_in_time_and_resume_exactly(ended):
    folder, results = ended
    for ending, sessions in results:
        name = ending.name
        assert [status for status, _ in sessions] == [ending.status, 0][: len(sessions)], name
        assert ending.words in (folder / f"{name} first.out").read_text(), name
        if (folder / f"{name}.signal").exists():
            assert sessions[0][1] - float((folder / f"{name}.signal").read_text()) < 60, "not the ten minutes of a step"
        if ending.is_resumed:
            assert metric_rows(folder / name) == metric_rows(folder / "whole"), name
            assert "best architectures" in (folder / f"{name} again.out").read_text(), name
            assert (folder / f"{name} again.err").read_text() == "", name


def test_signal_is_recorded_before_the_run_ends(ended):
    """In a run whose report takes too long."""
    folder, results = ended
    error = (folder / "StuckReport first.err").read_text()
    assert error.startswith("\nstopping: running evaluations are cancelled")
    assert error.endswith("stopped 5 s after the signal, before the report was complete\n")
    if not next(ending.is_resumed for ending, _ in results if ending.name == "StuckReport"):
        status = read_status(folder / "StuckReport")
        assert status is not None
        assert (status.state, status.message) == (RunState.INTERRUPTED, "SIGTERM")
