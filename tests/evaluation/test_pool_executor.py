"""Process pool: candidates that damage their process, killed owners and workers, memory shares, loaded tasks."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gflownet.config import load_config, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation import dispatcher as dispatcher_module
from gflownet.evaluation import job as job_module
from gflownet.evaluation.dispatcher import MAX_ATTEMPTS, Dispatcher
from gflownet.evaluation.executors.base import Handle
from gflownet.evaluation.executors.devices import CORE, Slot
from gflownet.evaluation.executors.machine import memory, num_cores, num_kills_without_memory
from gflownet.evaluation.executors.owner import _Loader, _names_optimisers
from gflownet.evaluation.executors.pool import PickledTask, PoolExecutor
from gflownet.evaluation.executors.worker import MessageKind, PoolSettings, _prepare
from gflownet.evaluation.job import EvaluationStatus, Job
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.store.fingerprint import project_modules
from gflownet.graphs.assignment import Assignment
from tasks.choices import ChoicesTask, ChoicesTaskConfig
from tests.evaluation.candidates import StubCandidate, config_with
from tests.evaluation.fake_devices import FakeDevices
from tests.evaluation.poison_tasks import PoisonTask
from tests.evaluation.warm_task import WarmTask
from tests.test_trainer import wait_until

OK, FAILED, CRASHED = EvaluationStatus.OK, EvaluationStatus.FAILED, EvaluationStatus.CRASHED
TIMEOUT, OUT_OF_MEMORY = EvaluationStatus.TIMEOUT, EvaluationStatus.OUT_OF_MEMORY
SLOW = pytest.mark.slow  # tests/contracts/test_executors.py has similar poisons
OPTIONS = ("evaluation.capacity=2", "evaluation.deadline=5", "evaluation.memory_limit=4.0")
CONFIG = config_with(*OPTIONS).evaluation


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file with the key of every candidate whose evaluation began."""
    return tmp_path_factory.mktemp("poison") / "evaluations"


@pytest.fixture(scope="module")
def pool(log: Path) -> Iterator[PoolExecutor]:
    with PoolExecutor(PoisonTask(log), CONFIG) as pool:
        yield pool


def submit(pool: PoolExecutor, key: str) -> Handle:
    return pool.submit(Job((StubCandidate(key),), (1,)), deadline=60)


def status_of(pool: PoolExecutor, handle: Handle) -> EvaluationStatus:
    while handle.outcomes is None:
        assert pool.wait([handle], timeout=60)
    return handle.outcomes[0].status


def owner_of(pool: PoolExecutor) -> psutil.Process:
    assert pool._owner is not None
    return psutil.Process(pool._owner._process.pid)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(processes: list[psutil.Process]) -> None:
    end = time.monotonic() + 60
    for process in processes:
        process.kill()
    while any(map(is_alive, processes)):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_killed_worker_loses_only_its_job(pool, log):
    log.write_text("")
    handles = [submit(pool, f"sleep 0.5 {number}") for number in range(4)]
    wait_until(lambda: "sleep" in log.read_text(), seconds=60)
    kill(owner_of(pool).children()[:1])
    assert sorted(status_of(pool, handle) for handle in handles) == [CRASHED, OK, OK, OK]
    errors = {handle.outcomes[0].error for handle in handles if handle.outcomes}
    assert errors == {None, "its process was killed by SIGKILL"}


@pytest.mark.cpu_seconds(6)
def test_killed_owner_loses_no_job(pool):
    handles = [submit(pool, f"sleep 0.5 {number}") for number in range(3)]
    pool.wait(handles, timeout=0.2)
    kill([owner_of(pool)])
    assert {status_of(pool, handle) for handle in handles} == {OK}


@pytest.mark.slow
def test_killed_owner_loses_the_job_of_its_killer(pool):
    pool.start()
    kill([owner_of(pool)])  # between two jobs
    handles = [submit(pool, key) for key in ("good 1", "kill_owner", "good 2")]
    assert [status_of(pool, handle) for handle in handles] == [OK, CRASHED, OK]
    error = handles[1].outcomes[0].error if handles[1].outcomes else ""
    assert error == "the owner of its process was killed by SIGKILL"


