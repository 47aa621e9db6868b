"""Ported names in DataLoaders that the caller starts, and public reports about proxies of other projects."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from gflownet.training.random_states import get_random_state, set_random_state
from gflownet.utils.multiprocessing_proxy import (
    get_worker_device,
    get_worker_info,
    get_worker_rng,
    mp_object_wrapper,
    set_main_process_device,
    set_worker_rng_seed,
)
from gflownet.workers.process import seed_all
from tests.workers.messages import TwoArgumentError


class Buffer:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def push(self, *items: Any) -> None:
        self.items += items

    def sample(self, count: int) -> list[Any]:
        return self.items[:count]

    def fail(self) -> None:
        raise TwoArgumentError(1, "full")

    def __len__(self) -> int:
        return len(self.items)


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, rows: torch.Tensor, *, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        return rows * self.factor + shift, rows.sum()

    def log_z(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.mean() * self.factor


class Ported(IterableDataset):
    """A sampling iterator as ported code has them: it holds placeholders and finds its worker by itself."""

    def __init__(self, model: Any, replay: Any) -> None:
        self.model, self.replay = model, replay

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        assert info is not None
        rows = torch.full((2,), float(info.id), device=get_worker_device())
        scaled, total = self.model(rows, shift=1.0)
        self.replay.push(info.id)
        try:
            self.replay.fail()
        except TwoArgumentError:
            pass
        except RuntimeError as error:
            failure = str(error)
        results = (scaled.tolist(), float(total), float(self.model.log_z(rows + 1)))
        yield {
            "results": [info.id, *results, str(self.model.device), bool(self.replay), len(self.replay.sample(1))],
            "failure": failure,
            "draw": float(get_worker_rng().uniform()),
        }


@pytest.mark.parametrize("options", [{}, {"pickle_messages": True}, {"sb_size": 4096}], ids=str)
def test_mp_object_wrapper_in_plain_dataloader(options):
    replay = Buffer()
    wrappers = [mp_object_wrapper(obj, 2, cast_types=(), **options) for obj in (Scale(), replay)]
    model, items = (wrapper.placeholder for wrapper in wrappers)
    sizes: dict[str, Any] = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "fork"}
    rows = list(DataLoader(Ported(model, items), **sizes, generator=torch.Generator().manual_seed(1)))
    assert [row["failure"].split(":")[0] for row in rows] == ["tests.workers.messages.TwoArgumentError"] * 2
    for worker, row in enumerate(rows):
        assert row["results"] == [worker, [3.0 * worker + 1] * 2, 2.0 * worker, 3.0 * worker + 3, "cpu", True, 1]
    assert rows[0]["draw"] != rows[1]["draw"]
    assert sorted(replay.items) == [0, 1]
    assert len(items) == 2  # in the main process, too
    for wrapper in wrappers:
        wrapper.terminate()
        wrapper.terminate()
    assert not any(wrapper._server.thread.is_alive() for wrapper in wrappers)
    with pytest.raises(ConnectionError, match="the main process closed the connection"):
        len(items)


def test_get_worker_device(monkeypatch):
    set_main_process_device(torch.device("meta"))
    try:
        assert get_worker_device() == torch.device("meta")
        monkeypatch.setattr("gflownet.workers.process.get_loader_worker_info", lambda: _LoaderInfo)
        assert get_worker_device() == torch.device("cpu")
    finally:
        set_main_process_device(torch.device("cpu"))


class _LoaderInfo:
    id, num_workers, seed = 3, 4, 17


def test_get_worker_rng_is_part_of_random_state(monkeypatch):
    state = get_random_state()
    seed_all(4)
    first = get_worker_rng().normal(size=3).tolist()
    seed_all(4)
    assert np.random.normal(size=3).tolist() == first
    seed_all(4)
    get_worker_rng().normal()  # a second value is kept for the next call
    kept = get_random_state()
    second = get_worker_rng().normal(size=3).tolist()
    set_random_state(kept)
    assert get_worker_rng().normal(size=3).tolist() == second
    set_worker_rng_seed(7)
    in_main = get_worker_rng().random_sample()
    monkeypatch.setattr("gflownet.workers.process.get_loader_worker_info", lambda: _LoaderInfo)
    set_worker_rng_seed(7)
    assert get_worker_rng().random_sample() == np.random.RandomState(10).random_sample() != in_main
    set_random_state(state)


class Echo(IterableDataset):
    """Yields whether each of a number of calls returned the tensor that was sent, from several threads at once."""

    def __init__(self, echo: Any, num_calls: int, num_threads: int = 1) -> None:
        self.echo, self.num_calls, self.num_threads = echo, num_calls, num_threads

    def __iter__(self) -> Iterator[int]:
        wrong: list[float] = []

        def call(thread: int) -> None:
            for turn in range(self.num_calls):
                sent = torch.full((3,), 1e6 * thread + 1e3 * turn + os.getpid() % 997)
                if not torch.equal(self.echo.back(sent), sent):
                    wrong.append(float(sent[0]))

        threads = [threading.Thread(target=call, args=(thread,)) for thread in range(self.num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield len(wrong)


class Served:
    """Returns its argument, also late, and counts its calls."""

    def __init__(self) -> None:
        self.entered = threading.Event()

    def back(self, value: Any) -> Any:
        return value

    def late(self, value: Any, seconds: float) -> Any:
        self.entered.set()
        time.sleep(seconds)
        return value


def loader(dataset: Any, *, num_workers: int = 1, start: str = "fork") -> Any:
    return DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=start)


WAYS = [
    ("fork", {"pickle_messages": True}),
    ("fork", {"sb_size": 256}),
    pytest.param("forkserver", {"sb_size": 256}, marks=pytest.mark.slow),
]


@pytest.fixture
def wrapper() -> Iterator[Any]:
    made = mp_object_wrapper(Served(), 1, pickle_messages=True)
    yield made
    made.terminate()


@pytest.mark.parametrize(("start", "options"), WAYS)
def test_proxy_used_by_threads_of_a_worker(start, options):
    """Report lightning#19427: a reply reached another thread."""
    wrapper = mp_object_wrapper(Served(), 1, **options)
    assert list(loader(Echo(wrapper.placeholder, 20, num_threads=4), start=start)) == [0]
    wrapper.terminate()


