"""The thread of the main process that answers workers: calls of one method that wait together become one."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Protocol

import torch

from gflownet.utils.channel import Channel
from gflownet.utils.failures import Failure
from gflownet.utils.packing import MessageError, map_tensors
from gflownet.utils.proxy import CALL, LENGTH, Call, Endpoint
from gflownet.utils.transport import CPU, Transport

_PATIENCE_S = 1.0  # for a call that is under way when the server closes


class Merger(Protocol):
    """How calls of one method that wait together become one.

    The method must be a pure function of its arguments: it runs in `torch.inference_mode`, its arguments may lie in
    memory that the caller writes again as soon as it has the result, and if a merged call fails, the calls are made
    one by one so that only those hear of it whose fault it is.
    """

    def merge(self, calls: Sequence[tuple]) -> tuple:
        """Return the arguments of one call that stands for all, given the positional arguments of each."""
        ...

    def split(self, result: Any, calls: Sequence[tuple]) -> Sequence[Any]:
        """Return the result of each call, given the result of the merged one."""
        ...


class Served:
    """An object whose public methods and length workers may use; of a torch module, methods that `nn.Module` lacks.

    Args:
        target: the object.
        mergers: for the methods of which several calls can become one.
        is_slow: each of its calls runs in a separate thread, so that no other call waits for them; it must bear that.
    """

    def __init__(self, target: Any, mergers: Mapping[str, Merger] | None = None, *, is_slow: bool = False) -> None:
        self.target, self.mergers, self.is_slow = target, dict(mergers or {}), is_slow
        self.methods = _methods(target)
        if unknown := self.mergers.keys() - self.methods:
            raise ValueError(f"mergers: expected methods of {type(target).__name__}, got {sorted(unknown)}")

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method of the object by name."""
        return self.target if name == CALL else getattr(self.target, name)


class _Waiting(NamedTuple):
    channel: Channel
    call: Call


