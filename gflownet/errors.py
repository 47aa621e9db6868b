"""User errors, printed as one line, and escaping of text for terminals."""

import unicodedata
from typing import ClassVar

# Control characters (escape sequences among them), invisible ones that reorder text, lone surrogates, line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class UserError(ValueError):
    """An error of the user's input: shown as one line without a traceback, with the exit status."""

    status: ClassVar[int] = 2


class LostFolderError(UserError):
    """The folder of a run was deleted or moved during the run: nothing more is written."""

    status = 1


def printable(text: str) -> str:
    """Escape all control characters except line feeds."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c) not in _HIDDEN else _escaped(c) for c in text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 step, 2 steps, 1,000 steps."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def error_line(error: Exception) -> str:
    """Return the line that a command prints for a user error."""
    return f"error: {printable(' '.join(str(error).split()))}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
