"""Runs in processes that share a store: a dispatcher with the inline executor and a task that logs each evaluation."""

import multiprocessing
import os
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.task import GFNTask, Score
from tests.evaluation.candidates import StubCandidate, config_with

LEASE = 1.0
BATCH = 8
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


class LogsEvaluations(GFNTask):
    """Scores 0.5 after some seconds; a poisonous graph ends the process."""

    def __init__(self, log: Path, run: str, *, seconds: float, poison: str) -> None:
        super().__init__(config_with())
        self.log, self.run, self.seconds, self.poison = log, run, seconds, poison

    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        with self.log.open("a") as file:
            file.write(f"{self.run} {graph.key}\n")
        if graph.key == self.poison:
            os._exit(70)
        time.sleep(self.seconds)
        return Score(0.5)


def start_run(
    url: str,
    log: Path,
    run: str,
    *,
    num_graphs: int,
    seconds: float = 0.0,
    poison: str = "",
    lease: float = LEASE,
    stop_after: int | None = None,
    is_reversed: bool = False,
) -> BaseProcess:
    """Start a process that evaluates graphs 0, 1, ... in batches, or the last ones first.

    Its exit status is 3 after a stop request.
    """
    arguments = (url, log, run, num_graphs, seconds, poison, lease, stop_after, is_reversed)
    process = _CONTEXT.Process(target=_run, args=arguments, daemon=True)
    process.start()
    return process


def logged(log: Path) -> list[tuple[str, str]]:
    """Return run and graph of each started evaluation."""
    if not log.exists():
        return []
    return [(run, key) for run, _, key in (line.partition(" ") for line in log.read_text().splitlines())]


def _run(
    url: str,
    log: Path,
    run: str,
    num_graphs: int,
    seconds: float,
    poison: str,
    lease: float,
    stop_after: int | None,
    is_reversed: bool,
) -> None:
    task = LogsEvaluations(log, run, seconds=seconds, poison=poison)
    config = config_with(f"evaluation.lease={lease}").evaluation

    def stopped() -> bool:
        return stop_after is not None and sum(name == run for name, _ in logged(log)) >= stop_after

    with EvaluationStore(url) as store:
        store.requeue(run=run)
        dispatcher = Dispatcher(task, store, InlineExecutor(task), config=config, seed=0, run=run, stopped=stopped)
        try:
            starts = range(0, num_graphs, BATCH)
            for step, start in enumerate(reversed(starts) if is_reversed else starts):
                batch = [StubCandidate(str(i)) for i in range(start, min(start + BATCH, num_graphs))]
                dispatcher.evaluate(batch, step=step)
        except EvaluationStoppedError:
            raise SystemExit(3) from None
