"""Interruption of an evaluation in this process, by a signal handler or another thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class EvaluationInterruptedError(KeyboardInterrupt):
    """Raised inside an evaluation that is stopped. No failure of its candidate, hence no Exception."""


class Interruption:
    """Ends a block of code of any thread by an exception. One block runs at a time."""

    def __init__(self) -> None:
        self._thread: int | None = None  # of the running block
        self._lock = threading.RLock()

    @contextmanager
    def block(self) -> Iterator[None]:
        """Run a block that `interrupt` ends with EvaluationInterruptedError."""
        with self._lock:
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                thread, self._thread = self._thread, None
                if thread is not None:
                    _raise_in(thread, None)

    def interrupt(self) -> None:
        """End the running block, if there is one; called by signal handlers in the main thread, or by other threads.

        A block in another thread ends before its next Python instruction, not during a call into a library.
        """
        with self._lock:
            thread = self._thread
            if thread is not None and thread != threading.get_ident():
                _raise_in(thread, EvaluationInterruptedError)
        if thread == threading.get_ident():
            raise EvaluationInterruptedError


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread; None: remove one that is not raised yet."""
    exception = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
