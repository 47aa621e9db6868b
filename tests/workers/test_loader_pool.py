"""DataLoader backend, and ported names in plain DataLoaders."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import signal_handling

from gflownet.training.random_states import get_random_state, set_random_state
from gflownet.utils.multiprocessing_proxy import (
    get_worker_device,
    get_worker_info,
    get_worker_rng,
    mp_object_wrapper,
    set_main_process_device,
    set_worker_rng_seed,
)
from gflownet.workers.pool import WorkerError
from gflownet.workers.process import seed_all
from gflownet.workers.transport import PickleTransport
from tests.workers import producers
from tests.workers.messages import TwoArgumentError
from tests.workers.pools import workers


def test_loader_pool_killed_worker_error():
    with workers(PickleTransport(), producers.DiesAtOnce(), backend="dataloader", num_workers=2) as pool:
        with pytest.raises(WorkerError) as caught:
            pool.next()
        assert str(caught.value).endswith("; workers.backend=dataloader restarts none, workers.backend=processes does")
        assert caught.value.__suppress_context__


def ignore(*_: Any) -> None:
    pass


def test_loader_pool_death_does_not_interrupt_main(monkeypatch):
    """Torch's own handler of SIGCHLD would raise there; it is the next message that fails."""
    usual = signal.signal(signal.SIGCHLD, ignore)
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)  # as in a process without DataLoaders
    try:
        with workers(PickleTransport(), producers.sample, backend="dataloader") as pool:
            os.kill(pool.next().pid, signal.SIGKILL)
            assert signal.getsignal(signal.SIGCHLD) is ignore
            with pytest.raises(WorkerError, match="was killed by SIGKILL"):
                [pool.next() for _ in range(2)]
    finally:
        signal.signal(signal.SIGCHLD, usual)


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
    sizes: dict[str, Any] = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "forkserver"}
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
