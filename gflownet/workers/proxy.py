"""Proxies in a worker for objects of the main process, and exceptions that cross the process boundary."""

from __future__ import annotations

import difflib
import os
import pickle
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gflownet.workers.packing import MessageError
from gflownet.workers.process import exit_with_parent
from gflownet.workers.transport import Address, Channel

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


class _Caller(NamedTuple):
    """The connection of this process."""

    pid: int  # a forked process inherits the connection of its parent, which it must not use
    lock: threading.Lock
    channel: Channel


class Endpoint:
    """Access to the served objects from any number of processes; it can be passed to a new process.

    Each process opens a connection at its first call, and its threads take turns: no process or thread reads the reply
    to the call of another. A process that calls ends with the process that started it.

    Args:
        address: of the server.
        methods: the callable methods, by the name of the object.
    """

    def __init__(self, address: Address, *, methods: Mapping[str, frozenset[str]]) -> None:
        self._address, self._methods = address, dict(methods)
        self._caller: _Caller | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the connection of this process."""
        return {**self.__dict__, "_caller": None}

    def proxy(self, name: str) -> Proxy:
        """Return the proxy of the object that is served under this name.

        Raises:
            KeyError: there is none.
        """
        if name not in self._methods:
            raise KeyError(f"{name}: expected the name of a served object, one of {sorted(self._methods)}")
        return Proxy(name, self, methods=self._methods[name])

    def call(self, call: Call) -> Any:
        """Return the reply to a call. Raises MessageError like `Channel`, EOFError or OSError without a server."""
        while True:
            caller = self._own_caller()
            with caller.lock:
                if caller.channel.connection.closed:  # by another thread, see below
                    continue
                try:
                    caller.channel.send(call)
                    return caller.channel.receive()
                except MessageError:
                    raise
                except BaseException:  # such as KeyboardInterrupt: the reply may arrive later
                    caller.channel.close()
                    raise

    def _own_caller(self) -> _Caller:
        caller = self._caller
        if caller is None or caller.pid != os.getpid() or caller.channel.connection.closed:
            if not self._address.is_here:
                exit_with_parent()
            caller = self._caller = _Caller(os.getpid(), threading.Lock(), self._address.connect())
        return caller


class Proxy:
    """Proxy of an object of the main process: its methods run there; other attributes are not available.

    A call raises the exception of the object's method, with the remote traceback as its cause; MessageError if
    arguments or result cannot be sent, ConnectionError if the main process is gone.
    """

    __slots__ = ("_endpoint", "_methods", "_name")

    def __init__(self, name: str, endpoint: Endpoint, *, methods: frozenset[str]) -> None:
        self._name, self._endpoint, self._methods = name, endpoint, methods

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
            reply = self._endpoint.call(call)
        except MessageError as error:
            raise MessageError(f"{call}: {error}") from error
        except (EOFError, OSError) as error:
            raise ConnectionError(f"{call}: expected a reply, but the main process closed the connection") from error
        if isinstance(reply, Failure):
            raise reply.error()
        return reply
