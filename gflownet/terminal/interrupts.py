"""Graceful stop on Ctrl-C, SIGTERM, SIGHUP and SIGUSR1, and output to closed pipes and terminals."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

STOP_MESSAGE = (
    "\nstopping: running evaluations are cancelled, checkpoint and report are written; repeat to stop immediately\n"
)


# Seconds from a SIGTERM or SIGHUP to the end of the process, and to the end of a step that it has begun.
END_S = 5.0
ABANDON_S = 2.0
# SIGUSR1 is the notice of a scheduler, with minutes left: like Ctrl-C, the report may take its time.
_WITHOUT_END = (signal.SIGINT, signal.SIGUSR1)
_ONCE = (signal.SIGHUP, signal.SIGUSR1)
# Words of their command lines; the resource tracker goes on and cleans up.
_PROCESSES = {"multiprocessing.forkserver", "multiprocessing.spawn"}


class AbandonedError(KeyboardInterrupt):
    """Raised in a block of `StopRequest.abandonable`."""


class Interruption:
    """Ends a block of code of any thread by an exception. One block runs at a time."""

    def __init__(self, error: type[KeyboardInterrupt]) -> None:
        """Take the class of the exception: no Exception, so that the block does not handle it."""
        self._error = error
        self._thread: int | None = None  # of the running block
        self._is_sent = False  # an exception from another thread to the block
        self._lock = threading.RLock()

    @contextmanager
    def block(self) -> Iterator[None]:
        """Run a block that `interrupt` ends."""
        with self._lock:
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                self._thread = None
                if self._is_sent:
                    self._is_sent = False
                    self._receive()

    def interrupt(self) -> None:
        """End the running block, if there is one; called by signal handlers in the main thread, or by other threads.

        A block in another thread ends before its next Python instruction, not during a call into a library.
        """
        with self._lock:
            thread = self._thread
            if thread is not None and thread != threading.get_ident():
                self._is_sent = True
                self._send(thread)
        if thread == threading.get_ident():
            raise self._error

    def _send(self, thread: int) -> None:
        """Raise the exception in a thread, soon and once."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(self._error))

    def _receive(self) -> None:
        """Catch an exception that may not have been raised yet.

        To remove it instead (NULL) leaves the flag of a pending one set: each later call of a function is slower, and
        under a profiler, such as cProfile, Python 3.11 waits for ever at the next call until the flag is gone.
        """
        with suppress(self._error):
            self._send(threading.get_ident())
            while True:  # it is raised at the next jump at the latest
                pass


@dataclass
class StopRequest:
    """The signal that requested the stop, once received."""

    signal: int | None = None
    # Called by the handler of the signal: records the signal, then ends what runs.
    mark: Callable[[int], None] = lambda number: None
    react: Callable[[], None] = lambda: None
    _step: Interruption = field(default_factory=lambda: Interruption(AbandonedError))
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def abandonable(self) -> AbstractContextManager[None]:
        """Run a block that ends with AbandonedError if it runs ABANDON_S after a SIGTERM or SIGHUP."""
        return self._step.block()

    def completed(self) -> AbstractContextManager[object]:
        """Run a block, such as the writing of a checkpoint, that the end of the process waits for."""
        return self._writing

    def end_process(self, number: int) -> None:
        """Abandon the step, and end the process if the run has not ended by itself; in a thread of its own."""
        if self._is_over.wait(ABANDON_S):
            return
        self._step.interrupt()
        _end_started_processes()
        if self._is_over.wait(END_S - ABANDON_S):
            return
        with self._writing:
            if not self._is_over.is_set():
                os.write(2, f"stopped {END_S:g} s after the signal, before the report was complete\n".encode())
                os._exit(128 + number)


def _end_started_processes() -> None:
    """Kill the processes of multiprocessing. The start of one may block; left alone it ends with a traceback."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if _PROCESSES.intersection(" ".join(process.cmdline()).split()):
                process.kill()


def discard_output_without_reader() -> bool:
    """Return whether stdout is a pipe without a reader, as in `--help | head`, and discard further output.

    A BrokenPipeError does not name its pipe: it may also be the pipe of a dead worker.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # stdout is not a file
        return False
    return _discard_if_closed(descriptor)


def discard_output_of_closed_terminal() -> None:
    """Discard further output on stdout and stderr where they are a terminal, or a pipe, that has been closed."""
    for descriptor in (1, 2):
        _discard_if_closed(descriptor)


def discard_output_that_fails() -> None:
    """Flush stdout; if that fails, for example on a full disk, discard further output."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout.fileno())


def _discard_if_closed(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        return False
    _discard(descriptor)
    return True


def _discard(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


@contextmanager
def stop_signals(
    *kinds: signal.Signals, message: str = STOP_MESSAGE, ends_process: bool = False
) -> Iterator[StopRequest]:
    """Turn the first signal into a request to stop; a second one ends the process.

    A second SIGHUP is ignored: a closed terminal sends one, and its shell another; so is a second SIGUSR1 of a
    scheduler. SIGHUP is left alone if it is ignored already, as after nohup.

    By default of SIGINT, SIGTERM, SIGHUP and SIGUSR1. `message` is written to stderr on the first signal.
    `ends_process`: after a SIGTERM or SIGHUP, the process ends after END_S at the latest.
    """
    request, kinds = StopRequest(), kinds or (*_WITHOUT_END, signal.SIGTERM, signal.SIGHUP)
    usual = {kind: signal.getsignal(kind) for kind in kinds}
    if usual.get(signal.SIGHUP) == signal.SIG_IGN:
        del usual[signal.SIGHUP]

    def on_signal(number: int, frame: FrameType | None) -> None:
        request.signal = number
        for kind, handler in usual.items():
            signal.signal(kind, signal.SIG_IGN if kind in _ONCE else handler)
        if number == signal.SIGHUP:
            discard_output_of_closed_terminal()
        request.mark(number)
        if ends_process and number not in _WITHOUT_END:
            threading.Thread(target=request.end_process, args=(number,), daemon=True).start()
        sys.stderr.write(message)
        request.react()

    for kind in usual:
        signal.signal(kind, on_signal)
    try:
        yield request
    finally:
        request._is_over.set()
        for kind, handler in usual.items():
            signal.signal(kind, handler)


@contextmanager
def on_alarm(react: Callable[[], None]) -> Iterator[None]:
    """Call a function when the SIGALRM of a timer arrives in the block."""
    handler = signal.signal(signal.SIGALRM, lambda number, frame: react())
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
