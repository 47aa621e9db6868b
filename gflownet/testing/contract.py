"""Base of the contract suites: checks with one plain message each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from gflownet.errors import UserError

_PREFIX = "check_"


class ContractError(AssertionError):
    """A class breaks a rule of its contract."""


def expect(condition: object, message: str) -> None:
    """Raise ContractError unless the condition holds."""
    if not condition:
        raise ContractError(message)


def expect_error(error: type[Exception], pattern: str, call: Callable[[], Any], *, doing: str) -> None:
    """Raise ContractError unless a call raises the error with a message that fits the pattern.

    Args:
        error: expected class.
        pattern: regular expression, searched in the message.
        call: without arguments.
        doing: description of the call, for the message.
    """
    try:
        call()
    except error as raised:
        expect(re.search(pattern, str(raised)), f"{doing}: expected a message with {pattern!r}, got {str(raised)!r}")
        return
    raise ContractError(f"{doing}: expected {error.__name__}, got no error")


class Contract:
    """A suite of checks of one class: its methods `check_...`, which raise ContractError."""

    subject = ""  # name of the class in messages

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the checks, in the order of the class."""
        members = [name for base in reversed(cls.__mro__) for name in vars(base)]
        return list(dict.fromkeys(name for name in members if name.startswith(_PREFIX)))

    def run(self, name: str) -> None:
        """Run one check.

        Raises:
            ContractError: the rule that is broken, or the exception of the class, in one line.
        """
        try:
            getattr(self, name)()
        except ContractError as error:
            raise ContractError(f"{self.subject}: {error} ({name})") from None
        except UserError as error:
            raise ContractError(f"{self.subject}: {error} ({name})") from error
        except Exception as error:  # raised by the class
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ContractError(f"{self.subject}: expected no exception, got {reason} ({name})") from error

    def run_all(self) -> None:
        """Run every check. Raises ContractError for the first broken rule."""
        for name in self.names():
            self.run(name)
