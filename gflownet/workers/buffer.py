"""Memory shared by two processes: allocated once, written by one side, read in place by the other."""

from __future__ import annotations

import ctypes
import os
import struct
from multiprocessing import reduction
from typing import Any

import torch
from torch import Tensor

from gflownet.workers.packing import ALIGNMENT, DTYPES, Packed, Reader, pack, unpack

_HEADER = struct.Struct("=Q")  # precedes a structure: used bytes of the buffer


class MessageTooLarge(ValueError):  # noqa: N818
    """A message that does not fit into its buffer."""

    def __init__(self, num_bytes: int, capacity: int) -> None:
        super().__init__(num_bytes, capacity)
        self.num_bytes, self.capacity = num_bytes, capacity

    def __str__(self) -> str:
        return f"expected a message of at most {self.capacity:,} bytes, got one of {self.num_bytes:,}"


class SharedPinnedBuffer:
    """A block of shared memory for the tensors of one message at a time.

    It can be passed to a new process. It has no lock that a dead process could hold: the two sides take turns by
    exchanging messages. The memory has no name (it is not in /dev/shm): its size is not limited by /dev/shm, pages are
    allocated at the first write, and it is freed with the last process that maps it.

    Args:
        num_bytes: capacity for the tensors of a message, each aligned to 64 bytes.
        device: of the reader; for a CUDA device the memory is pinned, so that one transfer moves a message.

    Raises:
        OSError: the system has no such memory.
    """

    _descriptor = -1  # none

    def __init__(self, num_bytes: int, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008
        self.num_bytes = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        self._descriptor = os.memfd_create("gflownet-messages")
        os.ftruncate(self._descriptor, self.num_bytes)
        self._map()
        self.is_pinned = device.type == "cuda" and _pin(self._memory)

    def _map(self) -> None:
        path = f"/proc/self/fd/{self._descriptor}"
        self._memory = torch.from_file(path, shared=True, size=self.num_bytes, dtype=torch.uint8)
        self._typed = [self._memory.view(dtype) for dtype in DTYPES]

    def __getstate__(self) -> dict[str, Any]:
        """Return size and file descriptor, from which another process maps the same memory."""
        return {"num_bytes": self.num_bytes, "descriptor": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Map the memory; only the process that allocated it pins it."""
        self.num_bytes, self.is_pinned = state["num_bytes"], False
        self._descriptor = state["descriptor"].detach()
        self._map()
        self.detach()

    def detach(self) -> None:
        """Close the file descriptor, needed only to start a process; the memory stays mapped."""
        descriptor, self._descriptor = self._descriptor, -1  # first: another thread may close the other end
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = detach  # also after a failed __init__

    def close(self) -> None:
        """Release the memory; it is freed with the last tensor that views it."""
        self.detach()
        if self.is_pinned:
            _cuda_runtime().cudaHostUnregister(self._memory.data_ptr())
            self.is_pinned = False
        self._memory, self._typed = torch.empty(0, dtype=torch.uint8), []

    def write(self, message: Any) -> bytes:
        """Store the tensors of a message and return its structure, which the reader needs too.

        Raises:
            MessageTooLarge: it does not fit; the buffer is unchanged.
            MessageError: it cannot be sent at all.
        """
        packed, memory = pack(message), self._memory
        if packed.num_bytes > len(memory):
            raise MessageTooLarge(packed.num_bytes, len(memory))
        _store(packed, memory)
        return _HEADER.pack(packed.num_bytes) + packed.structure

    def view(self, structure: bytes | memoryview) -> Any:
        """Return the message with tensors that view the buffer: valid until the next message is written."""
        return unpack(structure[_HEADER.size :], _reader(self._typed))

    def read(self, structure: bytes | memoryview) -> Any:
        """Return the message with copied tensors."""
        view = _reader(self._typed)
        return unpack(structure[_HEADER.size :], lambda *layout: view(*layout).clone())

    def transfer(self, structure: bytes | memoryview, device: torch.device) -> Any:
        """Return the message with its tensors on a device, moved there in one copy."""
        (num_used,) = _HEADER.unpack_from(structure)
        memory = self._memory[:num_used].to(device)
        return unpack(structure[_HEADER.size :], _reader([memory.view(dtype) for dtype in DTYPES]))


def _cuda_runtime() -> Any:
    return torch.cuda.cudart()


def _pin(memory: Tensor) -> bool:
    """Lock the pages of this memory for CUDA; return whether that worked."""
    return int(_cuda_runtime().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0


def _store(packed: Packed, memory: Tensor) -> None:
    start = memory.data_ptr()
    for tensor, offset in zip(packed.tensors, packed.offsets, strict=True):
        if tensor.is_cpu:  # memmove takes a quarter of the time of a view and a copy
            ctypes.memmove(start + offset, tensor.data_ptr(), tensor.nbytes)
        else:
            memory[offset : offset + tensor.nbytes].view(tensor.dtype).copy_(tensor.flatten())


def _reader(typed: list[Tensor]) -> Reader:
    def read(code: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
        return typed[code].as_strided(shape, stride, offset)

    return read
