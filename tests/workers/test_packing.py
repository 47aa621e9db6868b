"""Messages: packing of tensors and structure, and shared buffers."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Batch

from gflownet.workers.packing import (
    ALIGNMENT,
    MessageError,
    MessageTooLarge,
    Packed,
    SharedPinnedBuffer,
    map_tensors,
    pack,
    unpack,
)
from tests.workers.messages import Inner, Named, Outer, assert_same, built_batch, cases, graph


def delivered(packed: Packed):
    tensors = iter(packed.tensors)
    return unpack(packed.structure, lambda *_: next(tensors))


@pytest.mark.parametrize("name", cases())
def test_pack_unpack_round_trip(name):
    message = cases()[name]
    assert_same(delivered(pack(message)), message)


def test_pack_structure_excludes_tensor_bytes():
    packed = pack({"large": torch.zeros(10_000), "small": torch.zeros(3), "batch": built_batch()})
    assert len(packed.structure) < 1_000
    assert len(packed.tensors) == 5


def test_pack_aligns_tensors():
    packed = pack([torch.zeros(3), torch.zeros(0), torch.zeros(17), torch.zeros(1, dtype=torch.bool)])
    assert packed.offsets == [0, ALIGNMENT, ALIGNMENT, 3 * ALIGNMENT]
    assert packed.num_bytes == 4 * ALIGNMENT


def test_pack_shared_tensor_once():
    tensor = torch.ones(4)
    packed = pack((tensor, [tensor]))
    assert len(packed.tensors) == 1
    first, (second,) = delivered(packed)
    assert first is second


def test_pack_keeps_torch_geometric_batch():
    """Graphs can be extracted from a collated batch, and its storage refers to it."""
    batch = delivered(pack(Batch.from_data_list([graph(2), graph(3)])))
    assert [one.num_nodes for one in batch.to_data_list()] == [2, 3]
    assert batch.num_graphs == 2
    assert batch._store._parent() is batch
    built = delivered(pack(built_batch()))
    assert (built.num_graphs, built.num_nodes) == (3, 6)


def test_pack_keeps_extra_attributes_of_batch():
    batch = built_batch()
    batch.__dict__["note"] = "mine"
    assert delivered(pack(batch)).__dict__["note"] == "mine"


def test_map_tensors():
    message = Outer(Inner(torch.ones(2), "a"), (), {"x": torch.zeros(1)}, 2.0)
    mapped = map_tensors(message, lambda tensor: tensor + 1)
    assert_same(mapped, replace(message, inner=Inner(torch.full((2,), 2.0), "a"), by_name={"x": torch.ones(1)}))


WITH_GRAD = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (WITH_GRAD, "expected a tensor without a gradient, got one of shape [2]"),
        (WITH_GRAD * 2, "expected a tensor without"),
        (torch.nn.Parameter(torch.ones(2)), "expected a tensor without"),
        ((1, {"x": [torch.ones(1), WITH_GRAD]}), "[1]['x'][1]: expected a tensor without"),
        (Outer(Inner(WITH_GRAD, "a"), (), {}, 0.0), "inner.values: expected"),
        (Named(WITH_GRAD, 1), "values: expected"),
        (Batch(x=WITH_GRAD), "x: expected"),
        ([graph(2), threading.Lock()], "[1]: expected a picklable object"),
        ((1, threading.Lock()), "[1]: expected a picklable object: TypeError"),
        ({"f": lambda: None}, "['f']: expected a picklable object"),
    ],
)
def test_pack_unpicklable_field_raises_with_path(message, place):
    with pytest.raises(MessageError) as caught:
        pack(message)
    assert str(caught.value).startswith(place)


def test_pack_cyclic_message_raises():
    message: list = []
    message.append([message, threading.Lock()])
    with pytest.raises(MessageError, match=r"^\[0\]\[1\]: expected a picklable object"):
        pack(message)


CUDA = torch.device("cuda")


@pytest.fixture
def buffer():
    with_room = SharedPinnedBuffer(10_000)
    yield with_room
    with_room.close()


def test_buffer_view_shares_memory_and_read_copies(buffer):
    assert not buffer.is_pinned
    structure = buffer.write((torch.zeros(4), torch.arange(3)))
    view, own = buffer.view(structure), buffer.read(structure)
    buffer.write((torch.ones(4), torch.arange(3)))
    assert view[0].tolist() == [1.0] * 4
    assert own[0].tolist() == [0.0] * 4
    assert view[0].untyped_storage().data_ptr() == view[1].untyped_storage().data_ptr()
    assert [tensor.untyped_storage().nbytes() for tensor in own] == [tensor.nbytes for tensor in own]


def test_buffer_transfer_one_copy_of_used_bytes(buffer, monkeypatch):
    moves = []
    to = torch.Tensor.to

    def spy(tensor, device):
        moves.append(tensor.shape)
        return to(tensor, device, copy=True)

    structure = buffer.write(built_batch())
    monkeypatch.setattr(torch.Tensor, "to", spy)
    first = buffer.transfer(structure, torch.device("cpu"))
    assert moves == [(3 * 64,)]  # x, batch and ptr
    assert first.x.untyped_storage().data_ptr() == first.ptr.untyped_storage().data_ptr()


def test_buffer_too_large_message_raises():
    buffer = SharedPinnedBuffer(100)  # becomes 128
    structure = buffer.write(torch.arange(32, dtype=torch.int32))
    with pytest.raises(MessageTooLarge, match="expected a message of at most 128 bytes, got one of 192") as caught:
        buffer.write(torch.zeros(33, dtype=torch.int32))
    assert caught.value.num_bytes == 192
    assert buffer.view(structure).tolist() == list(range(32))


def test_buffer_exact_fit():
    buffer = SharedPinnedBuffer(128)
    message = (torch.arange(16), torch.zeros(0, 3), torch.zeros(2, 0, dtype=torch.complex128))
    assert_same(buffer.read(buffer.write(message)), message)


def test_buffer_views_outlive_close(buffer):
    view = buffer.view(buffer.write(torch.arange(5)))
    buffer.close()
    assert view.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(MessageTooLarge):
        buffer.write(torch.ones(1))


def test_buffer_file_descriptor():
    buffer = SharedPinnedBuffer(1 << 20)
    link = f"/proc/self/fd/{buffer._descriptor}"
    assert os.readlink(link) == "/memfd:gflownet-messages (deleted)"
    buffer.detach()
    assert not os.path.lexists(link) or "gflownet-messages" not in os.readlink(link)
    assert_same(buffer.read(buffer.write(torch.ones(3))), torch.ones(3))


def test_buffer_allocates_pages_on_write():
    """A large buffer is free until it is written: 64 GiB."""
    buffer = SharedPinnedBuffer(1 << 36)
    assert buffer.read(buffer.write(torch.arange(3))).tolist() == [0, 1, 2]
    buffer.close()


class FakeCuda:
    """The calls that pin memory, on a machine that has no CUDA."""

    def __init__(self, status: int) -> None:
        self.status, self.calls = status, []

    def runtime(self) -> SimpleNamespace:
        return SimpleNamespace(cudaHostRegister=self.register, cudaHostUnregister=self.unregister)

    def register(self, address: int, num_bytes: int, flags: int) -> int:
        self.calls.append(("register", address, num_bytes, flags))
        return self.status

    def unregister(self, address: int) -> int:
        self.calls.append(("unregister", address))
        return 0


@pytest.mark.parametrize(("status", "is_pinned"), [(0, True), (1, False)])
def test_buffer_pinned_for_cuda(monkeypatch, status, is_pinned):
    fake = FakeCuda(status)
    monkeypatch.setattr(torch.cuda, "cudart", fake.runtime)
    buffer = SharedPinnedBuffer(256, CUDA)
    assert buffer.is_pinned is is_pinned
    address = buffer.view(buffer.write(torch.zeros(64))).data_ptr()
    buffer.close()
    assert fake.calls == [("register", address, 256, 0), *([("unregister", address)] if is_pinned else [])]
    assert not buffer.is_pinned


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: pins real memory")


@needs_cuda
def test_buffer_pinned_until_close_on_cuda():
    buffer = SharedPinnedBuffer(1 << 20, CUDA)
    view = buffer.view(buffer.write(torch.arange(5.0)))
    assert buffer.is_pinned
    assert view.is_pinned()
    buffer.close()
    assert not buffer.is_pinned
    assert view.tolist() == [0, 1, 2, 3, 4]
    assert not view.is_pinned()
