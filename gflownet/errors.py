"""The error that is the user's to mend, and a command line that makes it of what it does not understand."""

import argparse
from typing import NoReturn


class UserError(ValueError):
    """A mistake in what the user gave: shown as one line without a traceback, exit status 2."""


class CommandLine(argparse.ArgumentParser):
    """A parser whose errors are UserErrors, where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        raise UserError(f"{message}; --help says more")
