"""Stand-in, in a worker, for an object of the main process."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gflownet.utils.channel import Channel
from gflownet.utils.failures import Failure
from gflownet.utils.packing import MessageError

CALL, LENGTH = "__call__", "__len__"


class Call(NamedTuple):
    """The request of a worker, answered by the result or a `Failure`."""

    name: str  # of the object
    method: str
    arguments: tuple
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name}.{self.method}"


class Endpoint:
    """A worker's end of a server; it can be given to a process that is being started.

    Args:
        channel: to the server.
        methods: the callable methods, by the name of the object.
    """

    def __init__(self, channel: Channel, *, methods: Mapping[str, frozenset[str]]) -> None:
        self.channel, self._methods = channel, dict(methods)

    def proxy(self, name: str) -> Proxy:
        """Return the stand-in for the object that is served under this name.

        Raises:
            KeyError: there is none.
        """
        if name not in self._methods:
            raise KeyError(f"{name}: expected the name of an object that is served, one of {sorted(self._methods)}")
        return Proxy(name, self.channel, methods=self._methods[name])

    def detach(self) -> None:
        """Close this end here, after it was given to a process."""
        self.channel.detach()


class Proxy:
    """Stands for an object of the main process: its methods run there, and only they can be reached.

    A call raises the exception of the object's method, with the other traceback as its cause; MessageError if arguments
    or result cannot be sent, ConnectionError if the main process is gone.
    """

    __slots__ = ("_channel", "_methods", "_name")

    def __init__(self, name: str, channel: Channel, *, methods: frozenset[str]) -> None:
        self._name, self._channel, self._methods = name, channel, methods

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the result of calling the object."""
        if CALL not in self._methods:
            raise TypeError(f"{self._name}: expected a call of one of its methods {sorted(self._methods)}")
        return self._ask(Call(self._name, CALL, arguments, options))

    def __len__(self) -> int:
        """Return the length of the object."""
        if LENGTH not in self._methods:
            raise TypeError(f"{self._name}: expected an object with a length, got one without")
        return self._ask(Call(self._name, LENGTH, (), {}))

    def __bool__(self) -> bool:
        """Return the truth of the object: whether its length is not 0, where it has one."""
        return LENGTH not in self._methods or len(self) > 0

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        if method not in self._methods:
            near = difflib.get_close_matches(method, self._methods, n=1)
            raise AttributeError(
                f"{self._name}.{method}: expected one of the methods {sorted(self._methods)}"
                + (f" (did you mean {near[0]}?)" if near else "")
                + "; the object lives in the main process, where its methods run, and attribute access is not supported"
            )
        return lambda *arguments, **options: self._ask(Call(self._name, method, arguments, options))

    def _ask(self, call: Call) -> Any:
        try:
            self._channel.send(call)
            reply = self._channel.receive()
        except MessageError as error:
            raise MessageError(f"{call}: {error}") from error
        except (EOFError, OSError) as error:
            raise ConnectionError(f"{call}: expected an answer, but the main process hung up") from error
        if isinstance(reply, Failure):
            raise reply.error()
        return reply
