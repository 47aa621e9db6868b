"""What messages quote: values as they would be typed, cut where they are long."""

from __future__ import annotations

import reprlib

MAX_LENGTH = 60

_QUOTED = reprlib.Repr()
_QUOTED.maxstring = _QUOTED.maxother = MAX_LENGTH


def shortened(value: object) -> str:
    """Return a value as it would be typed, in one line; of a long one the ends, of nested lists a few entries."""
    try:
        text = " ".join(_QUOTED.repr(value).split())
    except ValueError:  # an integer of more digits than Python writes out
        return f"a long {type(value).__name__}"
    return text if len(text) <= MAX_LENGTH + 2 else f"{text[: MAX_LENGTH - 3]}..."
