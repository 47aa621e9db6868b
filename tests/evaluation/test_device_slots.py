"""Device slots of the pool: assignment, memory, lost devices, mixed devices, and the choice of auto."""

from __future__ import annotations

import io
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.errors import UserError
from gflownet.evaluation.config import check_evaluation
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.execution import restored, saved
from gflownet.evaluation.executors import choice, machine
from gflownet.evaluation.executors import devices as device_module
from gflownet.evaluation.executors.base import Handle
from gflownet.evaluation.executors.choice import chosen_executor
from gflownet.evaluation.executors.devices import CORE, DEVICES, Slot, slots_of
from gflownet.evaluation.executors.machine import num_cores
from gflownet.evaluation.executors.pool import PoolExecutor
from gflownet.evaluation.job import EvaluationStatus, Job, Outcome
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.task import CandidateTraining, Score
from tests.evaluation.candidates import StubCandidate, classifier_graph, config_with
from tests.evaluation.fake_devices import MEMORY, DeviceTask, FakeDevices
from tests.evaluation.poison_tasks import PoisonTask
from tests.test_trainer import wait_until

OK, CRASHED, OUT_OF_MEMORY = EvaluationStatus.OK, EvaluationStatus.CRASHED, EvaluationStatus.OUT_OF_MEMORY
SLOW = pytest.mark.slow
NO_GPU = "no CUDA device: torch.cuda.is_available() is false"


def evaluation(device: str, *options: str):
    return config_with(f"evaluation.device={device}", *(f"evaluation.{each}" for each in options)).evaluation


def pool_of(folder: Path, device: str, *options: str, place: str = "cpu") -> PoolExecutor:
    config = evaluation(device, *options)
    return PoolExecutor(DeviceTask(folder), config, devices=FakeDevices(folder, place=place))


def outcomes(pool: PoolExecutor, *keys: str) -> list[Outcome]:
    return finished(pool, [pool.submit(Job((StubCandidate(key),), (1,)), deadline=60) for key in keys])


def finished(pool: PoolExecutor, handles: list[Handle]) -> list[Outcome]:
    while waiting := [handle for handle in handles if handle.outcomes is None]:
        assert pool.wait(waiting, timeout=60)
    return [outcome for handle in handles for outcome in handle.outcomes or ()]


@pytest.mark.parametrize(
    ("device", "options", "expected"),
    [
        ("cuda:1", ["slots_per_device=2"], {"cuda:1": 2}),
        ("cuda", ["slots_per_device=3"], {"cuda:0": 3, "cuda:1": 3}),
        ("cuda:0,1", ["slots_per_device=4", "capacity=3"], {"cuda:0": 2, "cuda:1": 1}),
        ("cuda:0", ["capacity=1"], {"cuda:0": 1}),
        ("cuda:0", [], {"cuda:0": 4}),  # by memory: 2 GB each
        ("cuda", [], {"cuda:0": 3, "cuda:1": 3}),  # by cores
        ("cpu", [], {"cpu": 6}),
        ("auto", ["capacity=2"], {"cpu": 2}),
        ("cpu,cuda:0", ["slots_per_device=2"], {"cuda:0": 2, "cpu": 4}),
        ("cuda:0,cpu", ["slots_per_device=2", "capacity=2"], {"cuda:0": 2, "cpu": 1}),
    ],
)
def test_slots_follow_options_memory_and_cores(monkeypatch, tmp_path, device, options, expected):
    monkeypatch.setattr(device_module, "num_cores", lambda: 6)
    slots = slots_of(evaluation(device, *options), FakeDevices(tmp_path))
    assert Counter(slot.device for slot in slots) == expected
    for name in expected.keys() - {"cpu"}:
        total = 0.5 if "slots_per_device=4" in options and name == "cuda:0" else 0.25 if "capacity=3" in options else 1
        shares = [slot.share + 500_000_000 / MEMORY for slot in slots if slot.device == name]
        assert sum(shares) == pytest.approx(total)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("cuda:2", "evaluation.device=cuda:2: expected cuda:0 to cuda:1, got cuda:2"),
        ("mps", f"evaluation.device=mps: expected a device mps, got none: {device_module._FORKED}"),
    ],
)
def test_absent_device_is_a_user_error(tmp_path, device, reason):
    with pytest.raises(UserError) as error:
        pool_of(tmp_path, device)
    assert str(error.value) == reason


@pytest.mark.parametrize(
    ("is_built", "visible", "cause"),
    [
        (False, "0", f"torch {torch.__version__} is built without CUDA"),
        (True, "", "CUDA_VISIBLE_DEVICES hides all"),
        (True, "-1", "CUDA_VISIBLE_DEVICES hides all"),
        (True, None, "no driver"),
        (True, "0", "no driver"),
        (True, "MIG-1c2d", "no device answers"),
    ],
)
def test_cause_of_an_absent_gpu(monkeypatch, is_built, visible, cause):
    monkeypatch.setattr(machine, "_has_cuda", lambda: is_built)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    num = None if cause == "no device answers" else 0
    monkeypatch.setattr(device_module, "num_cuda_devices", lambda: num)
    monkeypatch.setattr(device_module, "_SURVEY", "print([])")
    with pytest.raises(UserError) as error:
        slots_of(evaluation("cuda:0"), DEVICES)
    assert str(error.value) == f"evaluation.device=cuda:0: expected a device cuda:0, got none: {cause}"


