"""Text of choices from their tokens, for streams and for whole answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

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
    num_prompt: int = 0  # of the tokens: the first ones, which are the prompt's


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join the pieces of each choice, in the order of the choices."""
    by_choice: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_choice.setdefault(piece.index, []).append(piece)
    return [
        Piece(
            index,
            "".join(piece.text for piece in parts),
            tuple(token for piece in parts for token in piece.tokens),
            tuple(offset for piece in parts for offset in piece.offsets),
            parts[-1].finish_reason,
            sum(piece.num_prompt for piece in parts),
        )
        for index, parts in sorted(by_choice.items())
    ]


def likeliest(pieces: Sequence[Piece], *, num_answers: int, num_choices: int) -> list[Piece]:
    """Return the whole answers to each prompt with the largest mean log-probabilities per token, likeliest first.

    Of each `num_answers` pieces, in the order of the prompts, `num_choices` are returned. The tokens of an echoed
    prompt do not count.
    """
    best: list[Piece] = []
    for start in range(0, len(pieces), num_answers):
        ranked = sorted(pieces[start : start + num_answers], key=_mean_log_probability, reverse=True)
        best += ranked[:num_choices]
    return [replace(piece, index=index) for index, piece in enumerate(best)]


def _mean_log_probability(piece: Piece) -> float:
    answer = piece.tokens[piece.num_prompt :]
    values = [sampled.log_probability for sampled in answer if sampled.log_probability is not None]
    return fmean(values) if values else -float("inf")


class Choice:
    """Text of one choice from its tokens."""

    def __init__(self, index: int, prefix: str = "", *, codec: TextCodec = BYTES, num_prompt: int = 0) -> None:
        """Start a choice after the text `prefix`; the first `num_prompt` tokens are the prompt's, not the answer's."""
        self.index, self.num_tokens, self._codec = index, 0, codec
        self._decoder, self._length, self._unsent = codec.stream(), len(prefix), prefix
        self._num_prompt = num_prompt  # still to come
        self._num_added = 0  # tokens of the prompt since the last piece
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
        if self._num_prompt == 0:
            self.num_tokens += 1
            return
        self._num_prompt -= 1
        self._num_added += 1
        if self._num_prompt == 0:
            self._append(self._decoder.rest())

    def piece(self, finish_reason: str | None = None, *, cut: int = 0) -> Piece | None:
        """Return the new text since the last piece, whole characters only; None if there is none.

        With `finish_reason`, return the last piece, with any incomplete character, without the last `cut` characters.
        """
        if finish_reason is not None:
            self._append(self._decoder.rest())
            self._append("", cut=cut)
        elif not self._unsent:
            return None
        tokens, offsets = tuple(self._tokens), tuple(self._offsets)
        piece = Piece(self.index, self._unsent, tokens, offsets, finish_reason, self._num_added)
        self._unsent, self._tokens, self._offsets, self._num_added = "", [], [], 0
        return piece

    def _append(self, text: str, *, cut: int = 0) -> None:
        self._unsent = (self._unsent + text)[: -cut or None]
        self._length += len(text) - cut
