"""Text as tokens: one token per byte of its UTF-8, whatever the model says readable as text."""

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
    """Return tokens as text; what is no UTF-8 becomes the replacement character."""
    return bytes(tokens).decode("utf-8", errors="replace")


class StreamDecoder:
    """Text from tokens as they come, whole characters only; all pieces together are what `decode` says."""

    def __init__(self) -> None:
        """Start without a token."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text(self, tokens: Iterable[int]) -> str:
        """Return the characters that these tokens complete."""
        return self._decoder.decode(bytes(tokens))

    def rest(self) -> str:
        """Return what the last tokens began and nothing will complete; the decoder starts anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