class ProxyServer:
    """Answers the calls of workers in a thread that sleeps until one comes. A context manager.

    Args:
        served: the objects by name.
        transport: how messages travel; it is closed with the server.
        device: where the tensors of a call arrive.

    Attributes:
        thread: the thread.
    """

    def __init__(self, served: Mapping[str, Served], *, transport: Transport, device: torch.device = CPU) -> None:
        self.transport, self._device, self._served = transport, device, dict(served)
        self._alarm, self._doorbell = multiprocessing.Pipe(duplex=False)
        self._news: deque[Channel | None] = deque()  # a worker's channel; None: the end
        self._channels: dict[Any, Channel] = {}  # by their connections; used by the thread alone
        self._turn = threading.Lock()
        self.thread = threading.Thread(target=self._serve, name="answers workers", daemon=True)
        self.thread.start()

    def connect(self) -> Endpoint:
        """Return the endpoint for a worker that is about to be started."""
        near, far = self.transport.pair(self._device)
        self._tell(near)
        return Endpoint(far, methods={name: served.methods for name, served in self._served.items()})

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """Keep the thread from answering, so that a fork copies nothing half done."""
        with self._turn:
            yield

    @property
    def has_slow(self) -> bool:
        """Return whether calls may be under way in other threads than the one that `between_calls` stops."""
        return any(served.is_slow for served in self._served.values())

    def close(self) -> None:
        """End the thread and close all channels; a worker that calls then gets a ConnectionError."""
        if not self._doorbell.closed:
            self._tell(None)
            self.thread.join(_PATIENCE_S)
            self._doorbell.close()
            self.transport.close()

    def __enter__(self) -> ProxyServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, news: Channel | None) -> None:
        self._news.append(news)
        self._doorbell.send_bytes(b"!")

    def _serve(self) -> None:
        is_over = False
        while not is_over:
            ready = wait([self._alarm, *self._channels])
            with self._turn:
                self._answer([self._channels[at] for at in ready if at is not self._alarm])
                is_over = self._alarm in ready and self._hear()
        for channel in self._channels.values():
            channel.close()
        self._alarm.close()

    def _hear(self) -> bool:
        """Return whether this is the end; otherwise there is a new channel."""
        self._alarm.recv_bytes()
        news = self._news.popleft()
        if news is not None:
            self._channels[news.connection] = news
        return news is None

    def _answer(self, channels: Sequence[Channel]) -> None:
        """Answer the calls that wait in these channels, as one where that can be done."""
        groups: dict[Any, list[_Waiting]] = {}
        for channel in channels:
            one = self._take(channel)
            if one is not None:
                key = channel if self._merger(one.call) is None else (one.call.name, one.call.method)
                groups.setdefault(key, []).append(one)
        for group in groups.values():
            if self._served[group[0].call.name].is_slow:
                threading.Thread(target=self._answer_group, args=(group,), daemon=True).start()
            else:
                self._answer_group(group)

    def _take(self, channel: Channel) -> _Waiting | None:
        """Return the call of a worker; None if it is gone or its call could not be read, which it gets as an answer."""
        try:
            call = channel.view()
            if self._merger(call) is None:
                call = map_tensors(call, torch.clone)  # the object may keep its arguments
            return _Waiting(channel, call)
        except (EOFError, OSError):
            del self._channels[channel.connection]
            channel.close()
        except BaseException as error:
            _reply(channel, Failure.of(error))
        return None

    def _merger(self, call: Call) -> Merger | None:
        return None if call.options else self._served[call.name].mergers.get(call.method)

    def _answer_group(self, group: Sequence[_Waiting]) -> None:
        try:
            results = self._together(group) if len(group) > 1 else [self._result(group[0].call)]
        except Warning as error:  # where warnings are errors
            results = [Failure.of(error)] * len(group)
        for (channel, _), result in zip(group, results, strict=True):
            _reply(channel, result)

    def _together(self, group: Sequence[_Waiting]) -> Sequence[Any]:
        """Return the results of calls made as one; of calls made one by one if that fails."""
        call, arguments = group[0].call, [one.call.arguments for one in group]
        merger = self._merger(call)
        assert merger is not None, "only calls with a merger form a group"
        try:
            with torch.inference_mode():
                results = merger.split(self._method(call)(*merger.merge(arguments)), arguments)
            if len(results) != len(group):
                raise ValueError(f"split: expected {len(group)} results, got {len(results)}")
        except BaseException as error:  # the thread survives any of them
            warnings.warn(f"{call}: {len(group)} calls are made one by one, as one they raise {error!r}", stacklevel=2)
            results = [self._result(one.call) for one in group]
        return results

    def _result(self, call: Call) -> Any:
        """Return the result of a call, or its failure."""
        no_gradients = torch.no_grad() if self._merger(call) is None else torch.inference_mode()
        try:
            with no_gradients:
                return self._method(call)(*call.arguments, **call.options)
        except BaseException as error:  # an exit, too, is the caller's
            return Failure.of(error)

    def _method(self, call: Call) -> Callable[..., Any]:
        return self._served[call.name].method(call.method)


def _methods(target: Any) -> frozenset[str]:
    kind = type(target)
    inherited = set(dir(torch.nn.Module)) - {"forward"} if isinstance(target, torch.nn.Module) else set()
    public = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    special = {name for name, has in ((CALL, callable(target)), (LENGTH, hasattr(kind, LENGTH))) if has}
    return frozenset((public - inherited) | special)


def _reply(channel: Channel, result: Any) -> None:
    """Send a result, or that it cannot be sent; if the worker is gone, the thread that reads will see it."""
    try:
        try:
            channel.send(result)
        except OSError:
            raise
        except MessageError as error:
            channel.send(Failure.of(MessageError(f"result: {error}")))
        except Exception as error:
            channel.send(Failure.of(error))
    except OSError:
        pass
