"""A fork server for one executor: children that start quickly, without importing the main script again."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, popen_forkserver, process, reduction, spawn, synchronize, util
from multiprocessing import forkserver as forkservers
from multiprocessing.context import ForkServerContext, ForkServerProcess, set_spawning_popen
from typing import Any

from gflownet.evaluation.executors.parent import PARENT_VARIABLE

# One thread per child; the libraries read these when they are loaded.
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# How a child would find and run the main script.
_MAIN_SCRIPT = ("init_main_from_name", "init_main_from_path")


class IndependentContext(ForkServerContext):
    """The multiprocessing context of a fork server that is independent of the global one.

    Children of the global one import the main script again: a script without `if __name__ == "__main__"` would start
    another run in each of them.
    """

    def __init__(self, *, preload: Sequence[str], imports_main: bool) -> None:
        """Keep the settings; the server starts with the first process.

        Args:
            preload: modules to import once, in the server.
            imports_main: children import the main script.
        """
        super().__init__()
        self.server = forkservers.ForkServer()
        self.server.set_forkserver_preload(list(preload))
        self.imports_main = imports_main

    def Process(self, *args: Any, **kwargs: Any) -> process.BaseProcess:  # noqa: N802, the name in multiprocessing
        """Return a process of this server, not yet started."""
        child = _Process(*args, **kwargs)
        child.context = self
        return child

    def RLock(self) -> synchronize.RLock:  # noqa: N802
        """Return a lock that processes share."""
        return synchronize.RLock(ctx=self)

    def Pipe(self, duplex: bool = True) -> Any:  # noqa: N802
        """Return two connected ends."""
        return connection.Pipe(duplex)

    def start(self) -> None:
        """Start the server, if it does not run; it imports the modules while this process goes on.

        The server inherits the blocked signals: those of a terminal belong to the main process.
        """
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            with _environment({**dict.fromkeys(THREAD_LIMITS, "1"), PARENT_VARIABLE: str(os.getpid())}):
                self.server.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    def pid(self) -> int | None:
        """Return the process id of the server, None if it does not run."""
        return self.server._forkserver_pid  # type: ignore[attr-defined]

    def stop(self) -> None:
        """End the server; its children have ended."""
        pid = self.pid()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a second faster than its own exit; it has no state
        self.server._stop()  # type: ignore[attr-defined]


class _Process(ForkServerProcess):
    """A child of the server of its context."""

    context: IndependentContext

    def _Popen(self, process_obj: Any) -> Any:  # type: ignore[override]  # noqa: N802
        return _Popen(process_obj)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "context"}


class _Popen(popen_forkserver.Popen):
    """The start of a process, as in the standard library but with the server of its context."""

    def _launch(self, process_obj: Any) -> None:
        context = process_obj.context
        preparation = spawn.get_preparation_data(process_obj._name)
        if not context.imports_main:
            preparation = {name: value for name, value in preparation.items() if name not in _MAIN_SCRIPT}
        message = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(preparation, message)
            reduction.dump(process_obj, message)
        finally:
            set_spawning_popen(None)
        context.start()
        self.sentinel, writer = context.server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        # The child notices the end of this process when this copy is closed.
        copy = os.dup(writer)
        self.finalizer = util.Finalize(self, util.close_fds, (copy, self.sentinel))  # type: ignore[attr-defined]
        with open(writer, "wb", closefd=True) as file:
            file.write(message.getbuffer())
        self.pid = forkservers.read_signed(self.sentinel)  # type: ignore[attr-defined]


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
