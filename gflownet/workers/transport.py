"""Message channels between the main process and a worker: with shared buffers for tensors, or without."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import socket
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from gflownet.workers.packing import (
    ALIGNMENT,
    MessageError,
    MessageTooLarge,
    SharedPinnedBuffer,
    pack,
    reader_of,
    unpack,
)
from gflownet.workers.process import CPU

_SHARED, _IN_PIPE = b"s", b"p"  # first byte of a frame: where the tensors of its message are


class Channel:
    """One end of a pipe: sends and receives messages, whose tensors are in shared buffers or in the pipe, too.

    One thread of one process at a time may use it.

    Args:
        connection: this end of the pipe.
        device: of received tensors.
        buffers: for sent and for received tensors; none: they are in the pipe.
        reason: why there are none, where there should be some.
        on_fallback: called with the reason when tensors were in the pipe instead of a buffer; None in a worker.
    """

    def __init__(
        self,
        connection: Connection,
        device: torch.device,
        buffers: Sequence[SharedPinnedBuffer] = (),
        *,
        reason: str = "",
        on_fallback: Callable[[str], None] | None = None,
    ) -> None:
        self.connection, self._device, self._buffers = connection, device, buffers
        self._reason, self._on_fallback = reason, on_fallback

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            MessageError: it cannot be pickled, or requires a gradient; nothing was sent.
            OSError: the peer closed the connection.
        """
        self.connection.send_bytes(self.encode(message))

    def encode(self, message: Any) -> bytes:
        """Return the frame that `send` would write. Raises MessageError like `send`."""
        packed, reason = pack(message), self._reason
        if self._buffers:
            try:
                return _SHARED + self._buffers[0].write(packed)
            except MessageTooLarge as error:
                advice = f"larger ones are pickled; set mp_buffer_size={2 * error.num_bytes}"
                reason = f"mp_buffer_size={error.capacity}: {error}; {advice}"
        content = bytearray(packed.num_bytes or ALIGNMENT)
        packed.store(torch.frombuffer(content, dtype=torch.uint8))
        self._report(reason)
        return _IN_PIPE + pickle.dumps((reason, packed.structure, content))

    def receive(self) -> Any:
        """Return the next message with its own copies of the tensors.

        Raises:
            EOFError, OSError: the peer closed the connection.
            MessageError: the received bytes cannot be read.
        """
        return self._read(copies=True)

    def view(self) -> Any:
        """Return the next message like `receive`; tensors may view the sender's memory until the reply is sent."""
        return self._read(copies=False)

    def close(self) -> None:
        """Close the pipe and release the memory behind it."""
        self.connection.close()
        for buffer in self._buffers:
            buffer.close()

    def _read(self, *, copies: bool) -> Any:
        frame = memoryview(self.connection.recv_bytes())
        try:
            if frame[:1] == _SHARED:
                buffer = self._buffers[1]
                if self._device.type != "cpu":
                    return buffer.transfer(frame[1:], self._device)
                return buffer.read(frame[1:]) if copies else buffer.view(frame[1:])
            reason, structure, content = pickle.loads(frame[1:])
            message = unpack(structure, reader_of(torch.frombuffer(content, dtype=torch.uint8).to(self._device)))
        except Exception as error:  # any error of a foreign class in its __setstate__
            raise MessageError(f"expected a readable message, got {error!r}") from error
        self._report(reason)
        return message

    def _report(self, reason: str) -> None:
        if reason and self._on_fallback is not None:
            self._on_fallback(reason)


class Transport:
    """How messages travel, chosen once per run.

    Args:
        num_bytes: capacity of each of the two shared buffers of a channel, for the tensors of one message
            (`mp_buffer_size`); None: all tensors are in the pipe (`pickle_mp_messages`).
    """

    def __init__(self, num_bytes: int | None) -> None:
        self.num_bytes, self._has_warned = num_bytes, False

    def open(self, connection: Connection) -> tuple[Channel, Sequence[SharedPinnedBuffer]]:
        """Return the channel of a process that connects, and the buffers that the other end needs too."""
        buffers, reason = list[SharedPinnedBuffer](), ""
        try:
            buffers = [SharedPinnedBuffer(self.num_bytes) for _ in range(2)] if self.num_bytes is not None else []
        except (OSError, RuntimeError) as error:
            reason = f"mp_buffer_size={self.num_bytes}: no shared memory, messages are pickled: {error!r}"
        return Channel(connection, CPU, buffers, reason=reason), buffers

    def accept(self, connection: Connection, descriptors: Sequence[int], device: torch.device) -> Channel:
        """Return the other end of a channel, given the descriptors of its buffers and the device of its messages."""
        buffers = [SharedPinnedBuffer(self.num_bytes or 0, device, descriptor=each) for each in reversed(descriptors)]
        return Channel(connection, device, buffers, on_fallback=self.warn_once)

    def warn_once(self, reason: str) -> None:
        """Warn about the first message of a run whose tensors were in the pipe instead of a buffer."""
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(reason, stacklevel=2)


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
    """Return the transport for the options `mp_buffer_size` and `pickle_mp_messages`."""
    return Transport(None if pickle_messages else buffer_size)
