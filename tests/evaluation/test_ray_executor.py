"""The Ray executor against a real cluster on this machine: outcomes, deadlines, lost processes, errors."""

import socket
import sys
import time

import pytest
import torch

from gflownet.errors import UserError
from gflownet.evaluation.dispatcher import Dispatcher, Request
from gflownet.evaluation.executors.base import Executor, Handle
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.executors.ray_cluster import check_address
from gflownet.evaluation.executors.ray_executor import RayExecutor
from gflownet.evaluation.job import EvaluationStatus, Job
from gflownet.evaluation.store import EvaluationStore
from tasks.digits import DigitsTask
from tests.evaluation.candidates import classifier_graph, config_with
from tests.running_ray import (
    EXITS,
    HOLDS,
    NUM_CPUS,
    PAUSES,
    SEGFAULTS,
    SPINS,
    STARTS_CHILD,
    ActsBySeed,
    WaitsOnce,
    is_running,
    kill,
    ray_cluster,
    wait_until,
)
from tests.toy_tasks import CannotBePickled, RewardsHiddenNodes

__all__ = ["ray_cluster"]
CONFIG = config_with("evaluation.num_epochs=1")
GRAPH = classifier_graph((4, "relu"))
OK, TIMEOUT, CRASHED = EvaluationStatus.OK, EvaluationStatus.TIMEOUT, EvaluationStatus.CRASHED


@pytest.fixture
def executor(ray_cluster, tmp_path):
    with RayExecutor(ActsBySeed(CONFIG, tmp_path), CONFIG.evaluation, num_cpus=NUM_CPUS) as executor:
        yield executor


def submit(executor: Executor, *seeds: int, deadline: float | None = 60.0) -> Handle:
    return executor.submit(Job((GRAPH,) * len(seeds), seeds), deadline=deadline)


def wait_for_all(executor: Executor, *handles: Handle, timeout: float = 60.0) -> list[EvaluationStatus]:
    """Return the status of the first candidate of each job."""
    end = time.monotonic() + timeout
    while any(handle.outcomes is None for handle in handles) and time.monotonic() < end:
        executor.wait([handle for handle in handles if handle.outcomes is None], timeout=0.2)
    assert all(handle.outcomes for handle in handles)
    return [handle.outcomes[0].status for handle in handles if handle.outcomes]


