"""Runs on Ray: the end of its processes, lost processes, further machines, addresses. See also the contract."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from gflownet.errors import UserError
from gflownet.evaluation.executors import ray_executor, ray_worker
from gflownet.evaluation.executors.base import Handle
from gflownet.evaluation.executors.choice import places
from gflownet.evaluation.executors.pool import PickledTask
from gflownet.evaluation.executors.ray_executor import JobResources, RayExecutor, checked_address
from gflownet.evaluation.job import EvaluationStatus, Job
from gflownet.evaluation.task import GFNTask
from tests.evaluation.candidates import StubCandidate, config_with
from tests.evaluation.fake_devices import FakeDevices
from tests.evaluation.ray_nodes import ray_node, running_node
from tests.evaluation.ray_tasks import FOLDER_VARIABLE
from tests.toy_tasks import RewardsHiddenNodes

CONFIG = config_with()
ON_RAY = config_with("evaluation.ray.address=auto").evaluation
RUN = (
    "task=digits",
    "algo.num_from_policy=4",
    "model.num_layers=1",
    "model.num_emb=8",
    "env.max_hidden_nodes=3",
    "wandb.mode=disabled",
    "evaluation.executor=ray",
)
# Seconds for Ray to start on a busy machine, and for its processes to end.
START_S, END_S = 240.0, 60.0


def wait_until(condition: Callable[[], Any], *, timeout: float = START_S) -> bool:
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


@contextmanager
def ray_run(folder: Path, *overrides: str, **environment: str) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Start a run in its own process, and yield it with the folder in which the task notes its processes."""
    pytest.importorskip("ray", reason="Ray is not installed")
    notes = folder / "notes"
    notes.mkdir(parents=True)
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "gflownet.train", *RUN, *overrides]
    process = subprocess.Popen(
        [*command, f"log_dir={folder / 'run'}"],
        env={**os.environ, "OMP_NUM_THREADS": "1", FOLDER_VARIABLE: str(notes), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, notes
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_lost_worker_and_stop_signal(tmp_path):
    """A killed worker is retried; SIGTERM: checkpoint, exit 143; kill -9: the cluster ends the jobs and goes on."""
    task = ("task=tests.evaluation.ray_tasks:WaitsOnce", "num_training_steps=1000", "checkpoint_every=1000")
    with (
        running_node("--num-cpus=2") as (node, address),
        ray_run(tmp_path, *task, RAY_ADDRESS=address) as (process, notes),
    ):
        assert wait_until(lambda: any(notes.iterdir())), process.poll()
        pid, raylet = next(notes.iterdir()).name.split()
        assert int(raylet) in descendants(psutil.Process(node.pid))
        (worker,) = (each for each in psutil.Process(int(raylet)).children() if int(pid) in descendants(each))
        worker.kill()
        assert wait_until(lambda: metrics_of(tmp_path / "run")), process.poll()
        assert not psutil.pid_exists(int(pid))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, errors
        assert errors.strip().startswith("stopping")
        assert errors.strip().count("\n") == 0, errors
        first, *_ = metrics_of(tmp_path / "run")
        assert first["failed_share"] == 0
        assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2
        with ray_run(tmp_path / "killed", "task=tests.evaluation.ray_tasks:NotesItsProcess", RAY_ADDRESS=address) as (
            process,
            notes,
        ):
            assert wait_until(lambda: any(notes.iterdir())), process.poll()
            (pid, _), *_ = (path.name.split() for path in notes.iterdir())
            process.kill()
            assert wait_until(lambda: not psutil.pid_exists(int(pid)), timeout=END_S)
        assert node.poll() is None


@pytest.mark.slow
def test_second_node_takes_work(tmp_path):
    """A machine that joins a running cluster gets jobs, and costs only these if it is lost.

    The cluster expects a token. The end of a run leaves it running.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "c" * 64}
    with (
        running_node("--num-cpus=1", **token) as (first, address),
        ray_run(
            tmp_path,
            "task=tests.evaluation.ray_tasks:NotesItsProcess",
            f"evaluation.ray.address={address}",
            "num_training_steps=1000",
            **token,
        ) as (process, notes),
    ):
        assert wait_until(lambda: raylets_of(notes)), process.poll()
        assert len(raylets_of(notes)) == 1
        with ray_node("--num-cpus=1", f"--address={address}", **token) as second:
            assert wait_until(lambda: len(raylets_of(notes)) == 2), process.poll()
            for node in psutil.Process(second.pid).children():
                node.kill()
        # That machine is gone now: its jobs are done by the first.
        num_rows = len(metrics_of(tmp_path / "run"))
        assert wait_until(lambda: len(metrics_of(tmp_path / "run")) > num_rows + 1), process.poll()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, errors
        assert first.poll() is None
        assert any("raylet" in each.name() for each in psutil.Process(first.pid).children())
    assert {row["failed_share"] for row in metrics_of(tmp_path / "run")} == {0.0}


@pytest.mark.slow
def test_declared_gpus_and_lost_node(tmp_path):
    """Candidates get the GPUs that Ray assigns; after the loss of a node, unfinished ones alone are trained again."""
    pytest.importorskip("ray", reason="Ray is not installed")
    task = "task=tests.evaluation.ray_tasks:NotesItsDevices"
    with (
        running_node("--num-cpus=1", "--num-gpus=1") as (_, address),
        ray_node(f"--address={address}", "--num-cpus=3", "--num-gpus=2") as second,
    ):
        options = (task, f"evaluation.ray.address={address}", "num_training_steps=1000")
        assert wait_until(lambda: len(psutil.Process(second.pid).children()) > 0)
        refused_folder = tmp_path / "refused"
        refused_folder.mkdir()
        with ray_run(refused_folder, *options, "evaluation.ray.num_gpus=4") as (process, notes):
            _, errors = process.communicate(timeout=START_S)
            assert process.returncode == 2, errors
            assert errors.strip().count("\n") == 0, errors
            assert "expected a machine of the cluster with 1 CPU, 4 GPU for a candidate, got 1 CPU, 1 GPU" in errors
            assert not any(notes.iterdir())
        with ray_run(tmp_path, *options, "evaluation.ray.num_gpus=1") as (process, notes):
            assert wait_until(lambda: len({name[:2] for name in noted(notes, "finished")}) == 3), process.poll()
            devices = {(node, gpu) for node, gpu, *_ in noted(notes, "finished")}
            assert sorted(gpu for _, gpu in devices) == ["0", "0", "1"]
            lost = next(node for node, gpu in devices if gpu == "1")
            (notes / "hold.new").write_text(lost)
            (notes / "hold.new").rename(notes / "hold")
            assert wait_until(lambda: len(noted(notes, "waiting")) == 2), process.poll()
            for node in psutil.Process(second.pid).children():
                node.kill()
            unfinished = {key for *_, key in noted(notes, "waiting")}
            assert wait_until(lambda: unfinished <= {name[2] for name in noted(notes, "finished")}), process.poll()
            num_rows = len(metrics_of(tmp_path / "run"))
            assert wait_until(lambda: len(metrics_of(tmp_path / "run")) > num_rows), process.poll()
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 128 + signal.SIGTERM, errors
            assert output.count("evaluation.ray.num_gpus: no GPU on ") == 1
    keys = [name[2] for name in noted(notes, "finished")]
    assert len(keys) == len(set(keys))
    assert {row["failed_share"] for row in metrics_of(tmp_path / "run")} == {0.0}


def test_lost_owner_is_no_error_of_the_user(monkeypatch):
    """What Ray lost on a worker's machine costs the job, is retried, and the task is sent again."""
    exceptions = pytest.importorskip("ray.exceptions", reason="Ray is not installed")

    def lost(*_: Any, **__: Any) -> None:
        raise exceptions.OwnerDiedError("a" * 28, "owner", "site")

    monkeypatch.setattr(ray_worker, "_pool_of", lost)
    reply = ray_worker.evaluate_job([None], "id", b"", deadline=None, memory_limit=None, paths=[])
    assert isinstance(reply, ray_worker.Failed)
    assert reply.is_lost
    monkeypatch.setattr(RayExecutor, "_connected", lambda self: None)
    executor = RayExecutor(RewardsHiddenNodes(CONFIG), ON_RAY)
    executor._ray = SimpleNamespace(get=lambda reference: reply, exceptions=exceptions)
    executor._reference = "of the task"
    handle = Handle(Job((StubCandidate("a"),), (0,)))
    executor._running[handle] = "of the job"
    executor._collect(handle)
    assert handle.outcomes is not None
    assert [(each.status, each.is_transient) for each in handle.outcomes] == [(EvaluationStatus.CRASHED, True)]
    assert "OwnerDiedError" in (handle.outcomes[0].error or "")
    assert executor._reference is None


def metrics_of(run: Path) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def raylets_of(notes: Path) -> set[str]:
    return {path.name.split()[1] for path in notes.iterdir()}


def noted(notes: Path, kind: str) -> list[tuple[str, ...]]:
    """Return node, GPUs and graph of each note of `NotesItsDevices` of a kind."""
    return [tuple(path.name.split()[1:]) for path in notes.iterdir() if path.name.startswith(f"{kind} ")]


def descendants(process: psutil.Process) -> set[int]:
    return {each.pid for each in process.children(recursive=True)}


@pytest.mark.parametrize(
    ("overrides", "node", "num_places"),
    [
        ((), {"CPU": 4.0}, 4),
        (("resources={CPU: 0.5}",), {"CPU": 4.0}, 8),
        (("resources={CPU: 3}",), {"CPU": 4.0}, 1),
        (("num_gpus=1",), {"CPU": 4.0}, 0),
        (("num_gpus=1",), {"CPU": 4.0, "GPU": 2.0}, 2),
        (("num_gpus=0.6",), {"CPU": 4.0, "GPU": 2.0}, 2),  # not 3: a fraction lies on one GPU
        (("num_gpus=0.1", "resources={CPU: 0.1}"), {"CPU": 4.0, "GPU": 2.0}, 20),
        (("num_gpus=2",), {"CPU": 4.0, "GPU": 3.0}, 1),
        (("resources={a100: 0.3}",), {"CPU": 16.0, "a100": 3.0}, 10),
        (("resources={a100: 1}",), {"CPU": 4.0}, 0),
        (("memory_limit=2",), {"CPU": 4.0, "memory": 5e9}, 2),
    ],
)
def test_places_of_a_machine(overrides, node, num_places):
    keys = [f"evaluation.{'' if each.startswith('memory') else 'ray.'}{each}" for each in overrides]
    assert JobResources.of(config_with(*keys).evaluation).num_places(node) == num_places


def test_places_of_a_plan_are_those_of_the_cluster(monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed")
    nodes = [{"CPU": 3.0}, {"CPU": 2.0}]
    monkeypatch.setattr(RayExecutor, "_connected", lambda self: SimpleNamespace(nodes=nodes))
    config = config_with("evaluation.executor=ray", "evaluation.ray.address=auto").evaluation
    assert places(RewardsHiddenNodes(CONFIG), config) == 5


def test_missing_resources_raise(monkeypatch):
    """The line names what a candidate needs and what the machines have; the connection is closed."""
    pytest.importorskip("ray", reason="Ray is not installed")
    closed = []
    nodes = [{"CPU": 2.0, "memory": 4e9, "node:a": 1.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}]
    cluster = SimpleNamespace(nodes=nodes, close=lambda: closed.append(True))
    monkeypatch.setattr(ray_executor, "RayCluster", lambda *_, **__: cluster)
    options = ("evaluation.ray.num_gpus=0.5", "evaluation.memory_limit=8", "evaluation.ray.resources={a100: 1}")
    config = config_with("evaluation.ray.address=auto", *options).evaluation
    with pytest.raises(UserError) as error:
        RayExecutor(RewardsHiddenNodes(CONFIG), config)
    assert str(error.value) == (
        "evaluation.ray: expected a machine of the cluster with 1 CPU, 0.5 GPU, 8 GB memory, 1 a100 for a candidate, "
        "got 2 CPU, 0 GPU, 4 GB memory, 0 a100; 8 CPU, 1 GPU, 0 GB memory, 0 a100"
    )
    assert closed == [True]


def test_pool_restarts_on_other_devices(monkeypatch):
    """Processes of a candidate see the GPUs of their first job: another assignment needs other processes."""
    devices = ["0"]
    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": list(devices)})
    task = PickledTask.of(RewardsHiddenNodes(CONFIG))
    fake = SimpleNamespace(get=lambda _: task, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", cast(Any, fake))
    monkeypatch.setattr(ray_worker, "_pool", None)
    closed: list[Any] = []
    monkeypatch.setattr(ray_worker.PoolExecutor, "close", lambda pool: closed.append(pool))

    def pool() -> Any:
        return ray_worker._pool_of(None, "id", memory_limit=1.0, paths=[])

    first = pool()
    assert pool() is first
    devices[:] = ["1"]
    second = pool()
    assert second is not first
    assert closed == [first]
    assert pool() is second


def test_candidate_has_a_slot_on_the_gpu_of_ray(monkeypatch):
    monkeypatch.setattr(FakeDevices, "memories", lambda self: ())
    monkeypatch.setattr(ray_worker, "DEVICES", FakeDevices())
    assert ray_worker._slots(0.25) == (), "a declared GPU that torch does not see"
    words = f"evaluation.ray.num_gpus: no GPU on {platform.node()}, its candidates train on cores: "
    assert (ray_worker._remark(0.25), ray_worker._remark(0)) == (f"{words}no device answers", "")
    monkeypatch.undo()
    monkeypatch.setattr(ray_worker, "DEVICES", FakeDevices())
    ((slot,), (whole,)) = ray_worker._slots(0.25), ray_worker._slots(2)
    assert (slot.device, whole.device) == ("cuda:0", "cuda:0")
    assert slot.share < 0.25 < whole.share < 1
    assert (ray_worker._slots(0), ray_worker._remark(2)) == ((), "")


def test_missing_ray_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'gflownet\[ray\]'"):
        RayExecutor(RewardsHiddenNodes(CONFIG), CONFIG.evaluation)


def test_task_of_main_script_raises(monkeypatch):
    task_class = type("MainTask", (RewardsHiddenNodes,), {"__module__": "__main__"})
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "MainTask", task_class, raising=False)
    monkeypatch.setattr(main, "__spec__", "as with python -m")
    task = cast(GFNTask, task_class(CONFIG))
    with pytest.raises(UserError, match="task MainTask: expected a class that Ray's workers can import"):
        RayExecutor(task, ON_RAY)


@pytest.mark.parametrize("address", ["somewhere", "host:", "host:port", "host:70000", "ray://host:10001", "http://a:1"])
def test_invalid_address_raises(address):
    with pytest.raises(UserError, match=r"evaluation\.ray\.address: expected HOST:PORT or auto, got"):
        checked_address(address)


def test_address_of_the_environment(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match=r"start one on this machine with `ray start --head`, then set evaluation\.ray"):
        checked_address("")
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert checked_address("") == "auto"
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    with pytest.raises(UserError, match="RAY_ADDRESS: expected HOST:PORT or auto, got 'nowhere'"):
        checked_address("")


def test_unreachable_address_raises():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # not listening
        port = free.getsockname()[1]
        config = config_with(f"evaluation.ray.address=127.0.0.1:{port}").evaluation
        with pytest.raises(UserError, match=f"evaluation.ray.address=127.0.0.1:{port}: no Ray cluster answers there"):
            RayExecutor(RewardsHiddenNodes(CONFIG), config)
