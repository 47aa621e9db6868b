"""Proxies in a worker for objects of the main process, and exceptions that cross the process boundary."""

from __future__ import annotations

import difflib
import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gflownet.workers.packing import MessageError
from gflownet.workers.transport import Channel

CALL, LENGTH = "__call__", "__len__"


class RemoteTraceback(Exception):  # noqa: N818
    """The traceback of an exception raised in another process, set as its cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


@dataclass(frozen=True)
class Failure:
    """A serialized exception that any process can read, even if its class cannot be unpickled."""

    pickled: bytes | None  # None: the exception cannot be pickled or unpickled
    summary: str  # class and message
    text: str  # the traceback

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Serialize an exception."""
        summary = "".join(traceback.format_exception_only(error)).strip()
        return cls(_pickled(error), summary, "".join(traceback.format_exception(error)))

    def error(self) -> Exception:
        """Return the exception, or a RuntimeError with its summary, with the remote traceback as its cause."""
        error: Exception | None = None
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)
            except Exception:  # a foreign class may raise; the traceback is still delivered
                error = None
        error = error or RuntimeError(self.summary)
        error.__cause__ = RemoteTraceback(self.text)
        return error


def _pickled(error: BaseException) -> bytes | None:
    """Return a pickle that reads back as the same class; None for exits and interrupts, which would end the reader."""
    try:
        pickled = pickle.dumps(error)
        is_same = isinstance(error, Exception) and type(pickle.loads(pickled)) is type(error)
    except Exception:
        return None
    return pickled if is_same else None


class Call(NamedTuple):
    """The request of a worker; the reply is the result or a `Failure`."""

    name: str  # of the object
    method: str
    arguments: tuple
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name}.{self.method}"


class Endpoint:
    """A worker's connection to the server; it can be passed to a new process.

    Args:
        channel: to the server.
        methods: the callable methods, by the name of the object.
    """

    def __init__(self, channel: Channel, *, methods: Mapping[str, frozenset[str]]) -> None:
        self.channel, self._methods = channel, dict(methods)

    def proxy(self, name: str) -> Proxy:
        """Return the proxy of the object that is served under this name.

        Raises:
            KeyError: there is none.
        """
        if name not in self._methods:
            raise KeyError(f"{name}: expected the name of a served object, one of {sorted(self._methods)}")
        return Proxy(name, self.channel, methods=self._methods[name])

    def detach(self) -> None:
        """Close this connection here, after it was passed to a process."""
        self.channel.detach()


class Proxy:
    """Proxy of an object of the main process: its methods run there; other attributes are not available.

    A call raises the exception of the object's method, with the remote traceback as its cause; MessageError if
    arguments or result cannot be sent, ConnectionError if the main process is gone.
    """

    __slots__ = ("_channel", "_methods", "_name")

    def __init__(self, name: str, channel: Channel, *, methods: frozenset[str]) -> None:
        self._name, self._channel, self._methods = name, channel, methods

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the result of calling the object."""
        if CALL not in self._methods:
            raise TypeError(f"{self._name}: expected a call of one of its methods {sorted(self._methods)}")
        return self._call(CALL, arguments, options)

    def __len__(self) -> int:
        """Return the length of the object."""
        if LENGTH not in self._methods:
            raise TypeError(f"{self._name}: expected an object with a length, got one without")
        return self._call(LENGTH, (), {})

    def __bool__(self) -> bool:
        """Return whether the length of the object is not 0; True for an object without a length."""
        return LENGTH not in self._methods or len(self) > 0

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        if method not in self._methods:
            matches = difflib.get_close_matches(method, self._methods, n=1)
            raise AttributeError(
                f"{self._name}.{method}: expected one of the methods {sorted(self._methods)}"
                + (f" (did you mean {matches[0]}?)" if matches else "")
                + "; the object lives in the main process, where its methods run, and attribute access is not supported"
            )
        return lambda *arguments, **options: self._call(method, arguments, options)

    def _call(self, method: str, arguments: tuple, options: dict[str, Any]) -> Any:
        call = Call(self._name, method, arguments, options)
        try:
            self._channel.send(call)
            reply = self._channel.receive()
        except MessageError as error:
            raise MessageError(f"{call}: {error}") from error
        except (EOFError, OSError) as error:
            raise ConnectionError(f"{call}: expected a reply, but the main process closed the connection") from error
        if isinstance(reply, Failure):
            raise reply.error()
        return reply
