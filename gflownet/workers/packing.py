"""Serialization of messages, and memory shared by two processes: written by one side, read in place by the other.

Dense tensors of a message are separated from the rest, a pickle.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, cast

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line, and a multiple of every item size
# The pickle holds a type's index in this tuple. Tensors of other types stay in the pickle.
DTYPES = (
    *(torch.float32, torch.int64, torch.bool, torch.float64, torch.float16, torch.bfloat16),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.complex64, torch.complex128),
)
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_OUT_OF_BAND = pickle.PickleBuffer(bytearray())  # placeholder in the pickle for the reader of tensors

# Dtype (index in DTYPES), shape, stride and offset (in elements) of a dense tensor -> the tensor.
Reader = Callable[[int, tuple[int, ...], tuple[int, ...], int], Tensor]


class MessageError(ValueError):
    """A message that cannot be sent; its text names the field and the reason."""


@dataclass(frozen=True)
class Packed:
    """A message split into its structure and its dense tensors."""

    structure: bytes  # pickle with dtype, shape and offset in place of each tensor
    tensors: list[Tensor]  # in the order in which the structure refers to them, each once
    offsets: list[int]  # byte offset of each tensor, aligned
    num_bytes: int  # of all tensors with alignment

    def store(self, memory: Tensor) -> None:
        """Write the tensors into memory of at least `num_bytes`."""
        start = memory.data_ptr()
        for tensor, offset in zip(self.tensors, self.offsets, strict=True):
            if tensor.is_cpu:  # memmove takes a quarter of the time of a view and a copy
                ctypes.memmove(start + offset, tensor.data_ptr(), tensor.nbytes)
            else:
                memory[offset : offset + tensor.nbytes].view(tensor.dtype).copy_(tensor.flatten())


def pack(message: Any) -> Packed:
    """Split a message (anything that pickle can handle) into structure and dense tensors.

    Raises:
        MessageError: a field cannot be pickled, or is a tensor that requires a gradient.
    """
    stream = io.BytesIO()
    packer = _Packer(stream)
    try:
        packer.dump(message)
    except Exception as error:
        raise _unsendable(message, error) from error
    return Packed(stream.getvalue(), packer.tensors, packer.offsets, packer.num_bytes)


def unpack(structure: bytes | memoryview, read: Reader) -> Any:
    """Return the message of a structure, with tensors from the reader."""
    return pickle.loads(structure, buffers=repeat(read))


def map_tensors(message: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a message with the function applied to every dense tensor."""
    packed = pack(message)
    tensors = map(function, packed.tensors)
    return unpack(packed.structure, lambda *_: next(tensors))


def _refuse_grad(tensor: Tensor) -> None:
    if tensor.requires_grad:
        raise MessageError(
            f"expected a tensor without a gradient, got one of shape {list(tensor.shape)} that requires one (gradients "
            "do not cross processes: detach() it)"
        )


