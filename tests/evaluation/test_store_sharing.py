"""Several runs on one store: each graph is paid once, also when a run is killed or kills itself."""

import time
from collections import Counter
from pathlib import Path

import pytest

from gflownet.evaluation.store import EvaluationStatus, EvaluationStore, Identity
from tests.evaluation.sharing_runs import BATCH, logged, start_run
from tests.evaluation.stub_rows import StubCandidate

DEADLINE_S = 60.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "evaluations.log"


def rows_of(store: EvaluationStore, num: int) -> list:
    return store.find_many([Identity.of(StubCandidate(str(i))) for i in range(num)])


def test_two_runs_pay_each_graph_once(database: str, log: Path) -> None:
    options = {"num_graphs": 32, "seconds": 0.01}
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