@pytest.mark.parametrize(("start", "options"), WAYS)
def test_proxy_used_by_two_loaders(start, options):
    """Report pytorch/data#1198: a training and a validation loader with one wrapper, and more workers than it names."""
    wrapper = mp_object_wrapper(Served(), 1, **options)
    loaders = [loader(Echo(wrapper.placeholder, 30), num_workers=n, start=start) for n in (2, 1)]
    streams = [iter(each) for each in loaders]
    main = Echo(wrapper.placeholder, 30)  # the main process calls at the same time
    assert list(main) == [0]
    assert [list(stream) for stream in streams] == [[0, 0], [0]]
    wrapper.terminate()


def leaves_call(placeholder: Any) -> None:
    threading.Thread(target=placeholder.late, args=("old", 0.2), daemon=True).start()
    time.sleep(30)


def test_proxy_after_a_killed_caller(wrapper):
    """A later process does not read the reply to a process that was killed in a call."""
    context: Any = torch.multiprocessing.get_context("fork")
    first = context.Process(target=leaves_call, args=(wrapper.placeholder,))
    first.start()
    served = wrapper._server._served["object"].target
    assert served.entered.wait(20)
    first.kill()
    first.join()
    assert list(loader(Echo(wrapper.placeholder, 20))) == [0]


