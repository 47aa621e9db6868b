"""Text of choices from their tokens, for streams and for whole answers."""

from __future__ import annotations

from dataclasses import dataclass

from gflownet.rhn.serving.sampling import Sampled
from gflownet.rhn.text_codec import BYTES, TextCodec


@dataclass(frozen=True)
class Piece:
    """The next part of one choice."""

    index: int  # of the choice
    text: str
    tokens: tuple[Sampled, ...]
    offsets: tuple[int, ...]  # for each token the number of characters of the choice before it
    finish_reason: str | None  # of the last piece


class Choice:
    """Text of one choice from its tokens."""

    def __init__(self, index: int, prefix: str = "", *, codec: TextCodec = BYTES) -> None:
        """Start a choice after the text `prefix`."""
        self.index, self.num_tokens, self._codec = index, 0, codec
        self._decoder, self._length, self._unsent = codec.stream(), len(prefix), prefix
        self._tokens: list[Sampled] = []
        self._offsets: list[int] = []

    def add(self, token: Sampled) -> None:
        """Add a token."""
        text, before = self._decoder.text([token.token]), self._length
        self._append(text)
        self._tokens.append(token)
        # The text may start with the replacement of an incomplete character of the tokens before.
        own = self._codec.decode([token.token]) if len(text) > 1 else text
        self._offsets.append(self._length - len(own) if own and text.endswith(own) else before)
        self.num_tokens += 1

    def piece(self, finish_reason: str | None = None, *, cut: int = 0) -> Piece | None:
        """Return the new text since the last piece, whole characters only; None if there is none.

        With `finish_reason`, return the last piece, with any incomplete character, without the last `cut` characters.
        """
        if finish_reason is not None:
            self._append(self._decoder.rest())
            self._append("", cut=cut)
        elif not self._unsent:
            return None
        piece = Piece(self.index, self._unsent, tuple(self._tokens), tuple(self._offsets), finish_reason)
        self._unsent, self._tokens, self._offsets = "", [], []
        return piece

    def _append(self, text: str, *, cut: int = 0) -> None:
        self._unsent = (self._unsent + text)[: -cut or None]
        self._length += len(text) - cut