@pytest.fixture
def one_thread():
    """Use one thread for tensors, as workers do."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def test_outcomes_equal_inline(ray_cluster, one_thread):
    task = DigitsTask(CONFIG)
    graphs = [classifier_graph((4 + size, "relu"), skip=size % 2 == 1) for size in range(6)]
    jobs = [Job(tuple(graphs[first : first + 2]), (first, 9 + first), tests=True) for first in (0, 2, 4)]
    with RayExecutor(task, CONFIG.evaluation, num_cpus=NUM_CPUS) as executor:
        handles = [executor.submit(job, deadline=60) for job in jobs]
        wait_for_all(executor, *handles)
    for handle, job in zip(handles, jobs, strict=True):
        oracle = InlineExecutor(task)
        (expected,) = oracle.wait([oracle.submit(job, deadline=None)], timeout=None)
        assert handle.outcomes is not None
        assert expected.outcomes is not None
        for outcome, other in zip(handle.outcomes, expected.outcomes, strict=True):
            assert (outcome.status, outcome.score, outcome.test) == (OK, other.score, other.test)


def test_deadline_counts_from_start(executor):
    # Two CPUs: the third job starts when the first ends, and is done 1.4 s after it was submitted.
    wait_for_all(executor, submit(executor, 1), submit(executor, 2))  # workers are ready
    handles = [submit(executor, PAUSES, deadline=1.2) for _ in range(3)]
    assert wait_for_all(executor, *handles) == [OK] * 3


@pytest.mark.parametrize("seed", [SPINS, pytest.param(HOLDS, marks=pytest.mark.slow)])
def test_deadline_ends_job(executor, seed):
    late, other = submit(executor, seed, 1, deadline=0.5), submit(executor, 2, deadline=0.5)
    assert wait_for_all(executor, late, other) == [TIMEOUT, OK]
    assert late.process_ended
    assert not other.process_ended
    assert late.outcomes is not None
    assert len(late.outcomes) == 2
    outcome = late.outcomes[0]
    assert outcome.is_transient
    assert 0.5 <= outcome.seconds < 5.0
    assert outcome.error is not None
    assert "deadline of 0.5 s" in outcome.error


@pytest.mark.parametrize("seed", [EXITS, pytest.param(SEGFAULTS, marks=pytest.mark.slow)])
def test_crash_ends_own_job_only(executor, seed):
    crashed, other = submit(executor, seed), submit(executor, 2, 3)
    assert wait_for_all(executor, crashed, other) == [CRASHED, OK]
    assert crashed.process_ended
    assert crashed.outcomes is not None
    assert crashed.outcomes[0].is_transient


def test_cancel_ends_process(executor, tmp_path):
    running, queued = [submit(executor, SPINS) for _ in range(NUM_CPUS)], submit(executor, 7)
    assert wait_until(
        lambda: len(list(tmp_path.glob(f"{SPINS}-*"))) == NUM_CPUS or bool(executor.wait(running, timeout=0))
    )
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob(f"{SPINS}-*")]
    for handle in (queued, *running):
        executor.cancel(handle)
        executor.cancel(handle)
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert executor.wait([*running, queued], timeout=0.1) == []
    assert not list(tmp_path.glob("7-*"))
    assert wait_for_all(executor, submit(executor, 8)) == [OK]


@pytest.mark.slow
def test_children_of_ended_worker_end(executor, tmp_path):
    handle = submit(executor, STARTS_CHILD)
    assert wait_until(lambda: bool(executor.wait([handle], timeout=0)) or bool(list(tmp_path.glob("child-*"))))
    (note,) = tmp_path.glob("child-*")
    executor.cancel(handle)
    assert wait_until(lambda: not is_running(int(note.name.partition("-")[2])))


def test_dispatcher_retries_after_killed_worker(ray_cluster, tmp_path):
    task = WaitsOnce(CONFIG, tmp_path)
    with (
        RayExecutor(task, CONFIG.evaluation, num_cpus=NUM_CPUS) as executor,
        EvaluationStore(tmp_path / "store.sqlite") as store,
    ):
        dispatcher = Dispatcher(task, store, executor, config=CONFIG.evaluation, seed=0)
        (ticket,) = dispatcher.submit([Request(GRAPH)], step=1)
        assert wait_until(lambda: bool(dispatcher.advance(timeout=0) or list(tmp_path.glob("attempt-*"))))
        (note,) = tmp_path.glob("attempt-*")
        kill(int(note.name.partition("-")[2]))
        assert wait_until(lambda: bool(dispatcher.advance(timeout=0.1)))
        assert ticket.record is not None
        assert (ticket.record.status, ticket.record.score) == (OK, 0.5)
        assert ticket.attempts == 2
        assert dispatcher.counts["num_retried"] == 1


def test_unpicklable_task_raises(ray_cluster):
    with pytest.raises(UserError, match=r"task CannotBePickled: cannot be sent to a Ray worker") as error:
        RayExecutor(CannotBePickled(CONFIG), CONFIG.evaluation, num_cpus=1)
    assert "\n" not in str(error.value)


def test_missing_ray_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'gflownet\[ray\]'"):
        RayExecutor(RewardsHiddenNodes(CONFIG), CONFIG.evaluation, num_cpus=1)


@pytest.mark.parametrize("address", ["somewhere", "host:", "host:port", "host:70000", "ray://host:10001", "http://a:1"])
def test_invalid_address_raises(address):
    with pytest.raises(UserError, match=r"evaluation\.ray\.address: expected HOST:PORT, auto or nothing, got"):
        check_address(address)


def test_unreachable_address_raises():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # not listening
        port = free.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(UserError, match=f"evaluation.ray.address=127.0.0.1:{port}: no Ray cluster answers there"):
            check_address(f"127.0.0.1:{port}")
    assert time.monotonic() - start < 10
