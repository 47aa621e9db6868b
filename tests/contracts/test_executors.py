"""Contract of every executor: order, outcomes of the inline executor, deadlines, cancelling, crashes, its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import torch

from gflownet.errors import UserError
from gflownet.evaluation.executors.base import Executor, Handle
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.executors.pool import PoolExecutor
from gflownet.evaluation.executors.ray_executor import RayExecutor
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.task import GFNTask, Score
from tasks.digits import DigitsTask
from tests.evaluation.candidates import StubCandidate, classifier_graph, config_with
from tests.evaluation.fake_devices import FakeDevices
from tests.evaluation.poison_tasks import PoisonTask
from tests.evaluation.ray_nodes import running_node
from tests.test_trainer import wait_until

OK, CRASHED, TIMEOUT = EvaluationStatus.OK, EvaluationStatus.CRASHED, EvaluationStatus.TIMEOUT
CONFIG = config_with("evaluation.capacity=2", "evaluation.num_epochs=1")
SLOTS = config_with("evaluation.device=cuda:0,1", "evaluation.slots_per_device=1", "evaluation.num_epochs=1")
ONE_PROCESS = config_with("evaluation.capacity=1")
SIZES = (8, 9)
EXECUTORS: dict[str, Callable[[GFNTask], Executor]] = {
    "inline": InlineExecutor,
    "pool": lambda task: PoolExecutor(task, CONFIG.evaluation),
    "slots": lambda task: PoolExecutor(task, SLOTS.evaluation, devices=FakeDevices()),
    "ray": lambda task: RayExecutor(task, CONFIG.evaluation),
}
# Ray starts slowly, and slots of devices are a pool.
PARAMETERS = [pytest.param(name, marks=pytest.mark.slow) if name in ("ray", "slots") else name for name in EXECUTORS]
IN_PROCESS = {"inline"}
ISOLATED = PARAMETERS[len(IN_PROCESS) :]


class DigitsOrPoison(DigitsTask):
    """Trains graphs; candidates without a graph damage their process."""

    def evaluate_many(self, graphs, *, seeds):
        if isinstance(graphs[0], StubCandidate):
            return GFNTask.evaluate_many(self, graphs, seeds=seeds)
        return super().evaluate_many(graphs, seeds=seeds)

    def evaluate(self, graph, *, seed):
        if isinstance(graph, StubCandidate):
            return PoisonTask(Path(os.devnull)).evaluate(graph, seed=seed)
        return super().evaluate(graph, seed=seed)


class CannotBePickled(PoisonTask):
    def __init__(self) -> None:
        super().__init__(Path(os.devnull))
        self.scale = lambda score: score


class CannotBeLoaded(PoisonTask):
    def __setstate__(self, state: dict) -> None:
        raise ImportError("no module named gone")


class DiesWhenLoaded(PoisonTask):
    """Ends every process that loads it."""

    def __setstate__(self, state: dict) -> None:
        print("no licence")
        os._exit(5)


class Executors(dict[str, Executor]):
    """The executors by name, each built at its first use; a Ray cluster until the end of the stack."""

    def __init__(self, stack: ExitStack, variables: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._stack, self._variables = stack, variables

    def __missing__(self, name: str) -> Executor:
        if name == "ray":
            _, address = self._stack.enter_context(running_node("--num-cpus=2"))
            self._variables.setenv("RAY_ADDRESS", address)
        self[name] = self._stack.enter_context(closing(EXECUTORS[name](DigitsOrPoison(cast(Any, CONFIG)))))
        return self[name]


@pytest.fixture(scope="module")
def executors() -> Iterator[Executors]:
    num_threads, before = torch.get_num_threads(), processes()
    torch.set_num_threads(1)  # as in a run: sums depend on the number of threads
    with ExitStack() as stack, pytest.MonkeyPatch.context() as variables:
        yield Executors(stack, variables)
        is_ray = "RAY_ADDRESS" in os.environ  # its processes are shared by the executors of a process
    wait_until(lambda: is_ray or processes() <= before, seconds=60)
    torch.set_num_threads(num_threads)


@pytest.fixture(params=PARAMETERS)
def executor(request, executors) -> Executor:
    return executors[request.param]


@pytest.fixture(params=ISOLATED)
def isolated(request, executors) -> Executor:
    return executors[request.param]


def stub_job(*keys: str) -> Job:
    return Job(tuple(StubCandidate(key) for key in keys), tuple(range(len(keys))))


def finished(executor: Executor, jobs: Sequence[Job], *, deadline: float | None = 60.0) -> list[tuple[Outcome, ...]]:
    handles = [executor.submit(job, deadline=deadline) for job in jobs]
    wait_for_all(executor, handles)
    return [outcomes_of(handle) for handle in handles]


def wait_for_all(executor: Executor, handles: Sequence[Handle]) -> None:
    waiting = list(handles)
    while waiting:
        done = executor.wait(waiting, timeout=300)  # Ray starts in 20 s, on a busy machine in a minute
        assert done
        waiting = [handle for handle in waiting if handle not in done]


def outcomes_of(handle: Handle) -> tuple[Outcome, ...]:
    assert handle.outcomes is not None
    return handle.outcomes


def score_of(outcome: Outcome) -> Score:
    assert outcome.score is not None
    return outcome.score


def without_seconds(outcome: Outcome) -> tuple:
    return outcome.status, outcome.score, outcome.curve, outcome.error, outcome.test, outcome.weights


def test_outcomes_equal_those_of_inline(executors, isolated):
    graphs = [classifier_graph((size, name)) for size in SIZES for name in ("relu", "tanh")]
    pairs = [(tuple(graphs[i : i + 2]), tuple(range(i, i + 2))) for i in range(0, len(graphs), 2)]
    jobs = [Job(*pair, tests=True, returns_weights=True) for pair in pairs]
    expected = finished(executors["inline"], jobs)
    outcomes = finished(isolated, jobs)
    assert [[without_seconds(each) for each in job] for job in outcomes] == [
        [without_seconds(each) for each in job] for job in expected
    ]
    assert {outcome.status for job in outcomes for outcome in job} == {OK}
    assert len({score_of(outcome).value for job in outcomes for outcome in job}) > 1
    # Their kept weights give the predictions that were scored.
    trained = [tuple(outcome.weights for outcome in job) for job in outcomes]
    split = [Job(*pair, trainings=each, split="validation") for pair, each in zip(pairs, trained, strict=True)]
    targets = DigitsTask(cast(Any, CONFIG)).validation.targets.numpy()
    for job, scored in zip(finished(isolated, split), outcomes, strict=True):
        accuracies = [(cast(Any, outcome.outputs).argmax(1) == targets).mean() for outcome in job]
        assert accuracies == pytest.approx([score_of(outcome).value for outcome in scored])


def test_seeds_decide_random_numbers(executors, executor):
    (expected,) = finished(executors["inline"], [stub_job("a", "b", "c")])
    (outcomes,) = finished(executor, [stub_job("a", "b", "c")])
    noises = [score_of(outcome).metrics["noise"] for outcome in outcomes]
    assert noises == [score_of(outcome).metrics["noise"] for outcome in expected]
    assert len(set(noises)) == 3


def test_changed_global_state_reaches_no_other_candidate(executors, executor):
    (clean,) = finished(executors["inline"], [stub_job("a")])[0]
    (_, second), (in_next_job,) = (
        finished(executor, [stub_job("set_default_dtype", "a")])[0],
        finished(executor, [stub_job("a")])[0],
    )
    for outcome in (in_next_job, clean, second):
        assert [score_of(outcome).metrics[name] for name in ("item_size", "has_low_precision")] == [4, 0]


@pytest.mark.parametrize("name", [pytest.param("ray", marks=pytest.mark.slow), "pool"])
@pytest.mark.parametrize("poison", ["patch_class", "patch_function", "change_everything"])
def test_changed_process_reaches_no_other_job_on_a_core(executors, name, poison):
    for (outcome,) in finished(executors[name], [stub_job(poison), *(stub_job(f"a {i}") for i in range(3))])[1:]:
        assert (outcome.status, score_of(outcome).value) == (OK, 0.5)
        assert [score_of(outcome).metrics[name] for name in ("poison", "path", "is_at_root")] == [0, 1, 0]


def test_base_exception_crashes_only_its_candidate(executor):
    handle = executor.submit(stub_job("a", "exit", "b"), deadline=60)
    wait_for_all(executor, [handle])
    outcomes = outcomes_of(handle)
    assert handle.num_finished == 1
    assert [outcome.status for outcome in outcomes] == [OK, CRASHED, CRASHED]
    assert outcomes[1].is_transient
    assert "SystemExit" in (outcomes[1].error or "")


def test_error_text_is_capped(executor):
    outcomes = [
        outcome for (outcome,) in finished(executor, [stub_job("raise_huge_text"), stub_job("raise_surrogate")])
    ]
    assert [outcome.status for outcome in outcomes] == [EvaluationStatus.FAILED] * 2
    assert 1_000 < len(outcomes[0].error or "") <= 4_096
    (outcomes[1].error or "").encode()


def test_crash_affects_only_its_job(isolated):
    crashed, *others = finished(isolated, [stub_job("segfault"), *(stub_job(f"good {i}") for i in range(4))])
    assert [outcome.status for (outcome,) in (crashed, *others)] == [CRASHED, OK, OK, OK, OK]
    assert "SIGSEGV" in (crashed[0].error or "")
    assert crashed[0].is_transient


@pytest.mark.slow
def test_isolates_holds_for_executors_with_processes():
    assert [each.isolates for each in (InlineExecutor, PoolExecutor, RayExecutor)] == [False, True, True]


def test_deadline_ends_a_job_and_counts_from_its_start(isolated):
    jobs = [stub_job("spin"), *(stub_job(f"sleep 0.5 {i}") for i in range(5))]
    outcomes = [outcome for (outcome,) in finished(isolated, jobs, deadline=1.5)]
    assert [outcome.status for outcome in outcomes] == [TIMEOUT, OK, OK, OK, OK, OK]
    assert outcomes[0].error == "expected a result within 1.5 s"
    assert outcomes[0].is_transient
    assert 1.5 <= outcomes[0].seconds < 30


def test_wait_returns_with_the_first_finished_job(isolated):
    slow, fast = (isolated.submit(stub_job(key), deadline=None) for key in ("sleep 100", "good"))
    assert isolated.wait([slow, fast], timeout=None) == [fast]
    assert isolated.wait([slow], timeout=0.01) == []
    isolated.cancel(slow)


def test_cancel_ends_running_and_queued_jobs(isolated):
    handles = [isolated.submit(stub_job(f"sleep 100 {i}"), deadline=None) for i in range(3)]
    assert isolated.wait(handles, timeout=0.1) == []
    for handle in handles:
        isolated.cancel(handle)
    assert finished(isolated, [stub_job("good")])[0][0].status is OK
    assert all(handle.outcomes is None for handle in handles)


def test_cancel_of_a_finished_job_has_no_effect(executor):
    handle = executor.submit(stub_job("good"), deadline=None)
    wait_for_all(executor, [handle])
    executor.cancel(handle)
    assert outcomes_of(handle)[0].status is OK


# Ray's processes are shared by the executors of a process; their end: tests/evaluation/test_ray_executor.py.
@pytest.mark.slow  # the fixture looks at the end of the pool
@pytest.mark.parametrize("name", ["pool", "slots"])
def test_close_leaves_no_process(name):
    task, before = PoisonTask(Path(os.devnull)), processes()
    with EXECUTORS[name](task) as executor:
        assert processes() == before
        handles = [executor.submit(stub_job(key), deadline=None) for key in ("compute_forever", "good", "fork")]
        assert executor.wait(handles[1:], timeout=60)
        assert len(processes()) > len(before)
    executor.close()
    wait_until(lambda: processes() == before, seconds=60)


@pytest.mark.parametrize("name", ISOLATED)
def test_task_or_candidate_that_cannot_be_pickled_is_a_user_error(name):
    lock = Job((cast(Any, threading.Lock()),), (1,))
    pickled = pytest.raises(UserError, match="candidates: expected graphs that can be pickled")
    with EXECUTORS[name](PoisonTask(Path(os.devnull))) as executor, pickled:
        executor.submit(lock, deadline=None)
    with pytest.raises(
        UserError, match=r"^task CannotBePickled: expected a task that can be pickled: .*lambda"
    ) as error:
        EXECUTORS[name](CannotBePickled())
    assert "evaluation.executor=inline" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        pytest.param(CannotBeLoaded, "ImportError: no module named gone", marks=pytest.mark.slow),
        pytest.param(DiesWhenLoaded, "exited with status 5; it printed last: no licence", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ISOLATED)
def test_task_that_cannot_be_loaded_is_a_user_error(name, task, reason):
    build = EXECUTORS[name] if name != "pool" else lambda task: PoolExecutor(task, ONE_PROCESS.evaluation)
    with build(task(Path(os.devnull))) as executor, pytest.raises(UserError, match=reason):
        finished(executor, [stub_job("a")])


def processes() -> set[psutil.Process]:
    """Return all descendants except multiprocessing's tracker of shared resources, which lives as long as Python."""
    found = set[psutil.Process]()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended since
            if "resource_tracker" not in " ".join(process.cmdline()):
                found.add(process)
    return found
