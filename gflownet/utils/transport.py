"""Three ways for a message to reach another process: shared buffers, pickles, torch's own sharing of tensors."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import resource
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import resource_sharer
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from gflownet.utils.packing import map_tensors, pack, refuse_grad, unsendable
from gflownet.utils.shared_pinned_buffer import MessageTooLarge, SharedPinnedBuffer

CPU = torch.device("cpu")
_NATIVE, _PICKLED = b"n", b"p"  # the first byte of a frame: sent as the transport does, or pickled instead
_SHARED_MEMORY = "/dev/shm"  # where torch keeps the tensors that it shares
_PAGE = os.sysconf("SC_PAGE_SIZE")
# A shared tensor takes a few file descriptors on its way; other parts of a process need some, too.
_DESCRIPTORS_PER_TENSOR, _DESCRIPTOR_RESERVE = 4, 64


class Fallback(Exception):  # noqa: N818
    """A message that its transport cannot take: it goes as a pickle. Says why, and what to set."""


class Codec(ABC):
    """Turns messages into bytes for a pipe and back, from one end of it; tensors arrive on the device of that end."""

    @abstractmethod
    def encode(self, message: Any) -> bytes:
        """Return what to send.

        Raises:
            MessageError: the message cannot be sent at all.
            Fallback: this transport cannot take it.
        """

    @abstractmethod
    def decode(self, frame: memoryview) -> Any:
        """Return the message; its tensors are its own."""

    @abstractmethod
    def view(self, frame: memoryview) -> Any:
        """Return the message; its tensors may lie in the sender's memory and hold until it is answered."""

    def close(self) -> None:  # noqa: B027
        """Give up what this end holds."""

    def detach(self) -> None:  # noqa: B027
        """Give up what is needed only to start the process at the other end."""


class Channel:
    """One end of a pipe between two processes; a message that its codec cannot take goes as a pickle.

    It can be given to a process that is being started; one thread at a time may use it.

    Args:
        connection: this end of the pipe.
        codec: how messages become bytes.
        device: where tensors arrive.
        advise: told once per message why it went as a pickle, by the end that has someone to tell.
    """

    def __init__(
        self, connection: Connection, codec: Codec, *, device: torch.device, advise: Callable[[str], None] | None
    ) -> None:
        self.connection = connection
        self._codec, self._device, self._advise = codec, device, advise

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            MessageError: it cannot be pickled, or requires a gradient; nothing was sent.
            OSError: nobody is at the other end.
        """
        try:
            frame = _NATIVE + self._codec.encode(message)
        except Fallback as reason:
            self._explain(str(reason))
            frame = _PICKLED + _dumps((str(reason), message))
        self.connection.send_bytes(frame)

    def receive(self) -> Any:
        """Return the next message; its tensors are its own.

        Raises:
            EOFError, OSError: nobody is at the other end.
        """
        return self._received(self._codec.decode)

    def view(self) -> Any:
        """Return the next message; its tensors may lie in the sender's memory and hold until it is answered.

        Raises:
            EOFError, OSError: nobody is at the other end.
        """
        return self._received(self._codec.view)

    def _received(self, decode: Callable[[memoryview], Any]) -> Any:
        frame = memoryview(self.connection.recv_bytes())
        if frame[:1] == _NATIVE:
            return decode(frame[1:])
        reason, message = pickle.loads(frame[1:])
        self._explain(reason)
        return _moved(message, self._device)

    def _explain(self, reason: str) -> None:
        if self._advise is not None:
            self._advise(reason)

    def detach(self) -> None:
        """Close the pipe here, after this end was given to a process."""
        self.connection.close()
        self._codec.detach()

    def close(self) -> None:
        """Close the pipe and give up the memory behind it."""
        self.connection.close()
        self._codec.close()


class Transport(ABC):
    """A way for messages to travel; chosen once per run."""

    def __init__(self) -> None:
        self._has_advised = False

    @abstractmethod
    def codecs(self, device: torch.device) -> tuple[Codec, Codec]:
        """Return the codec of the main process, whose tensors arrive on the device, and that of the worker."""

    def pair(self, device: torch.device = CPU) -> tuple[Channel, Channel]:
        """Return both ends of a new channel: that of the main process, and that of a worker about to be started."""
        near, far = multiprocessing.Pipe(duplex=True)
        here, there = self.codecs(device)
        return (
            Channel(near, here, device=device, advise=self.advise),
            Channel(far, there, device=CPU, advise=None),
        )

    def advise(self, text: str) -> None:
        """Warn, once in a run."""
        if not self._has_advised:
            self._has_advised = True
            warnings.warn(text, stacklevel=2)

    def close(self) -> None:  # noqa: B027
        """Give up what the transport holds in this process."""


class BufferTransport(Transport):
    """Tensors lie in shared buffers, a pair for each channel, allocated once; only their layout is sent.

    Args:
        num_bytes: room for the tensors of one message (`mp_buffer_size`).
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.num_bytes = num_bytes

    def codecs(self, device: torch.device) -> tuple[Codec, Codec]:
        try:
            to_main = SharedPinnedBuffer(self.num_bytes, device)
            to_worker = SharedPinnedBuffer(self.num_bytes, device)
        except (OSError, RuntimeError, ValueError) as error:
            self.advise(f"mp_buffer_size={self.num_bytes}: no such shared memory ({error}); messages are pickled")
            return PickleCodec(device), PickleCodec(CPU)
        return _BufferCodec(to_worker, to_main, device), _BufferCodec(to_main, to_worker, CPU)


