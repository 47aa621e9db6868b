from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from gflownet.workers.buffer import MessageTooLarge, SharedPinnedBuffer
from gflownet.workers.packing import MessageError
from tests.workers.messages import assert_same, built_batch, cases

CUDA = torch.device("cuda")


@pytest.fixture
def buffer():
    with_room = SharedPinnedBuffer(10_000)
    yield with_room
    with_room.close()


@pytest.mark.parametrize("name", cases())
def test_what_is_written_can_be_read_and_viewed(buffer, name):
    message = cases()[name]
    structure = buffer.write(message)
    assert_same(buffer.read(structure), message)
    assert_same(buffer.view(structure), message)
    assert_same(buffer.transfer(structure, torch.device("cpu")), message)


def test_a_view_lies_in_the_buffer_and_what_is_read_does_not(buffer):
    structure = buffer.write((torch.zeros(4), torch.arange(3)))
    view, own = buffer.view(structure), buffer.read(structure)
    buffer.write((torch.ones(4), torch.arange(3)))
    assert view[0].tolist() == [1.0] * 4
    assert own[0].tolist() == [0.0] * 4
    assert view[0].untyped_storage().data_ptr() == view[1].untyped_storage().data_ptr()


def test_what_is_read_keeps_no_memory_but_its_own(buffer):
    first, second = buffer.read(buffer.write((torch.zeros(4), torch.zeros(1000))))
    assert first.untyped_storage().nbytes() == first.nbytes
    assert second.untyped_storage().nbytes() == second.nbytes


def test_a_transfer_moves_the_used_bytes_in_one_piece(buffer, monkeypatch):
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


def test_what_does_not_fit_is_refused_and_leaves_the_buffer_as_it_was():
    buffer = SharedPinnedBuffer(100)  # becomes 128
    structure = buffer.write(torch.arange(32, dtype=torch.int32))
    with pytest.raises(MessageTooLarge, match="expected a message of at most 128 bytes, got one of 192") as caught:
        buffer.write(torch.zeros(33, dtype=torch.int32))
    assert caught.value.num_bytes == 192
    assert buffer.view(structure).tolist() == list(range(32))


def test_a_message_may_fill_the_buffer():
    buffer = SharedPinnedBuffer(128)
    message = (torch.arange(16), torch.zeros(0, 3), torch.zeros(2, 0, dtype=torch.complex128))
    assert_same(buffer.read(buffer.write(message)), message)


def test_a_gradient_is_refused(buffer):
    with pytest.raises(MessageError, match="requires one"):
        buffer.write(torch.ones(1, requires_grad=True))


def test_views_outlive_a_closed_buffer_which_takes_nothing_more(buffer):
    view = buffer.view(buffer.write(torch.arange(5)))
    buffer.close()
    assert view.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(MessageTooLarge):
        buffer.write(torch.ones(1))


def test_it_holds_one_descriptor_until_its_process_is_started_and_no_name():
    before = len(os.listdir("/proc/self/fd"))
    buffer = SharedPinnedBuffer(1 << 20)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert os.readlink(f"/proc/self/fd/{buffer._descriptor}") == "/memfd:gflownet-messages (deleted)"
    buffer.detach()
    assert len(os.listdir("/proc/self/fd")) == before
    assert_same(buffer.read(buffer.write(torch.ones(3))), torch.ones(3))


def test_memory_is_taken_when_it_is_written():
    """A generous size costs nothing: these are 64 GiB."""
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
def test_for_cuda_the_memory_is_pinned_and_it_says_whether_that_was_done(monkeypatch, status, is_pinned):
    fake = FakeCuda(status)
    monkeypatch.setattr(torch.cuda, "cudart", fake.runtime)
    buffer = SharedPinnedBuffer(256, CUDA)
    assert buffer.is_pinned is is_pinned
    address = buffer.view(buffer.write(torch.zeros(64))).data_ptr()
    buffer.close()
    assert fake.calls == [("register", address, 256, 0), *([("unregister", address)] if is_pinned else [])]
    assert not buffer.is_pinned


def test_for_the_cpu_nothing_is_pinned(buffer):
    assert not buffer.is_pinned


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: pins real memory")


@needs_cuda
def test_on_a_cuda_device_the_memory_is_pinned_until_it_is_closed():
    buffer = SharedPinnedBuffer(1 << 20, CUDA)
    view = buffer.view(buffer.write(torch.arange(5.0)))
    assert buffer.is_pinned
    assert view.is_pinned()
    buffer.close()
    assert not buffer.is_pinned
    assert view.tolist() == [0, 1, 2, 3, 4]
    assert not view.is_pinned()


@needs_cuda
@pytest.mark.parametrize("name", cases())
def test_on_a_cuda_device_messages_arrive_and_go_back(name):
    message, buffer = cases()[name], SharedPinnedBuffer(1 << 16, CUDA)
    there = buffer.transfer(buffer.write(message), CUDA)
    assert_same(buffer.read(buffer.write(there)), message)
    buffer.close()
