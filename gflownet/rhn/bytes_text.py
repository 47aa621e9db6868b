"""Convert between text and tokens, one token per byte of UTF-8 (no torch)."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

NUM_TOKENS = 256


def encode(text: str) -> list[int]:
    """Return the bytes of a text as tokens.

    Raises:
        ValueError: a text with half of a surrogate pair, which UTF-8 cannot encode.
    """
    try:
        return list(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ValueError(f"text: expected characters that UTF-8 can encode, got {text[error.start]!r}") from None


def decode(tokens: Iterable[int]) -> str:
    """Return the text of tokens; invalid UTF-8 becomes the replacement character."""
    return bytes(tokens).decode("utf-8", errors="replace")


class StreamDecoder:
    """Decode a stream of tokens, whole characters only; the joined pieces equal `decode` of all tokens."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text(self, tokens: Iterable[int]) -> str:
        """Return the characters that these tokens complete."""
        return self._decoder.decode(bytes(tokens))

    def rest(self) -> str:
        """Return the text of an incomplete last character, and reset the decoder."""
        incomplete = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return incomplete
