"""The error that is the user's to mend."""


class UserError(ValueError):
    """A mistake in what the user gave: shown as one line without a traceback, exit status 2."""