def test_endless_candidate_is_ended_early_and_tried_again_at_the_end(tmp_path, log, pool, monkeypatch, caplog):
    """Of one second and not of 600, because the others were fast."""
    for name in ("_SHORTEST_S", "_MEDIANS"):
        monkeypatch.setattr(job_module, name, 1.0)
    monkeypatch.setattr(dispatcher_module, "_SLOW_EVERY_S", 0.05)
    log.write_text("")
    names = [f"good {number}" for number in range(6)]
    config = config_with("evaluation.deadline=600").evaluation
    with EvaluationStore(tmp_path / "evaluations.sqlite") as store:
        dispatcher = Dispatcher(PoisonTask(log), store, pool, config=config, seed=1)
        first = dispatcher.evaluate([StubCandidate(name) for name in names[:3]], step=1)
        spinning, *others = dispatcher.evaluate([StubCandidate(name) for name in ("spin", *names[3:])], step=2)
    assert ({each.status for each in (*first, *others)}, spinning.status) == ({OK}, TIMEOUT)
    assert spinning.error == "expected a result within 1 s"
    assert Counter(log.read_text().splitlines()) == Counter([*names, "spin", "spin"])
    assert log.read_text().splitlines()[-1] == "spin"
    assert [line.endswith("s, unlike most (evaluation.deadline)") for line in caplog.messages] == [True, True]


def test_capacity_and_memory_follow_the_machine():
    task = PoisonTask(Path(os.devnull))
    pool = PoolExecutor(task, config_with("evaluation.capacity=0").evaluation)
    assert pool.capacity == num_cores()
    assert pool._settings.memory_limit == memory() // (num_cores() + 1)
    assert 2**28 < memory() <= psutil.virtual_memory().total
    assert PoolExecutor(task, config_with("evaluation.memory_limit=2").evaluation)._settings.memory_limit == 2 * 10**9
    assert num_kills_without_memory() >= 0


@pytest.mark.parametrize(("script", "is_refused"), [("x = 1", True), ("if __name__ == '__main__':\n    x = 1", False)])
def test_task_of_main_script_needs_a_guard(monkeypatch, tmp_path, script, is_refused):
    (tmp_path / "script.py").write_text(script)
    main = sys.modules["__main__"]
    task_class = type("Mine", (PoisonTask,), {"__module__": "__main__"})
    for name, value in {"Mine": task_class, "__spec__": None, "__file__": str(tmp_path / "script.py")}.items():
        monkeypatch.setattr(main, name, value, raising=False)
    task = task_class(Path(os.devnull))
    if is_refused:
        with pytest.raises(UserError, match=r"^task Mine: defined in the main script, which has no `if __name__"):
            PickledTask.of(task)
    else:
        assert PickledTask.of(task).is_of_main_script


def choices_task() -> ChoicesTask:
    """Return a task that scores by a function, whose module names torch.optim and is not that of the task."""
    options = ["task_options.score=tests.evaluation.warm_task:trained", "task_options.test=''"]
    return ChoicesTask(with_task_options(load_config("choices", options), ChoicesTaskConfig))


def test_modules_of_a_function_of_the_task_are_searched_for_optimisers():
    loader = _Loader(io.BytesIO(pickle.dumps(choices_task())))
    loader.load()
    assert "tests.evaluation.warm_task" in loader.modules
    assert _names_optimisers(project_modules(loader.modules))


@pytest.mark.slow
@pytest.mark.parametrize("make", [WarmTask, choices_task])
def test_task_is_warm_in_the_process_of_each_job(make):
    with PoolExecutor(make(), config_with("evaluation.capacity=1").evaluation) as pool:
        for number in range(3):
            candidate = Assignment.of({"width": number}) if make is choices_task else StubCandidate(f"any {number}")
            handle = pool.submit(Job((candidate,), (number,)), deadline=60)
            assert status_of(pool, handle) is OK
            assert handle.outcomes is not None
            assert handle.outcomes[0].score is not None
            assert handle.outcomes[0].score.value == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fails": True}, r"^WarmTask.warm_up: FileNotFoundError: no data \(warm_task.py:\d+\)$"),
        ({"starts_thread": True}, "^task WarmTask: expected imports and a warm_up that start no .*, got lasting;"),
    ],
)
def test_warm_up_that_fails_or_starts_a_thread_is_a_user_error(options, reason):
    with PoolExecutor(WarmTask(**options), CONFIG) as pool, pytest.raises(UserError, match=reason):
        status_of(pool, submit(pool, "any"))


