"""Server thread of the main process for calls from workers; simultaneous calls of one method are merged."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any, NamedTuple, Protocol

import torch

from gflownet.files import Closing
from gflownet.workers.packing import MessageError, map_tensors
from gflownet.workers.process import CPU
from gflownet.workers.proxy import CALL, LENGTH, Call, Endpoint, Failure
from gflownet.workers.transport import Channel, Listener, Transport

_CLOSE_TIMEOUT_S = 1.0  # for a running call when the server closes


class Merger(Protocol):
    """Merging of simultaneous calls of one method.

    The method must be a pure function of its arguments: it runs in `torch.inference_mode`, its arguments may lie in
    memory that the caller overwrites after it has the result, and if a merged call fails, the calls are retried one by
    one, so that only the faulty one fails.
    """

    def merge(self, calls: Sequence[tuple]) -> tuple:
        """Return the arguments of the merged call, given the positional arguments of each call."""
        ...

    def split(self, result: Any, calls: Sequence[tuple]) -> Sequence[Any]:
        """Return the result of each call, given the result of the merged call."""
        ...


class Served:
    """An object and the methods that workers may call: public ones and the length, without those of `nn.Module`.

    Args:
        target: the object.
        mergers: by method, for methods whose calls can be merged.
    """

    def __init__(self, target: Any, mergers: Mapping[str, Merger] | None = None) -> None:
        self.target, self.mergers = target, dict(mergers or {})
        self.methods = _methods(target)
        if unknown := self.mergers.keys() - self.methods:
            raise ValueError(f"mergers: expected methods of {type(target).__name__}, got {sorted(unknown)}")

    def method(self, name: str) -> Callable[..., Any]:
        """Return a method of the object by name."""
        return self.target if name == CALL else getattr(self.target, name)


class _Request(NamedTuple):
    channel: Channel
    call: Call


class ProxyServer(Closing):
    """Runs the calls of workers in a thread that sleeps until one arrives. A context manager.

    Args:
        served: the objects by name.
        transport: how messages travel.
        device: of the tensors of received calls.

    Attributes:
        endpoint: for the processes that call.
        thread: the thread.
    """

    def __init__(self, served: Mapping[str, Served], *, transport: Transport, device: torch.device = CPU) -> None:
        self.transport, self._served = transport, dict(served)
        self._listener = Listener(transport, device)
        methods = {name: each.methods for name, each in self._served.items()}
        self.endpoint = Endpoint(self._listener.address, methods=methods)
        self._channels: dict[Any, Channel] = {}  # by connection; used by the thread alone
        self.thread = threading.Thread(target=self._serve, name="proxy server", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """End the thread and close all channels; later calls raise ConnectionError."""
        self._listener.stop()
        self.thread.join(_CLOSE_TIMEOUT_S)

    def _serve(self) -> None:
        is_open = True
        while is_open:
            ready = wait([self._listener.socket, *self._channels])
            self._run_calls([self._channels[connection] for connection in ready if connection in self._channels])
            is_open = self._listener.socket not in ready or self._accept()
        for channel in self._channels.values():
            channel.close()
        self._listener.close()

    def _accept(self) -> bool:
        """Add the channel of a process that connects; return False if the server is closed instead."""
        try:
            channel = self._listener.accept()
        except EOFError:
            return False
        except (OSError, RuntimeError) as error:
            warnings.warn(f"a worker cannot connect: {error}", stacklevel=2)
            return True
        self._channels[channel.connection] = channel
        return True

    def _run_calls(self, channels: Sequence[Channel]) -> None:
        """Run the pending calls of these channels, merged where possible."""
        groups: dict[Any, list[_Request]] = {}
        for channel in channels:
            request = self._receive(channel)
            if request is not None:
                call = request.call
                key = channel if self._merger(call) is None else (call.name, call.method)
                groups.setdefault(key, []).append(request)
        for group in groups.values():
            self._run_group(group)

    def _receive(self, channel: Channel) -> _Request | None:
        """Return the call of a worker; None if the worker is gone or its call is unreadable (replied as a failure)."""
        try:
            call = channel.view()
            if self._merger(call) is None:
                call = map_tensors(call, torch.clone)  # the object may keep its arguments
            return _Request(channel, call)
        except (EOFError, OSError):
            del self._channels[channel.connection]
            channel.close()
        except BaseException as error:
            _reply(channel, Failure.of(error))
        return None

    def _merger(self, call: Call) -> Merger | None:
        return None if call.options else self._served[call.name].mergers.get(call.method)

    def _run_group(self, group: Sequence[_Request]) -> None:
        try:
            results = self._run_merged(group) if len(group) > 1 else [self._run(group[0].call)]
        except Warning as error:  # where warnings are errors
            results = [Failure.of(error)] * len(group)
        for (channel, _), result in zip(group, results, strict=True):
            _reply(channel, result)

    def _run_merged(self, group: Sequence[_Request]) -> Sequence[Any]:
        """Return the results of merged calls; retry one by one if the merged call fails."""
        call, arguments = group[0].call, [request.call.arguments for request in group]
        merger = self._merger(call)
        assert merger is not None, "only calls with a merger form a group"
        try:
            with torch.inference_mode():
                results = merger.split(self._method(call)(*merger.merge(arguments)), arguments)
            if len(results) != len(group):
                raise ValueError(f"split: expected {len(group)} results, got {len(results)}")
        except BaseException as error:  # the thread survives any of them
            warnings.warn(
                f"{call}: {len(group)} calls are retried one by one, merged they raise {error!r}", stacklevel=2
            )
            results = [self._run(request.call) for request in group]
        return results

    def _run(self, call: Call) -> Any:
        """Return the result of a call, or its failure."""
        no_gradients = torch.no_grad() if self._merger(call) is None else torch.inference_mode()
        try:
            with no_gradients:
                return self._method(call)(*call.arguments, **call.options)
        except BaseException as error:  # SystemExit too is raised in the caller
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
    """Send a result, or the error of sending it; the reading thread notices a worker that is gone."""
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
