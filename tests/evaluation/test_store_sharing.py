"""Several runs on one store: each graph is paid once, also when a run is killed or kills itself."""

import multiprocessing
import os
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from gflownet.evaluation import dispatcher as dispatcher_module
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.store.evaluations import EvaluationStatus, EvaluationStore, Identity
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


def start_run(url: str, log: Path, run: str, **options: Any) -> BaseProcess:
    """Start a process that calls `_run`."""
    process = _CONTEXT.Process(target=_run, args=(url, log, run), kwargs=options, daemon=True)
    process.start()
    return process


def logged(log: Path) -> list[tuple[str, str]]:
    if not log.exists():
        return []
    return [(run, key) for run, _, key in (line.partition(" ") for line in log.read_text().splitlines())]


def _run(
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
) -> None:
    """Evaluate graphs 0, 1, ... in batches, or the last ones first; exit with 3 after a stop request."""
    task = LogsEvaluations(log, run, seconds=seconds, poison=poison)
    dispatcher_module.LEASE = lease  # of this process
    config = config_with().evaluation

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


DEADLINE_S = 60.0
of_sqlite = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "evaluations.log"


def rows_of(store: EvaluationStore, num: int) -> list:
    return store.find_many([Identity.of(StubCandidate(str(i))) for i in range(num)])


def test_two_runs_pay_each_graph_once(database: str, log: Path) -> None:
    options: dict[str, Any] = {"num_graphs": 32, "seconds": 0.01, "lease": 600.0}
    runs = [
        start_run(database, log, "first", **options),
        start_run(database, log, "second", is_reversed=True, **options),
    ]
    for run in runs:
        run.join(DEADLINE_S)
    assert [run.exitcode for run in runs] == [0, 0]
    evaluations = logged(log)
    assert sorted(Counter(key for _, key in evaluations).values()) == [1] * 32
    assert {run for run, _ in evaluations} == {"first", "second"}
    with EvaluationStore(database) as store:
        assert (store.count(EvaluationStatus.OK), store.count(EvaluationStatus.RUNNING)) == (32, 0)


@of_sqlite
def test_killed_run_loses_and_doubles_nothing(database: str, log: Path) -> None:
    """The other run takes over what was running, within one lease."""
    killed = start_run(database, log, "killed", num_graphs=40, seconds=0.02)
    end = time.monotonic() + DEADLINE_S
    while len(logged(log)) < 12 and killed.is_alive() and time.monotonic() < end:
        time.sleep(0.01)
    other = start_run(database, log, "other", num_graphs=40, seconds=0.02)
    killed.kill()
    killed.join(DEADLINE_S)
    other.join(DEADLINE_S)
    assert other.exitcode == 0
    with EvaluationStore(database) as store:
        rows = rows_of(store, 40)
        assert (store.count(EvaluationStatus.OK), store.count(EvaluationStatus.RUNNING)) == (40, 0)
    stored_runs = {row.key: row.run for row in rows}
    paid = Counter(key for _, key in logged(log))
    twice = {key for key, num in paid.items() if num > 1}
    assert set(paid.values()) <= {1, 2}
    assert len(twice) <= BATCH  # those that the killed run had not stored
    assert {stored_runs[key] for key in twice} <= {"other"}
    assert sum(run == "killed" for run in stored_runs.values()) >= 8


@of_sqlite
def test_stopped_run_gives_back_its_graphs(database: str, log: Path) -> None:
    lease = 600.0
    first = start_run(database, log, "first", num_graphs=40, lease=lease, seconds=0.01, stop_after=BATCH + 1)
    first.join(DEADLINE_S)
    assert first.exitcode == 3
    second = start_run(database, log, "second", num_graphs=40, lease=lease)
    second.join(DEADLINE_S)
    assert second.exitcode == 0
    with EvaluationStore(database) as store:
        assert {row.attempts for row in rows_of(store, 40)} == {1}


@of_sqlite
def test_graph_that_ends_the_main_process_is_quarantined(database: str, log: Path) -> None:
    """Inline: the first two runs die, the third one finishes; no other graph is blamed."""
    exit_codes = []
    for _ in range(3):
        run = start_run(database, log, "run", num_graphs=16, poison="5", lease=600.0)
        run.join(DEADLINE_S)
        exit_codes.append(run.exitcode)
    assert exit_codes == [70, 70, 0]
    with EvaluationStore(database) as store:
        rows = rows_of(store, 16)
    statuses = {row.key: row.status for row in rows}
    assert statuses.pop("5") is EvaluationStatus.CRASHED
    assert set(statuses.values()) == {EvaluationStatus.OK}
    assert rows[5].error == "the process of the run ended in each of 2 evaluations of this graph"
    assert (rows[5].score, rows[5].attempts) == (0.05, 2)
    assert Counter(key for _, key in logged(log))["5"] == 2
