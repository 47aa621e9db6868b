"""Exceptions on their way from one process to another."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass


class RemoteTraceback(Exception):  # noqa: N818
    """The cause of an exception that another process raised: where it did so, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


@dataclass(frozen=True)
class Failure:
    """An exception as it travels: any process can read it, even if its class cannot be rebuilt."""

    pickled: bytes | None  # None: its class cannot be pickled, or not be rebuilt from that
    summary: str  # class and message
    text: str  # the traceback

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return an exception ready to travel."""
        summary = "".join(traceback.format_exception_only(error)).strip()
        return cls(_pickled(error), summary, "".join(traceback.format_exception(error)))

    def error(self) -> Exception:
        """Return the exception, a RuntimeError in its place where it cannot be rebuilt; the traceback is its cause."""
        error: Exception | None = None
        if self.pickled is not None:
            try:
                error = pickle.loads(self.pickled)
            except Exception:  # its traceback must arrive, even if a foreign class raises here
                error = None
        error = error or RuntimeError(self.summary)
        error.__cause__ = RemoteTraceback(self.text)
        return error


def _pickled(error: BaseException) -> bytes | None:
    """Return a pickle from which the exception can be rebuilt; an exit or interrupt must not end the reader."""
    try:
        pickled = pickle.dumps(error)
        same = isinstance(error, Exception) and type(pickle.loads(pickled)) is type(error)
    except Exception:
        return None
    return pickled if same else None
