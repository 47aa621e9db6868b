"""Three ways for messages to travel between the main process and a worker: shared buffers, pickles, shared tensors."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import resource
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from gflownet.utils.channel import Channel, Codec, Fallback, dumps, moved
from gflownet.utils.packing import pack
from gflownet.utils.shared_pinned_buffer import MessageTooLarge, SharedPinnedBuffer

CPU = torch.device("cpu")
SHARED_MEMORY = "/dev/shm"  # where torch keeps the tensors that it shares
_PAGE = os.sysconf("SC_PAGE_SIZE")
# A shared tensor takes a few file descriptors on its way, and the rest of a process needs some, too.
_DESCRIPTORS_PER_TENSOR, _DESCRIPTOR_RESERVE = 4, 64


class Transport(ABC):
    """A way for messages to travel, chosen once in a run."""

    def __init__(self) -> None:
        self._has_explained = False

    @abstractmethod
    def codecs(self, device: torch.device) -> tuple[Codec, Codec]:
        """Return the codecs of the main process, where tensors arrive on the device, and of the worker."""

    @abstractmethod
    def close(self) -> None:
        """Release the transport's resources in this process."""

    def pair(self, device: torch.device = CPU) -> tuple[Channel, Channel]:
        """Return both ends of a new channel: for the main process, and for a worker about to be started."""
        codec, workers_codec = self.codecs(device)
        near, far = multiprocessing.Pipe(duplex=True)
        return (
            Channel(near, codec, device=device, explain=self.explain),
            Channel(far, workers_codec, device=CPU, explain=None),
        )

    def explain(self, reason: str) -> None:
        """Warn, once in a run, that messages are pickled instead."""
        if not self._has_explained:
            self._has_explained = True
            warnings.warn(reason, stacklevel=2)


class BufferTransport(Transport):
    """Tensors lie in shared buffers, a pair for each channel, allocated once; only their layout goes through the pipe.

    Args:
        num_bytes: room for the tensors of one message (`mp_buffer_size`).
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.num_bytes = num_bytes

    def codecs(self, device: torch.device) -> tuple[Codec, Codec]:
        """Return codecs around two new buffers; plain pickling if the system has no memory for them."""
        try:
            to_main = SharedPinnedBuffer(self.num_bytes, device)
            to_worker = SharedPinnedBuffer(self.num_bytes, device)
        except (OSError, RuntimeError) as error:
            self.explain(f"mp_buffer_size={self.num_bytes}: no shared memory, messages are pickled: {error!r}")
            return _PickleCodec(device), _PickleCodec(CPU)
        return _BufferCodec(to_worker, to_main, device), _BufferCodec(to_main, to_worker, CPU)

    def close(self) -> None:
        """Do nothing: buffers belong to their channels."""


class PickleTransport(Transport):
    """Messages go through the pipe as pickles (`pickle_mp_messages`)."""

    def codecs(self, device: torch.device) -> tuple[Codec, Codec]:
        """Return two codecs that pickle."""
        return _PickleCodec(device), _PickleCodec(CPU)

    def close(self) -> None:
        """Do nothing."""


class QueueTransport(Transport):
    """Every tensor gets new shared memory for each message, as in torch's queues."""

    def codecs(self, device: torch.device) -> tuple[Codec, Codec]:
        """Return two codecs that share."""
        get_temp_dir()  # made here, the workers use it too, and it goes even if they are killed
        return _QueueCodec(device), _QueueCodec(CPU)

    def close(self) -> None:
        """End the thread by which file descriptors are handed to other processes."""
        resource_sharer.stop(timeout=1)


def remove_remains(pid: int) -> None:
    """Remove the shared memory that torch names after a process, if it was killed before it could do so."""
    for path in Path(SHARED_MEMORY).glob(f"torch_{pid}_*"):
        path.unlink(missing_ok=True)


def make_transport(*, buffer_size: int | None, pickle_messages: bool) -> Transport:
    """Return the transport that the options `mp_buffer_size` and `pickle_mp_messages` ask for, in this order."""
    if buffer_size is not None:
        return BufferTransport(buffer_size)
    return PickleTransport() if pickle_messages else QueueTransport()


class _BufferCodec(Codec):
    def __init__(self, outgoing: SharedPinnedBuffer, incoming: SharedPinnedBuffer, device: torch.device) -> None:
        self._outgoing, self._incoming, self._device = outgoing, incoming, device

    def encode(self, message: Any) -> bytes:
        try:
            return self._outgoing.write(message)
        except MessageTooLarge as error:
            advice = f"larger ones are pickled; set mp_buffer_size={2 * error.num_bytes}"
            raise Fallback(f"mp_buffer_size={self._outgoing.num_bytes}: {error}; {advice}") from error

    def decode(self, frame: memoryview) -> Any:
        if self._device.type == "cpu":
            return self._incoming.read(frame)
        return self._incoming.transfer(frame, self._device)

    def view(self, frame: memoryview) -> Any:
        if self._device.type == "cpu":
            return self._incoming.view(frame)
        return self._incoming.transfer(frame, self._device)

    def detach(self) -> None:
        self._outgoing.detach()
        self._incoming.detach()

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()


class _ReadByPickle(Codec):
    """Reads pickles; there is nothing to release."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def decode(self, frame: memoryview) -> Any:
        return moved(pickle.loads(frame), self._device)

    view = decode

    def detach(self) -> None:
        pass

    close = detach


class _PickleCodec(_ReadByPickle):
    def encode(self, message: Any) -> bytes:
        return dumps(message)


class _QueueCodec(_ReadByPickle):
    def encode(self, message: Any) -> bytes:
        _make_sure_of_room(pack(message).tensors)
        stream = io.BytesIO()
        _SharingPickler(stream, pickle.HIGHEST_PROTOCOL).dump(message)
        return stream.getvalue()


class _SharingPickler(ForkingPickler):
    """Shares a copy of each tensor, which the receiver copies again: a shared one would hold a file descriptor."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        if type(obj) is Tensor and obj.layout is torch.strided:
            return _copied, reduce_tensor(obj.cpu().clone().share_memory_())
        return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # its parts are dense tensors


def _copied(rebuild: Callable[..., Tensor], arguments: tuple) -> Tensor:
    return rebuild(*arguments).clone()


def _make_sure_of_room(tensors: Sequence[Tensor]) -> None:
    """Raise Fallback where sharing these tensors would exhaust file descriptors, or memory: that would kill us."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + _DESCRIPTORS_PER_TENSOR * len(tensors) + _DESCRIPTOR_RESERVE
    if limit != resource.RLIM_INFINITY and needed > limit:
        advice = f"messages of {len(tensors)} tensors are pickled; set ulimit -n {2 * needed}, or mp_buffer_size"
        raise Fallback(f"open files: expected a limit of at least {needed}, got {limit}; {advice}")
    disk = os.statvfs(SHARED_MEMORY)
    free, size = disk.f_bavail * disk.f_frsize, sum(-(-tensor.nbytes // _PAGE) * _PAGE for tensor in tensors)
    if size > free:
        advice = f"larger messages are pickled; make {SHARED_MEMORY} larger, or set mp_buffer_size, which needs none"
        raise Fallback(f"{SHARED_MEMORY}: expected {size:,} free bytes for a message, got {free:,}; {advice}")