def test_worker_of_a_device_warms_its_task_up_before_it_is_ready():
    ours, theirs = multiprocessing.Pipe()
    slots = Slot("cuda:0"), CORE
    assert [PoolSettings(b"", "", 0, slots[k:], FakeDevices()).warms_up_once for k in (0, 1)] == [False, True]
    task = WarmTask()
    assert _prepare(task, FakeDevices(), slots[0], theirs)
    assert "data" in vars(task)
    assert not _prepare(WarmTask(fails=True), FakeDevices(), slots[0], theirs)
    kind, reason = ours.recv()
    assert kind is MessageKind.REFUSED
    assert reason.startswith("WarmTask.warm_up: FileNotFoundError: no data (warm_task.py:")


@pytest.mark.parametrize(
    ("poison", "status", "error"),
    [
        ("exit_process", CRASHED, "its process exited with status 3; it printed last: last words"),
        pytest.param("segfault", CRASHED, "its process was killed by SIGSEGV; it printed last: ", marks=SLOW),
        pytest.param("raise_base", CRASHED, "UnknownBaseError: not an Exception (poison_tasks.py:", marks=SLOW),
        pytest.param("spin", TIMEOUT, "expected a result within 5 s", marks=SLOW),
        ("allocate", OUT_OF_MEMORY, "RuntimeError: "),
        pytest.param("fork", OK, None, marks=SLOW),
        ("fork_and_segfault", CRASHED, "its process was killed by SIGSEGV"),
        ("start_program", OK, None),
        ("print_much", OK, None),
        ("change_everything", OK, None),
        ("leak_files", OK, None),
        ("use_threads", OK, None),
        pytest.param("leak_thread", OK, None, marks=SLOW),
        ("close_all_files", CRASHED, "its process "),
        pytest.param("write_into_all_files", CRASHED, "its process was killed by SIGKILL", marks=SLOW),
        ("raise_broken_text", FAILED, "BrokenTextError: its text raised RuntimeError"),
    ],
)
@pytest.mark.cpu_seconds(5)
def test_poison_affects_only_its_row(tmp_path, log, pool, poison, status, error):
    log.write_text("")
    names = [f"good {number}" for number in range(7)]
    candidates = [StubCandidate(name) for name in (*names[:5], poison, *names[5:])]
    with EvaluationStore(tmp_path / "evaluations.sqlite") as store:
        dispatcher = Dispatcher(PoisonTask(log), store, pool, config=CONFIG, seed=1)
        evaluations = dispatcher.evaluate(candidates, step=1)
        rows = [store.find(candidate) for candidate in candidates]
        again = dispatcher.evaluate(candidates, step=2)
    evaluation = evaluations.pop(5)
    assert (evaluation.status, (evaluation.error or "")[: len(error or "")]) == (status, error or "")
    assert len(evaluation.error or "") <= 4096
    assert {each.status for each in evaluations} == {OK}
    assert len({tuple(sorted((dict(each.metrics) | {"noise": 0}).items())) for each in evaluations}) == 1
    assert [row.status for row in rows if row is not None] == [OK] * 5 + [status] + [OK] * 2
    assert [each.cached for each in again] == [True] * 8
    counts = Counter(log.read_text().splitlines())
    assert [counts[name] for name in names] == [1] * 7
    # The last candidates of a job that lost its process are evaluated alone, then MAX_ATTEMPTS counts.
    assert counts[poison] in ((1,) if status in (OK, FAILED) else (MAX_ATTEMPTS, MAX_ATTEMPTS + 1))
    wait_until(lambda: not owner_of(pool).children(recursive=True), seconds=60)