def test_survey_reads_memories_in_another_process(monkeypatch):
    code = "import os; print('a warning'); print([int(x) for x in os.environ['CUDA_VISIBLE_DEVICES'].split(',')])"
    monkeypatch.setattr(device_module, "_SURVEY", code)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setattr(FakeDevices, "cause", lambda self: "")
    assert device_module._cuda_memories("5,7") == (5, 7)
    monkeypatch.setattr(device_module, "_SURVEY", "raise SystemExit(1)")
    assert device_module._cuda_memories("other") == ()


def test_lost_device_is_named_by_an_error_of_cuda():
    assert DEVICES.is_lost("RuntimeError: CUDA error: uncorrectable ECC error encountered (a.py:3)")
    assert not DEVICES.is_lost("RuntimeError: CUDA error: device-side assert triggered")
    assert not DEVICES.is_lost("RuntimeError: the server is unavailable")
    assert not DEVICES.is_lost(None)


def test_a_device_needs_the_pool():
    task = DeviceTask(Path())
    assert chosen_executor(evaluation("cuda:0"), task) == "pool"
    for executor, words in (("inline", "executor pool, got inline"), ("ray", "evaluation.ray.num_gpus with ray")):
        with pytest.raises(ValueError, match=f"^evaluation.device=cuda: expected {words}$"):
            check_evaluation(evaluation("cuda", f"executor={executor}"))


def started(folder: Path) -> int:
    path = folder / "evaluated"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_mixed_slots_share_the_jobs_and_a_replaced_worker_gets_the_same_slot(tmp_path):
    devices = FakeDevices(tmp_path)
    with pool_of(tmp_path, "cpu,cuda:1", "slots_per_device=1", "capacity=2") as pool:
        handles = [pool.submit(Job((StubCandidate(f"wait {each}"),), (1,)), deadline=60) for each in range(2)]
        wait_until(lambda: started(tmp_path) == 2, seconds=60)
        ((device, worker),) = devices.taken()
        os.kill(worker, signal.SIGKILL)
        handles.append(pool.submit(Job((StubCandidate("a"),), (1,)), deadline=60))
        wait_until(lambda: len(devices.taken()) == 2, seconds=60)
        assert devices.taken()[1][0] == device == "cuda:1"
        for each in range(2):
            (tmp_path / f"wait {each}").touch()
        results = finished(pool, handles)
        assert sorted(outcome.status for outcome in results) == [CRASHED, OK, OK]
        assert [outcome.score.metrics["on_device"] for outcome in results if outcome.score is not None] == [0.0, 1.0]


@pytest.mark.slow
def test_out_of_memory_of_one_slot_leaves_the_others_alone(tmp_path):
    names = ["a", "b", "too large", "c", "breaks the context", "d"]
    candidates = [StubCandidate(name) for name in names]
    config = evaluation("cuda:0", "slots_per_device=2")
    (tmp_path / "occupied").touch()  # the memory of a slot, at the start
    with pool_of(tmp_path, "cuda:0", "slots_per_device=2") as pool, EvaluationStore(tmp_path / "store.sqlite") as store:
        evaluations = Dispatcher(DeviceTask(tmp_path), store, pool, config=config, seed=1).evaluate(candidates, step=1)
    assert [each.status for each in evaluations] == [OK, OK, OUT_OF_MEMORY, OK, CRASHED, OK]
    cap = (0.5 - 500_000_000 / MEMORY) * MEMORY
    assert f"CUDA out of memory: expected at most {cap:.0f} bytes" in (evaluations[2].error or "")
    assert list(tmp_path.glob("given back by *")), "after each job"
    assert not (tmp_path / "occupied").exists()
    counts = Counter((tmp_path / "evaluated").read_text().splitlines())
    assert [counts[name] for name in ("a", "b", "c", "d")] == [1] * 4
    assert counts["too large"] in (2, 3), "retried alone, after the group if it was in one"


@pytest.mark.slow
def test_lost_device_costs_its_slots_and_the_last_one_ends_the_run(tmp_path):
    lines: list[str] = []
    with pool_of(tmp_path, "cuda:0,1", "slots_per_device=2") as pool:
        pool.notify = lines.append
        assert {outcome.status for outcome in outcomes(pool, "lose one", *"abcdefgh")} == {OK}
        lost = next(tmp_path.glob("*.lost")).stem
        reason = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
        assert len(lines) == 1
        assert lines[0].startswith(f"evaluation.device: lost {lost}, its candidates go to the other slots: {reason}")
        assert pool.capacity in (2, 3), "the other slot of the device is lost with its next job"
        with pytest.raises(UserError, match=r"^evaluation.device: expected a device that answers, lost cuda:\d, the"):
            outcomes(pool, "lose all", "lose all", "i", "j")
        assert pool.capacity == 0


