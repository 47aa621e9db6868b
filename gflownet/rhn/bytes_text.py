"""Text as tokens, one per byte of its UTF-8; any tokens as text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

NUM_TOKENS = 256


def encode(text: str) -> list[int]:
    """Return the bytes of a text as tokens.

    Raises:
        ValueError: a text with half of a surrogate pair, which has no UTF-8.
    """
    try:
        return list(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ValueError(f"text: expected characters with a UTF-8, got {text[error.start]!r}") from None


def decode(tokens: Iterable[int]) -> str:
    """Return tokens as text; invalid UTF-8 becomes the replacement character."""
    return bytes(tokens).decode("utf-8", errors="replace")


class StreamDecoder:
    """Text from tokens as they come, whole characters only; joined pieces equal `decode` of all tokens."""

    def __init__(self) -> None:
        """Start without a token."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text(self, tokens: Iterable[int]) -> str:
        """Return the characters that these tokens complete."""
        return self._decoder.decode(bytes(tokens))

    def rest(self) -> str:
        """Return the text of an incomplete last character, and reset the decoder."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
