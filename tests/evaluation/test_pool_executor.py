"""The process pool's own processes: monitors and workers that are killed, memory shares, preloaded modules."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gflownet.evaluation.executors.base import Handle
from gflownet.evaluation.executors.machine import memory, num_cores, num_kills_without_memory
from gflownet.evaluation.executors.pool import PoolExecutor
from gflownet.evaluation.job import EvaluationStatus, Job
from tests.evaluation.candidates import StubCandidate, config_with
from tests.evaluation.poison_tasks import PoisonTask


@pytest.fixture
def pool(poison_pool: PoolExecutor) -> PoolExecutor:
    return poison_pool


def submit(pool: PoolExecutor, key: str) -> Handle:
    return pool.submit(Job((StubCandidate(key),), (1,)), deadline=60)


def status_of(pool: PoolExecutor, handle: Handle) -> EvaluationStatus:
    while handle.outcomes is None:
        assert pool.wait([handle], timeout=60)
    return handle.outcomes[0].status


def monitors(pool: PoolExecutor) -> list[psutil.Process]:
    server = pool._context.pid()
    assert server is not None
    return psutil.Process(server).children()


def kill(processes: list[psutil.Process]) -> None:
    end = time.monotonic() + 10
    for process in processes:
        process.kill()
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_worker_killed_between_jobs_is_replaced(pool):
    assert status_of(pool, submit(pool, "good")) is EvaluationStatus.OK
    kill([worker for monitor in monitors(pool) for worker in monitor.children()])
    handles = [submit(pool, f"good {number}") for number in range(4)]
    assert {status_of(pool, handle) for handle in handles} == {EvaluationStatus.OK}


def test_killed_monitor_loses_only_its_job(pool):
    handles = [submit(pool, f"sleep 0.5 {number}") for number in range(4)]
    pool.wait(handles, timeout=0.2)
    kill(monitors(pool)[:1])
    statuses = [status_of(pool, handle) for handle in handles]
    assert set(statuses) <= {EvaluationStatus.OK, EvaluationStatus.CRASHED}
    assert statuses.count(EvaluationStatus.CRASHED) <= 1
    assert {handle.outcomes[0].error for handle in handles if handle.outcomes} <= {
        None,
        "its monitor process was killed by SIGKILL",
    }


def test_descendants_of_a_killed_monitor_end_with_the_pool():
    with PoolExecutor(PoisonTask(Path(os.devnull)), config_with("evaluation.capacity=1").evaluation) as pool:
        handle = submit(pool, "start_program_and_spin")
        program = wait_for_program()
        kill(monitors(pool))
        assert status_of(pool, handle) is EvaluationStatus.CRASHED
    assert not program.is_running()


def wait_for_program() -> psutil.Process:
    """Return the program that `start_program` has started."""
    end = time.monotonic() + 60
    while True:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if process.cmdline() == ["sleep", "1000"]:
                    return process
        assert time.monotonic() < end
        time.sleep(0.01)


def test_monitors_killed_between_jobs_are_replaced(pool):
    assert status_of(pool, submit(pool, "good")) is EvaluationStatus.OK
    kill(monitors(pool))
    handles = [submit(pool, f"good {number}") for number in range(4)]
    assert {status_of(pool, handle) for handle in handles} == {EvaluationStatus.OK}


def test_capacity_and_memory_follow_the_machine():
    task = PoisonTask(Path(os.devnull))
    pool = PoolExecutor(task, config_with("evaluation.capacity=0").evaluation)
    assert pool.capacity == num_cores()
    assert pool._settings.memory_limit == memory() // (num_cores() + 1)
    assert 2**28 < memory() <= psutil.virtual_memory().total
    assert PoolExecutor(task, config_with("evaluation.memory_limit=2").evaluation)._settings.memory_limit == 2 * 10**9
    assert num_kills_without_memory() >= 0


def test_server_imports_installed_modules_of_the_task_only(pool):
    modules = pool._context.server._preload_modules  # type: ignore[attr-defined]
    assert {"torch", "gflownet.evaluation.executors.child", "gflownet.config"} <= set(modules)
    assert not any(module.startswith("tests") for module in modules)
