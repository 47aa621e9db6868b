"""Errors that the user can mend, shown as one line, and text that is safe on a terminal."""

import argparse
import unicodedata
from typing import NoReturn

# Control characters (escape sequences among them), invisible ones that reorder text, lone surrogates, line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class UserError(ValueError):
    """An error of the user's input: shown as one line without a traceback, exit status 2."""


class CommandLine(argparse.ArgumentParser):
    """A parser whose errors are UserErrors, where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        raise UserError(f"{message}; see --help")


def printable(text: str) -> str:
    """Return the text with every character that a terminal would act upon written as its escape, but for line feeds."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c) not in _HIDDEN else _escaped(c) for c in text)


def error_line(error: Exception) -> str:
    """Return the one line that a command prints for a user's mistake."""
    return f"error: {printable(' '.join(str(error).split()))}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
