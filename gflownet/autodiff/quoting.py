"""Values in error messages: their repr, cut to a maximum length."""

from __future__ import annotations

import reprlib

MAX_LENGTH = 60

_QUOTED = reprlib.Repr()
_QUOTED.maxstring = _QUOTED.maxother = MAX_LENGTH


def shortened(value: object) -> str:
    """Return the repr of a value in one line, long ones abbreviated."""
    try:
        text = " ".join(_QUOTED.repr(value).split())
    except ValueError:  # an integer of more digits than Python writes out
        return f"a long {type(value).__name__}"
    return text if len(text) <= MAX_LENGTH + 2 else f"{text[: MAX_LENGTH - 3]}..."
