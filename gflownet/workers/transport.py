"""Message channels between the main process and a worker: shared buffers or pickles."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import socket
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from gflownet.workers.packing import MessageError, MessageTooLarge, SharedPinnedBuffer, dumps, to_device
from gflownet.workers.process import CPU

_NATIVE, _PICKLED = b"n", b"p"  # first byte of a frame: encoded by the channel, or pickled as a fallback


class Fallback(Exception):  # noqa: N818
    """A message that its channel cannot encode, sent as a pickle instead; the text has the reason and the remedy."""


class Channel(ABC):
    """One end of a pipe: sends and receives messages, as pickles where its encoding fails.

    One thread of one process at a time may use it.

    Args:
        connection: this end of the pipe.
        device: of received tensors.
        on_fallback: called with the reason when a message was pickled instead; None in a worker.
    """

    def __init__(
        self, connection: Connection, device: torch.device, on_fallback: Callable[[str], None] | None = None
    ) -> None:
        self.connection, self._device, self._on_fallback = connection, device, on_fallback

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            MessageError: it cannot be pickled, or requires a gradient; nothing was sent.
            OSError: the peer closed the connection.
        """
        self.connection.send_bytes(self.encode(message))

    def encode(self, message: Any) -> bytes:
        """Return the frame that `send` would write. Raises MessageError like `send`."""
        try:
            return _NATIVE + self._encode(message)
        except Fallback as reason:
            frame = _PICKLED + dumps((str(reason), message))
            self._report(str(reason))
            return frame

    def receive(self) -> Any:
        """Return the next message with its own copies of the tensors.

        Raises:
            EOFError, OSError: the peer closed the connection.
            MessageError: the received bytes cannot be read.
        """
        return self._read(self._decode)

    def view(self) -> Any:
        """Return the next message like `receive`; tensors may view the sender's memory until the reply is sent."""
        return self._read(self._view)

    def close(self) -> None:
        """Close the pipe and release the memory behind it."""
        self.connection.close()

    @abstractmethod
    def _encode(self, message: Any) -> bytes:
        """Return the bytes to send; raise MessageError, or Fallback if the message has to be pickled."""

    @abstractmethod
    def _decode(self, frame: memoryview) -> Any:
        """Return the message with its own copies of the tensors."""

    @abstractmethod
    def _view(self, frame: memoryview) -> Any:
        """Return the message; its tensors may view the sender's memory."""

    def _read(self, decode: Callable[[memoryview], Any]) -> Any:
        frame = memoryview(self.connection.recv_bytes())
        try:
            if frame[:1] == _NATIVE:
                return decode(frame[1:])
            reason, message = pickle.loads(frame[1:])
        except Exception as error:  # any error of a foreign class in its __setstate__
            raise MessageError(f"expected a readable message, got {error!r}") from error
        self._report(reason)
        return to_device(message, self._device)

    def _report(self, reason: str) -> None:
        if self._on_fallback is not None:
            self._on_fallback(reason)


class _BufferChannel(Channel):
    def __init__(self, outgoing: SharedPinnedBuffer, incoming: SharedPinnedBuffer, *end: Any) -> None:
        super().__init__(*end)
        self._outgoing, self._incoming = outgoing, incoming

    def _encode(self, message: Any) -> bytes:
        try:
            return self._outgoing.write(message)
        except MessageTooLarge as error:
            advice = f"larger ones are pickled; set mp_buffer_size={2 * error.num_bytes}"
            raise Fallback(f"mp_buffer_size={self._outgoing.num_bytes}: {error}; {advice}") from error

    def _decode(self, frame: memoryview) -> Any:
        is_cpu = self._device.type == "cpu"
        return self._incoming.read(frame) if is_cpu else self._incoming.transfer(frame, self._device)

    def _view(self, frame: memoryview) -> Any:
        is_cpu = self._device.type == "cpu"
        return self._incoming.view(frame) if is_cpu else self._incoming.transfer(frame, self._device)

    def close(self) -> None:
        super().close()
        self._outgoing.close()
        self._incoming.close()


class _PickleChannel(Channel):
    def _encode(self, message: Any) -> bytes:
        return dumps(message)

    def _decode(self, frame: memoryview) -> Any:
        return to_device(pickle.loads(frame), self._device)

    _view = _decode


class _NoBufferChannel(_PickleChannel):
    """Channel of a process whose buffers were refused by the system."""

    def __init__(self, reason: str, *end: Any) -> None:
        super().__init__(*end)
        self._reason = reason

    def _encode(self, message: Any) -> bytes:
        raise Fallback(self._reason)