def answers(inbox: Any, outbox: Any) -> None:
    placeholder = inbox.get()
    child = os.fork()  # of a caller: it must not use its parent's connection
    wrong = sum(placeholder.back(turn + child) != turn + child for turn in range(50))
    if child == 0:
        os._exit(wrong)
    outbox.put((wrong, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def test_placeholder_through_a_queue_and_in_a_child_of_a_caller(wrapper):
    context: Any = torch.multiprocessing.get_context("fork")
    inbox, outbox = context.Queue(), context.Queue()
    caller = context.Process(target=answers, args=(inbox, outbox))
    caller.start()
    inbox.put(wrapper.placeholder)
    assert outbox.get(timeout=60) == (0, 0)
    caller.join()


def interrupt(*_: Any) -> None:
    raise InterruptedError("timer")


def test_proxy_call_that_is_interrupted(wrapper):
    """The next call does not read the late reply to the interrupted one."""
    usual = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises((InterruptedError, ConnectionError)):
            wrapper.placeholder.late("old", 0.3)
        assert wrapper.placeholder.back("new") == "new"
    finally:
        signal.signal(signal.SIGALRM, usual)


class Endless(IterableDataset):
    def __init__(self, served: Any) -> None:
        self.served = served

    def __iter__(self) -> Iterator[int]:
        while True:
            self.served.late(0, 0.01)
            yield os.getpid()


@pytest.mark.parametrize("start", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_terminate_during_a_loader(wrapper, start):
    """Report recursionpharma/gflownet#59: the worker waited for a reply that never came."""
    stream = iter(loader(Endless(wrapper.placeholder), start=start))
    next(stream)
    wrapper.terminate()
    with pytest.raises(ConnectionError, match="the main process closed the connection"):
        list(stream)
    with pytest.raises(ConnectionError, match="the main process closed the connection"):
        wrapper.placeholder.back(1)


def test_wrapper_in_a_forked_child_leaves_the_server_alone(wrapper):
    """A child that drops its copy of the wrapper, or ends, does not stop the main process's server."""
    context: Any = torch.multiprocessing.get_context("fork")
    child = context.Process(target=wrapper.terminate)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert wrapper.placeholder.back(3) == 3


def test_placeholder_of_a_deleted_wrapper():
    wrapper = mp_object_wrapper(Served(), 1)
    placeholder, thread = wrapper.placeholder, wrapper._server.thread
    del wrapper
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(ConnectionError, match="the main process closed the connection"):
        placeholder.back(1)


def run_program(body: str, checkout: Any) -> subprocess.CompletedProcess:
    head = "import os, sys; from tests.utils.test_multiprocessing_proxy import *\n"
    command = [sys.executable, "-c", head + body]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_workers_end_with_killed_main_process(checkout, start):
    """Report pytorch/data#1228: workers lived on after kill -9, one waiting for a reply and one computing."""
    done = run_program(
        f"""
if __name__ == "__main__":
    wrapper = mp_object_wrapper(Served(), 1)
    streams = [iter(loader(each(wrapper.placeholder), start={start!r})) for each in (Endless, Computing)]
    print(*[next(stream) for stream in streams], flush=True)
    os.kill(os.getpid(), 9)
""",
        checkout,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers live on"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Computing(IterableDataset):
    """Calls once, then computes without end."""

    def __init__(self, served: Any) -> None:
        self.served = served

    def __iter__(self) -> Iterator[int]:
        yield self.served.back(os.getpid())
        while True:
            sum(range(10**6))


@pytest.mark.slow
def test_exit_without_terminate_prints_nothing(checkout):
    """Report recursionpharma/gflownet#78: "Exception ignored in MPObjectProxy.terminate"."""
    done = run_program(
        """
wrapper = mp_object_wrapper(Served(), 1)
other = mp_object_wrapper(Served(), 1, sb_size=1000)
print(list(loader(Echo(wrapper.placeholder, 3))), next(iter(loader(Endless(other.placeholder)))) > 0)
sys.exit(5)
""",
        checkout,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (5, "[0] True", "")