class PickleTransport(Transport):
    """Messages are pickled (`pickle_mp_messages`)."""

    def codecs(self, device: torch.device) -> tuple[Codec, Codec]:
        return PickleCodec(device), PickleCodec(CPU)


class QueueTransport(Transport):
    """Each tensor is moved to shared memory of its own, as torch's queues do."""

    def codecs(self, device: torch.device) -> tuple[Codec, Codec]:
        get_temp_dir()  # made here, it is the workers' too, and removed even if they are killed
        return _QueueCodec(device), _QueueCodec(CPU)

    def close(self) -> None:
        """End the thread by which torch hands file descriptors to other processes."""
        resource_sharer.stop(timeout=1)


def make_transport(*, buffer_size: int | None, pickle_messages: bool) -> Transport:
    """Return the transport that the options `mp_buffer_size` and `pickle_mp_messages` ask for."""
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
            raise Fallback(
                f"mp_buffer_size={error.capacity}: {error}; it is pickled instead; set "
                f"mp_buffer_size={2 * error.num_bytes}"
            ) from error

    def decode(self, frame: memoryview) -> Any:
        if self._device.type != "cpu":
            return self._incoming.transfer(frame, self._device)
        return self._incoming.read(frame)

    def view(self, frame: memoryview) -> Any:
        if self._device.type != "cpu":
            return self._incoming.transfer(frame, self._device)
        return self._incoming.view(frame)

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()

    def detach(self) -> None:
        self._outgoing.detach()
        self._incoming.detach()


class PickleCodec(Codec):
    """Messages as pickles."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def encode(self, message: Any) -> bytes:
        return _dumps(message)

    def decode(self, frame: memoryview) -> Any:
        return _moved(pickle.loads(frame), self._device)

    view = decode


class _QueueCodec(Codec):
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def encode(self, message: Any) -> bytes:
        packed = pack(message)
        _make_sure_of_room(packed.tensors)
        stream = io.BytesIO()
        _SharingPickler(stream, pickle.HIGHEST_PROTOCOL).dump(message)
        return stream.getvalue()

    def decode(self, frame: memoryview) -> Any:
        return _moved(pickle.loads(frame), self._device)

    view = decode


def _make_sure_of_room(tensors: list[Tensor]) -> None:
    """Raise Fallback if sharing these tensors would exhaust file descriptors, or kill us for want of memory."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    needed = in_use + _DESCRIPTORS_PER_TENSOR * len(tensors) + _DESCRIPTOR_RESERVE
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise Fallback(
            f"open files: expected a limit of at least {needed}, got {limit}; messages of {len(tensors)} tensors are "
            f"pickled; raise it (ulimit -n {2 * needed}) or set mp_buffer_size"
        )
    disk = os.statvfs(_SHARED_MEMORY)
    free, size = disk.f_bavail * disk.f_frsize, sum(-(-tensor.nbytes // _PAGE) * _PAGE for tensor in tensors)
    if size > free:
        raise Fallback(
            f"{_SHARED_MEMORY}: expected {size:,} free bytes for a message, got {free:,}; it is pickled; make "
            f"{_SHARED_MEMORY} larger or set mp_buffer_size, which does not need it"
        )


class _CheckingPickler(pickle.Pickler):
    """Pickles tensors by value, and refuses those that require a gradient."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            refuse_grad(obj)
            if type(obj) is Tensor and obj.layout is torch.strided:
                return self._reduce(obj)
        return NotImplemented

    def _reduce(self, tensor: Tensor) -> Any:
        """Return the tensor's own way, without the rest of a memory of which it is a part."""
        part = tensor.is_cuda or tensor.untyped_storage().nbytes() > tensor.nbytes
        return (tensor.cpu().clone() if part else tensor).__reduce_ex__(pickle.HIGHEST_PROTOCOL)


class _SharingPickler(_CheckingPickler):
    """Pickles tensors as torch's queues do, each in shared memory; the sender's own stay where they are."""

    def _reduce(self, tensor: Tensor) -> Any:
        return _copied, reduce_tensor(tensor.cpu().clone().share_memory_())


def _copied(rebuild: Callable[..., Tensor], arguments: tuple) -> Tensor:
    """Return a shared tensor's copy: as long as a shared one lives it holds a file descriptor."""
    return rebuild(*arguments).clone()


def _dumps(message: Any) -> bytes:
    stream = io.BytesIO()
    try:
        _CheckingPickler(stream, pickle.HIGHEST_PROTOCOL).dump(message)
    except Exception as error:
        raise unsendable(message, error) from error
    return stream.getvalue()


def _moved(message: Any, device: torch.device) -> Any:
    return message if device.type == "cpu" else map_tensors(message, lambda tensor: tensor.to(device))