class Transport(ABC):
    """How messages travel, chosen once per run."""

    def __init__(self) -> None:
        self._has_warned = False

    @abstractmethod
    def open(self, connection: Connection) -> tuple[Channel, Sequence[SharedPinnedBuffer]]:
        """Return the channel of a process that connects, and the buffers that the other end needs too."""

    @abstractmethod
    def accept(self, connection: Connection, descriptors: Sequence[int], device: torch.device) -> Channel:
        """Return the other end of a channel, given the descriptors of its buffers and the device of its messages."""

    def warn_once(self, reason: str) -> None:
        """Warn about the first message of a run that is pickled instead."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(reason, stacklevel=2)


class PickleTransport(Transport):
    """Messages as pickles in the pipe (`pickle_mp_messages`)."""

    def open(self, connection: Connection) -> tuple[Channel, Sequence[SharedPinnedBuffer]]:
        return _PickleChannel(connection, CPU), ()

    def accept(self, connection: Connection, descriptors: Sequence[int], device: torch.device) -> Channel:
        return _PickleChannel(connection, device, self.warn_once)


class BufferTransport(Transport):
    """Tensors in two shared buffers per channel, allocated once; the pipe carries only their layout.

    Args:
        num_bytes: capacity for the tensors of one message (`mp_buffer_size`).
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.num_bytes = num_bytes

    def open(self, connection: Connection) -> tuple[Channel, Sequence[SharedPinnedBuffer]]:
        try:
            outgoing, incoming = (SharedPinnedBuffer(self.num_bytes) for _ in range(2))
        except (OSError, RuntimeError) as error:
            reason = f"mp_buffer_size={self.num_bytes}: no shared memory, messages are pickled: {error!r}"
            return _NoBufferChannel(reason, connection, CPU), ()
        return _BufferChannel(outgoing, incoming, connection, CPU), (outgoing, incoming)

    def accept(self, connection: Connection, descriptors: Sequence[int], device: torch.device) -> Channel:
        end = connection, device, self.warn_once
        if not descriptors:
            return _PickleChannel(*end)
        buffers = [SharedPinnedBuffer(self.num_bytes, device, descriptor=each) for each in descriptors]
        return _BufferChannel(*reversed(buffers), *end)


class Address:
    """Address of a `Listener`; it can be passed to a new process, and any number of processes may connect."""

    def __init__(self, entrance: socket.socket, transport: Transport, owner_pid: int) -> None:
        self._entrance, self._transport, self._owner_pid = entrance, transport, owner_pid
        weakref.finalize(self, entrance.close)

    def __reduce__(self) -> tuple[Any, ...]:
        return Address, (self._entrance, self._transport, self._owner_pid)

    @property
    def is_here(self) -> bool:
        """Return whether the listener is in this process."""
        return self._owner_pid == os.getpid()

    def connect(self) -> Channel:
        """Return a new channel to the listener: no other process has its ends, so that death closes it.

        Raises:
            OSError: the listener is closed.
        """
        connection, far = multiprocessing.Pipe()
        channel, buffers = self._transport.open(connection)
        with far:
            descriptors = [far.fileno(), *(buffer.descriptor for buffer in buffers)]
            socket.send_fds(self._entrance, [bytes([len(descriptors)])], descriptors)
        for buffer in buffers:
            buffer.detach()
        return channel


class Listener:
    """Accepts the channels of other processes.

    Args:
        transport: how messages travel.
        device: of received tensors.

    Attributes:
        address: for the processes that connect.
        socket: readable when `accept` returns at once.
    """

    def __init__(self, transport: Transport, device: torch.device = CPU) -> None:
        self.socket, entrance = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.address = Address(entrance, transport, os.getpid())
        self._transport, self._device = transport, device
        _of_this_process.add(self)

    def accept(self) -> Channel:
        """Return the channel of the next process that connects.

        Raises:
            EOFError: the listener was stopped.
            OSError, RuntimeError: no file descriptors or memory are left; the other process reads the end of its pipe.
        """
        message, descriptors, *_ = socket.recv_fds(self.socket, 1, _MAX_DESCRIPTORS)
        if not message:
            raise EOFError("the listener was stopped")
        if len(descriptors) < message[0]:
            for descriptor in descriptors:
                os.close(descriptor)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        channel = self._transport.accept(Connection(descriptors[0]), descriptors[1:], self._device)
        _of_this_process.add(channel)
        return channel

    def stop(self) -> None:
        """Refuse processes that connect, and end a wait in another thread."""
        with suppress(OSError):  # it is closed
            self.socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Refuse processes that connect."""
        self.socket.close()


_MAX_DESCRIPTORS = 3  # of a pipe and two buffers
_of_this_process: weakref.WeakSet[Channel | Listener] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close what a forked process inherits: an open copy would hide the end of its parent."""
    for end in list(_of_this_process):
        (end if isinstance(end, Listener) else end.connection).close()
    _of_this_process.clear()


os.register_at_fork(after_in_child=_close_in_child)


def make_transport(*, buffer_size: int | None, pickle_messages: bool) -> Transport:
    """Return the transport for the options `mp_buffer_size` and `pickle_mp_messages`; pickles without a buffer."""
    return PickleTransport() if pickle_messages or buffer_size is None else BufferTransport(buffer_size)
