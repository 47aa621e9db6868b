"""User errors, printed as one line, and escaping of text for terminals."""

import difflib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

# Likeness of a misspelt word and the meant one.
NEAR = 0.6
_MAX_SUMMARY = 40  # lines about the data on a console; data.txt of a run has all
# Control characters (escape sequences among them), invisible ones that reorder text, lone surrogates, line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class UserError(ValueError):
    """An error of the user's input: shown as one line without a traceback, with the exit status."""

    status: ClassVar[int] = 2
    summary: Sequence[str] = ()  # lines about the data that was read, printed before the error


class LostFolderError(UserError):
    """The folder of a run was deleted or moved during the run: nothing more is written."""

    status = 1


@contextmanager
def with_summary(lines: Sequence[str]) -> Iterator[None]:
    """Print lines about the data before a UserError of the block; they may be added during it."""
    try:
        yield
    except UserError as error:
        error.summary = (*lines, *error.summary)
        raise


def printable(text: str) -> str:
    """Escape all control characters except line feeds."""
    if text.isprintable():
        return text
    shown = (c == "\n" or unicodedata.category(c) not in _HIDDEN for c in text)
    return "".join(c if ok else c.encode("unicode_escape").decode() for c, ok in zip(text, shown, strict=True))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 step, 2 steps, 1,000 steps."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def likeness(word: str, other: str) -> float:
    """Return the similarity of two words in [0, 1]; upper and lower case are alike."""
    return difflib.SequenceMatcher(None, word.lower(), other.lower()).ratio()


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return "; did you mean X?" with the word nearest to a misspelt one, empty without words."""
    nearest = max(words, key=lambda each: (each.startswith(word), likeness(word, each)), default=None)
    return "" if nearest is None else f"; did you mean {nearest}?"


def summary_lines(summary: Sequence[str]) -> Iterator[str]:
    """Yield the first lines about the data for a console, and the number of the others."""
    yield from map(printable, summary[:_MAX_SUMMARY])
    if (num := len(summary) - _MAX_SUMMARY) > 0:
        yield f"  ... and {counted(num, 'more line')}"


def error_line(error: Exception) -> str:
    """Return the line that a command prints for a user error."""
    return f"error: {printable(' '.join(str(error).split()))}"
