"""Messages: packing of tensors and structure, and shared buffers."""

from __future__ import annotations

import pytest
import torch

from gflownet.workers.packing import ALIGNMENT, MessageTooLarge, Packed, SharedPinnedBuffer, pack, unpack
from tests.workers.messages import built_batch


def delivered(packed: Packed):
    tensors = iter(packed.tensors)
    return unpack(packed.structure, lambda *_: next(tensors))


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


def test_buffer_views_outlive_close(buffer):
    view = buffer.view(buffer.write(torch.arange(5)))
    buffer.close()
    assert view.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(MessageTooLarge):
        buffer.write(torch.ones(1))


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
