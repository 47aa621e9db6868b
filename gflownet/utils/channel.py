"""One end of a pipe between two processes, and the contract of a codec for its messages."""

from __future__ import annotations

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from gflownet.utils.packing import MessageError, map_tensors, refuse_grad, unsendable

_NATIVE, _PICKLED = b"n", b"p"  # the first byte of a frame: encoded by the codec, or pickled in its stead


class Fallback(Exception):  # noqa: N818
    """A message that its codec cannot take and that goes as a pickle; the text has the reason and the remedy."""


class Codec(ABC):
    """Turns messages into bytes for a pipe and back, at one end of it."""

    @abstractmethod
    def encode(self, message: Any) -> bytes:
        """Return the bytes to send.

        Raises:
            MessageError: the message cannot be sent at all.
            Fallback: it must go another way.
        """

    @abstractmethod
    def decode(self, frame: memoryview) -> Any:
        """Return the message; its tensors are its own."""

    @abstractmethod
    def view(self, frame: memoryview) -> Any:
        """Return the message; its tensors may lie in the sender's memory and hold until it is answered."""

    @abstractmethod
    def detach(self) -> None:
        """Release the resources needed only to start the process at the other end."""

    @abstractmethod
    def close(self) -> None:
        """Give up everything."""


class Channel:
    """One end of a pipe: sends and receives messages, those that its codec cannot take as pickles.

    It can be given to a process that is being started. One thread at a time may use it.

    Args:
        connection: this end of the pipe.
        codec: how messages become bytes.
        device: where tensors arrive.
        explain: called with the reason when a message went as a pickle; None in a worker.
    """

    def __init__(
        self, connection: Connection, codec: Codec, *, device: torch.device, explain: Callable[[str], None] | None
    ) -> None:
        self.connection = connection
        self._codec, self._device, self._explain = codec, device, explain

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            MessageError: it cannot be pickled, or requires a gradient; nothing was sent.
            OSError: the peer closed the connection.
        """
        self.connection.send_bytes(self.encode(message))

    def encode(self, message: Any) -> bytes:
        """Return a message as the frame that `send` would write.

        Raises:
            MessageError: it cannot be pickled, or requires a gradient.
        """
        try:
            return _NATIVE + self._codec.encode(message)
        except Fallback as reason:
            frame = _PICKLED + dumps((str(reason), message))
            self._tell(str(reason))
            return frame

    def receive(self) -> Any:
        """Return the next message; its tensors are its own.

        Raises:
            EOFError, OSError: the peer closed the connection.
            MessageError: the received bytes cannot be read.
        """
        return self._read(self._codec.decode)

    def view(self) -> Any:
        """Return the next message; its tensors may lie in the sender's memory and hold until it is answered.

        Raises:
            EOFError, OSError: the peer closed the connection.
            MessageError: the received bytes cannot be read.
        """
        return self._read(self._codec.view)

    def detach(self) -> None:
        """Close the pipe in this process, after this end was given to another."""
        self.connection.close()
        self._codec.detach()

    def close(self) -> None:
        """Close the pipe and give up the memory behind it."""
        self.connection.close()
        self._codec.close()

    def _read(self, decode: Callable[[memoryview], Any]) -> Any:
        frame = memoryview(self.connection.recv_bytes())
        try:
            if frame[:1] == _NATIVE:
                return decode(frame[1:])
            reason, message = pickle.loads(frame[1:])
        except Exception as error:  # any error of a foreign class while it is rebuilt
            raise MessageError(f"expected a message that can be read, got {error!r}") from error
        self._tell(reason)
        return moved(message, self._device)

    def _tell(self, reason: str) -> None:
        if self._explain is not None:
            self._explain(reason)


class _Pickler(pickle.Pickler):
    """Pickles dense tensors on the CPU, without the rest of a memory of which they are a part."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            refuse_grad(obj)
            if type(obj) is Tensor and obj.layout is torch.strided:
                is_part = obj.is_cuda or obj.untyped_storage().nbytes() > obj.nbytes
                return (obj.cpu().clone() if is_part else obj).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return NotImplemented


def dumps(message: Any) -> bytes:
    """Return a message as a pickle.

    Raises:
        MessageError: it cannot be pickled, or requires a gradient.
    """
    stream = io.BytesIO()
    try:
        _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(message)
    except Exception as error:
        raise unsendable(message, error) from error
    return stream.getvalue()


def moved(message: Any, device: torch.device) -> Any:
    """Return the message with its tensors on the device."""
    return message if device.type == "cpu" else map_tensors(message, lambda tensor: tensor.to(device))
