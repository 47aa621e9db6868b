"""Objects of the main process that workers call as if they had them: the policy, the replay buffer, the evaluator.

A worker's proxy sends the call through a channel of its own and waits; one thread of the main process answers all
workers, and calls of one method that wait together become one.
"""

from __future__ import annotations

import difflib
import multiprocessing
import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gflownet.utils.failures import Failure
from gflownet.utils.packing import MessageError, map_tensors
from gflownet.utils.shared_pinned_buffer import SharedPinnedBuffer
from gflownet.utils.transport import CPU, Channel, Transport

__all__ = ["Endpoint", "Merger", "Proxy", "ProxyServer", "Served", "SharedPinnedBuffer", "get_worker_device"]

_CALL = "__call__"
_main_device = CPU


def get_worker_device() -> torch.device:
    """Return the device on which code should build its tensors: the run's in the main process, the CPU in a worker."""
    return _main_device


def set_main_device(device: torch.device) -> None:
    """Say which device this process computes on; a worker is told the CPU."""
    global _main_device
    _main_device = device


class Merger(Protocol):
    """How calls of one method that wait together become one.

    Such a method must be a pure function of its arguments: it is called without gradients ever being wanted
    (`torch.inference_mode`), its arguments may lie in memory that the caller will use again, and if a merged call
    fails, the calls are made one by one.
    """

    def merge(self, calls: Sequence[tuple]) -> tuple:
        """Return the positional arguments of one call that stands for all."""
        ...

    def split(self, result: Any, calls: Sequence[tuple]) -> Sequence[Any]:
        """Return the result of every call, given that of the one."""
        ...


class Served:
    """An object whose public methods workers may call.

    Of a torch module these are the methods that it adds to `torch.nn.Module`, and calling it.

    Args:
        served: the object.
        mergers: for methods of which several calls can become one.
    """

    def __init__(self, served: Any, mergers: Mapping[str, Merger] | None = None) -> None:
        self.object, self.mergers = served, dict(mergers or {})
        self.methods = _methods(served)
        if unknown := self.mergers.keys() - self.methods:
            raise ValueError(f"mergers: expected methods of {type(served).__name__}, got {sorted(unknown)}")


def _methods(served: Any) -> frozenset[str]:
    inherited = set(dir(torch.nn.Module)) - {"forward"} if isinstance(served, torch.nn.Module) else set()
    kind = type(served)
    public = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    return frozenset((public - inherited) | ({_CALL} if callable(served) else set()))


@dataclass(frozen=True)
class _Call:
    name: str
    method: str
    arguments: tuple
    options: dict[str, Any]


class Endpoint:
    """A worker's end of a server: gives proxies for what is served. It can be given to a process being started."""

    def __init__(self, worker_id: int, channel: Channel, methods: dict[str, frozenset[str]]) -> None:
        self.worker_id, self._channel, self._methods = worker_id, channel, methods

    def proxy(self, name: str) -> Proxy:
        """Return a stand-in for the object that is served under this name.

        Raises:
            KeyError: nothing is.
        """
        if name not in self._methods:
            raise KeyError(f"{name}: expected one of {sorted(self._methods)}")
        return Proxy(name, self._channel, self._methods[name])

    def detach(self) -> None:
        """Close this end here, after it was given to a process."""
        self._channel.detach()