@pytest.mark.slow
def test_device_that_does_not_answer_is_lost_at_the_start(tmp_path):
    (tmp_path / "cuda:0.lost").touch()
    with pool_of(tmp_path, "cuda:0,1", "slots_per_device=1") as pool:
        (outcome,) = outcomes(pool, "a")
        assert outcome.status is OK
        assert {device for device, _ in FakeDevices(tmp_path).taken()} == {"cuda:1"}


@pytest.mark.slow
def test_owner_watches_the_memory_of_the_host(tmp_path):
    with pool_of(tmp_path, "cuda:0", "slots_per_device=1", "memory_limit=1.2") as pool:
        first, second = outcomes(pool, "fills the host", "a")
    assert (first.status, second.status) == (OUT_OF_MEMORY, OK)
    assert first.is_transient
    assert (first.error or "").startswith("expected at most 1.2 GB of memory, got ")


class TrainingOnMeta(CandidateTraining):
    def score(self):
        return Score(0.5)

    def test(self):
        return None

    def state_dict(self):
        return {
            "model": {"weight": torch.ones(2, device="meta")},
            "averages": [torch.ones(1, device="meta")],
            "step": 3,
        }


def test_saved_trainings_are_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.ones_like(self, device="cpu"))  # of the meta device
    state: Any = restored(saved(TrainingOnMeta().state_dict()))
    assert state == {"model": {"weight": state["model"]["weight"]}, "averages": [torch.ones(1)], "step": 3}
    assert {state["model"]["weight"].device.type, state["averages"][0].device.type} == {"cpu"}


def test_auto_is_the_gpus_for_tasks_that_move_to_a_device(monkeypatch, tmp_path):
    options, devices = evaluation("auto", "slots_per_device=1"), FakeDevices()
    gpus = slots_of(options, devices, task=DeviceTask(tmp_path))
    assert [slot.device for slot in gpus] == ["cuda:0", "cuda:1"]
    assert slots_of(options, devices, task=PoisonTask(tmp_path)) == (CORE,) * num_cores()
    monkeypatch.setattr(machine, "_has_cuda", lambda: False)
    assert slots_of(evaluation("auto"), DEVICES, task=DeviceTask(tmp_path)) == (CORE,) * num_cores()
    assert DEVICES.memories() == ()


@pytest.mark.slow
def test_auto_moves_tasks_to_the_gpus(tmp_path):
    with pool_of(tmp_path, "auto", "slots_per_device=1", place="meta") as pool:
        (outcome,) = outcomes(pool, "a")
        assert outcome.score is not None
        assert (outcome.score.metrics, pool.capacity) == ({"on_device": 1.0, "moved": 1.0}, 2)


def test_auto_has_a_pool_for_a_gpu_of_one_core(monkeypatch, tmp_path):
    monkeypatch.setattr(choice, "num_cores", lambda: 1)
    monkeypatch.setattr(choice, "DEVICES", FakeDevices())
    tasks = DeviceTask(tmp_path), PoisonTask(tmp_path)
    assert [chosen_executor(evaluation("auto"), task) for task in tasks] == ["pool", "inline"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)
@pytest.mark.cuda
def test_scores_on_a_gpu_equal_those_of_the_cpu_within_rounding():
    from tasks.digits import DigitsTask

    options = ("evaluation.num_epochs=2", "evaluation.capacity=1")
    config = config_with(*options)
    task, graphs = DigitsTask(config), [classifier_graph((16, "relu")), classifier_graph((24, "tanh"))]
    job = Job(tuple(graphs), (1, 2), fidelity=2, saves_training=True, tests=True)
    results = []
    for slot in (CORE, Slot("cuda:0", 0.5)):
        with PoolExecutor(task, config.evaluation, slots=[slot]) as pool:
            handle = pool.submit(job, deadline=None)
            pool.wait([handle], timeout=None)
            results.append(handle.outcomes or ())
    for on_cpu, on_gpu in zip(*results, strict=True):
        assert on_gpu.status is OK, on_gpu.error
        assert on_gpu.score is not None
        assert on_cpu.score is not None
        assert on_gpu.score.value == pytest.approx(on_cpu.score.value, abs=0.02)
        state = torch.load(io.BytesIO(on_gpu.training), weights_only=True)
        assert {value.device.type for value in state["model"].values()} == {"cpu"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)
@pytest.mark.cuda
def test_survey_sees_the_gpus_of_torch():
    assert len(DEVICES.memories()) == torch.cuda.device_count()