class _Packer(pickle.Pickler):
    """Lays out dense tensors one after another, and bypasses torch_geometric's slow pickling of batches."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5, buffer_callback=lambda buffer: buffer is not _OUT_OF_BAND)
        self.tensors: list[Tensor] = []
        self.offsets: list[int] = []
        self.num_bytes = 0

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            _refuse_grad(obj)
            return self._reduce_tensor(obj)
        if _is_batch(obj):
            return _reduce_batch(obj)
        return NotImplemented

    def _reduce_tensor(self, tensor: Tensor) -> Any:
        code = _CODES.get(tensor.dtype)
        if type(tensor) is not Tensor or code is None or tensor.layout is not torch.strided or tensor.is_meta:
            return NotImplemented
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        offset = self.num_bytes
        self.tensors.append(tensor)
        self.offsets.append(offset)
        self.num_bytes = offset + -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        return _read, (_OUT_OF_BAND, code, tuple(tensor.shape), tensor.stride(), offset // tensor.itemsize)


def _read(read: Reader, code: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
    return read(code, shape, stride, offset)


def _is_batch(obj: Any) -> bool:
    """Return whether this is a torch_geometric Batch, without importing torch_geometric (two seconds)."""
    module = sys.modules.get("torch_geometric.data.batch")
    return module is not None and isinstance(obj, module.Batch)


@lru_cache
def _empty_batch(base: type) -> Any:
    from torch_geometric.data import Batch

    return Batch(_base_cls=base)  # pyright: ignore[reportCallIssue]


def _reduce_batch(batch: Any) -> Any:
    """Reduce a batch to its base class and fields; a batch with more attributes is pickled the usual way."""
    from torch_geometric.data.storage import GlobalStorage

    base, store = type(batch).__bases__[-1], batch.__dict__.get("_store")
    if type(store) is not GlobalStorage or batch.__dict__.keys() != _empty_batch(base).__dict__.keys():
        return NotImplemented
    return _rebuild_batch, (base, {name: value for name, value in store.__dict__.items() if name != "_parent"})


def _rebuild_batch(base: type, fields: dict[str, Any]) -> Any:
    from torch_geometric.data.storage import GlobalStorage

    empty = _empty_batch(base)
    batch, store = object.__new__(type(empty)), object.__new__(GlobalStorage)
    store.__dict__.update(fields, _parent=weakref.ref(batch))
    batch.__dict__.update(empty.__dict__, _store=store)
    return batch


def _unsendable(message: Any, error: Exception) -> MessageError:
    """Return the error with the path of the smallest field that cannot be sent."""
    path, error = _culprit(message, error, within=())
    reason = str(error) if isinstance(error, MessageError) else f"expected a picklable object: {error!r}"
    return MessageError(f"{path.lstrip('.')}: {reason}" if path else reason)


def _culprit(message: Any, error: Exception, *, within: tuple) -> tuple[str, Exception]:
    for path, value in _fields(message):
        if any(value is container for container in within):  # a message may contain itself
            continue
        try:
            _Packer(io.BytesIO()).dump(value)
        except Exception as narrower:
            inner_path, reason = _culprit(value, narrower, within=(*within, message))
            return path + inner_path, reason
    return "", error


def _fields(message: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every direct field of a message."""
    if isinstance(message, dict):
        yield from ((f"[{key!r}]", value) for key, value in message.items())
    elif hasattr(message, "_fields"):  # a named tuple
        yield from ((f".{name}", getattr(message, name)) for name in message._fields)
    elif isinstance(message, tuple | list):
        yield from ((f"[{index}]", value) for index, value in enumerate(message))
    elif _is_batch(message):
        yield from ((f".{name}", value) for name, value in message.to_dict().items())
    elif not isinstance(message, Tensor | type):
        yield from ((f".{name}", value) for name, value in getattr(message, "__dict__", {}).items())


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

    It has no lock that a dead process could hold: the two sides take turns by exchanging messages. The memory has no
    name (it is not in /dev/shm): its size is not limited by /dev/shm, pages are allocated at the first write, and it is
    freed with the last process that maps it.

    Args:
        num_bytes: capacity for the tensors of a message, each aligned to 64 bytes.
        device: of the reader; for a CUDA device the memory is pinned, so that one transfer moves a message.
        descriptor: of memory that another process has allocated, closed here; None: allocate it.

    Attributes:
        descriptor: of the memory, to be passed to another process; -1 after `detach`.

    Raises:
        OSError: the system has no such memory.
    """

    descriptor = -1

    def __init__(
        self,
        num_bytes: int,
        device: torch.device = torch.device("cpu"),  # noqa: B008
        *,
        descriptor: int | None = None,
    ) -> None:
        self.num_bytes = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        self.descriptor = os.memfd_create("gflownet-messages") if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, self.num_bytes)
        path = f"/proc/self/fd/{self.descriptor}"
        self._memory = torch.from_file(path, shared=True, size=self.num_bytes, dtype=torch.uint8)
        self._typed = [self._memory.view(dtype) for dtype in DTYPES]
        if descriptor is not None:
            self.detach()
        self.is_pinned = False
        if device.type == "cuda":  # lock the pages, where that works
            register = cast(Any, torch.cuda.cudart()).cudaHostRegister
            self.is_pinned = int(register(self._memory.data_ptr(), self._memory.nbytes, 0)) == 0

    def detach(self) -> None:
        """Close the file descriptor, after it was passed to another process; the memory stays mapped."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = detach  # also after a failed __init__

    def close(self) -> None:
        """Release the memory; it is freed with the last tensor that views it."""
        self.detach()
        if self.is_pinned:
            cast(Any, torch.cuda.cudart()).cudaHostUnregister(self._memory.data_ptr())
            self.is_pinned = False
        self._memory, self._typed = torch.empty(0, dtype=torch.uint8), []

    def write(self, message: Any) -> bytes:
        """Store the tensors of a message, or of a `Packed` one, and return its structure, which the reader needs too.

        Raises:
            MessageTooLarge: it does not fit; the buffer is unchanged.
            MessageError: it cannot be sent at all.
        """
        packed, memory = message if isinstance(message, Packed) else pack(message), self._memory
        if packed.num_bytes > len(memory):
            raise MessageTooLarge(packed.num_bytes, len(memory))
        packed.store(memory)
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
        return unpack(structure[_HEADER.size :], reader_of(self._memory[:num_used].to(device)))


def reader_of(memory: Tensor) -> Reader:
    """Return the reader of tensors that view memory, in bytes."""
    return _reader([memory.view(dtype) for dtype in DTYPES])


def _reader(typed: list[Tensor]) -> Reader:
    def read(code: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Tensor:
        return typed[code].as_strided(shape, stride, offset)

    return read