class Proxy:
    """Stands for an object of the main process: its methods are called there, its attributes stay there."""

    __slots__ = ("_channel", "_methods", "_name")

    def __init__(self, name: str, channel: Channel, methods: frozenset[str]) -> None:
        self._name, self._channel, self._methods = name, channel, methods

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return what calling the object with these arguments returns."""
        if _CALL not in self._methods:
            raise TypeError(f"{self._name}: expected a call of {sorted(self._methods)}; it is not callable itself")
        return self._ask(_CALL, arguments, options)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method not in self._methods:
            near = difflib.get_close_matches(method, self._methods, n=1)
            raise AttributeError(
                f"{self._name}.{method}: expected a method out of {sorted(self._methods)}, of which the object in the "
                f"main process is asked; its attributes cannot be read here"
                + (f" (did you mean {near[0]}?)" if near else "")
            )
        return lambda *arguments, **options: self._ask(method, arguments, options)

    def _ask(self, method: str, arguments: tuple, options: dict[str, Any]) -> Any:
        try:
            self._channel.send(_Call(self._name, method, arguments, options))
            reply = self._channel.receive()
        except MessageError as error:
            raise MessageError(f"{self._name}.{method}: {error}") from error
        except (EOFError, OSError) as error:
            raise ConnectionError(f"{self._name}.{method}: expected an answer, but the main process hung up") from error
        if isinstance(reply, Failure):
            raise reply.error()
        return reply


@dataclass(frozen=True)
class _Waiting:
    """A call and whom to answer."""

    channel: Channel
    call: _Call


class ProxyServer:
    """Answers the calls of workers in a thread of this process; a context manager.

    Args:
        served: the objects by name.
        transport: how messages travel.
        device: where the tensors of a call arrive.
    """

    def __init__(self, served: Mapping[str, Served], *, transport: Transport, device: torch.device = CPU) -> None:
        self.transport, self._device = transport, device
        self._served = dict(served)
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakeup = multiprocessing.Pipe(duplex=False)[::-1]
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        self._new: deque[Channel | None] = deque()  # to be served from now on; None: the end
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="answers workers", daemon=True)
        self._thread.start()

    def connect(self, worker_id: int) -> Endpoint:
        """Return what a worker that is about to be started needs; a restarted one gets a new one."""
        near, far = self.transport.pair(self._device)
        self._tell(near)
        return Endpoint(worker_id, far, {name: served.methods for name, served in self._served.items()})

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """Keep the thread from answering for as long: what it does is done, and nothing half done is forked."""
        with self._turn:
            yield

    def close(self) -> None:
        """End the thread and close the channels; workers that call hear that nobody is there."""
        if self._thread.is_alive():
            self._tell(None)
            self._thread.join()
        self._waker.close()

    def __enter__(self) -> ProxyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, news: Channel | None) -> None:
        self._new.append(news)
        self._waker.send_bytes(b"!")

    def _serve(self) -> None:
        while True:
            ready = [key.data for key, _ in self._selector.select()]
            with self._turn:
                if None in ready and self._is_over():
                    return self._hang_up()
                received = [self._received(channel) for channel in ready if channel is not None]
                self._answer([call for call in received if call is not None])
                del received

    def _is_over(self) -> bool:
        """Return whether this is the end; otherwise take up the new channel."""
        self._wakeup.recv_bytes()
        channel = self._new.popleft()
        if channel is not None:
            self._selector.register(channel.connection, selectors.EVENT_READ, channel)
        return channel is None

    def _hang_up(self) -> None:
        for key in list(self._selector.get_map().values()):
            (key.data or self._wakeup).close()
        self._selector.close()

    def _drop(self, channel: Channel) -> None:
        """Forget a worker that is gone."""
        self._selector.unregister(channel.connection)
        channel.close()

    def _received(self, channel: Channel) -> _Waiting | None:
        """Return the call that waits in a channel; None if it could not be read, or the worker is gone."""
        try:
            call = channel.view()
            if self._merger(call) is None:
                call = map_tensors(call, torch.clone)  # the object may keep its arguments
            return _Waiting(channel, call)
        except (EOFError, ConnectionError):
            self._drop(channel)
        except Exception as error:
            self._reply(channel, Failure.of(error))
        return None

    def _merger(self, call: _Call) -> Merger | None:
        return None if call.options else self._served[call.name].mergers.get(call.method)

    def _answer(self, waiting: Sequence[_Waiting]) -> None:
        """Answer calls that wait together: as one where that can be done."""
        groups: dict[Any, list[_Waiting]] = {}
        for one in waiting:
            mergeable = self._merger(one.call) is not None
            groups.setdefault((one.call.name, one.call.method) if mergeable else one.channel, []).append(one)
        for group in groups.values():
            if len(group) == 1 or not self._answer_together(group):
                for one in group:
                    self._reply(one.channel, self._result(one.call))

    def _answer_together(self, group: Sequence[_Waiting]) -> bool:
        """Return whether one call could answer all of them."""
        first, calls = group[0].call, [one.call.arguments for one in group]
        merger = self._merger(first)
        assert merger is not None, "only such calls form a group"
        try:
            with torch.inference_mode():
                result = self._method(first)(*merger.merge(calls))
                results = merger.split(result, calls)
        except Exception:  # one by one, only the culprit hears of it
            return False
        for one, result in zip(group, results, strict=True):
            self._reply(one.channel, result)
        return True

    def _result(self, call: _Call) -> Any:
        """Return the result of a call or its failure."""
        pure = self._merger(call) is not None
        try:
            with torch.inference_mode() if pure else torch.no_grad():
                return self._method(call)(*call.arguments, **call.options)
        except BaseException as error:  # an exit, too, is the caller's: the thread lives on
            return Failure.of(error)

    def _method(self, call: _Call) -> Callable[..., Any]:
        served = self._served[call.name].object
        return served if call.method == _CALL else getattr(served, call.method)

    def _reply(self, channel: Channel, result: Any) -> None:
        try:
            try:
                channel.send(result)
            except MessageError as error:
                channel.send(Failure.of(error))
        except (OSError, ValueError):
            self._drop(channel)
