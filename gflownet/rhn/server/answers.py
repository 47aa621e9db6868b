"""Answers in OpenAI's shape: text and log-probabilities from tokens, one piece at a time or whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gflownet.rhn.bytes_text import StreamDecoder
from gflownet.rhn.serving.sampling import Sampled

_FIRST_NOT_ASCII = 0x80


@dataclass(frozen=True)
class Piece:
    """Some more of one choice."""

    index: int  # of the choice
    text: str
    tokens: tuple[Sampled, ...]
    offsets: tuple[int, ...]  # for each token how many characters of the choice come before it
    finish_reason: str | None  # with the last piece


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces of each choice as one, in the order of the choices."""
    whole: dict[int, Piece] = {}
    for piece in pieces:
        before = whole.get(piece.index, Piece(piece.index, "", (), (), None))
        whole[piece.index] = Piece(
            piece.index,
            before.text + piece.text,
            before.tokens + piece.tokens,
            before.offsets + piece.offsets,
            piece.finish_reason,
        )
    return [whole[index] for index in sorted(whole)]


class Choice:
    """The text of one choice while its tokens come; a stream and a whole answer both come from here."""

    def __init__(self, index: int, prefix: str = "") -> None:
        """`prefix` is the text before the first token."""
        self.index, self.num_tokens = index, 0
        self._decoder, self._length, self._unsaid = StreamDecoder(), len(prefix), prefix
        self._tokens: list[Sampled] = []
        self._offsets: list[int] = []

    def add(self, token: Sampled) -> None:
        """Take one more token."""
        self.num_tokens += 1
        self._tokens.append(token)
        self._offsets.append(self._length)
        self._say(self._decoder.text([token.token]))

    def piece(self, finish_reason: str | None = None) -> Piece | None:
        """Return the text since the last piece, whole characters only; None where there is none.

        The last piece, which has a reason, has the rest.
        """
        if finish_reason is not None:
            self._say(self._decoder.rest())
        elif not self._unsaid:
            return None
        piece = Piece(self.index, self._unsaid, tuple(self._tokens), tuple(self._offsets), finish_reason)
        self._unsaid, self._tokens, self._offsets = "", [], []
        return piece

    def _say(self, text: str) -> None:
        self._unsaid += text
        self._length += len(text)


def token_name(token: int) -> str:
    """Return a token as text; a byte that is no character by itself as OpenAI spells it."""
    return chr(token) if token < _FIRST_NOT_ASCII else f"bytes:\\x{token:02x}"


@dataclass(frozen=True)
class Envelope:
    """Header fields of every message of one answer, and the form of its pieces."""

    model: str
    has_logprobs: bool
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def message(self, pieces: Sequence[Piece], **more: Any) -> dict[str, Any]:
        """Return pieces as one message: a whole answer, or one event of a stream."""
        choices = [self._choice(piece) for piece in pieces]
        head = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**head, "choices": choices, **more}

    def _choice(self, piece: Piece) -> dict[str, Any]:
        logprobs = None
        if self.has_logprobs:
            logprobs = {
                "tokens": [token_name(one.token) for one in piece.tokens],
                "token_logprobs": [one.log_probability for one in piece.tokens],
                "top_logprobs": [{token_name(token): value for token, value in one.likeliest} for one in piece.tokens],
                "text_offset": list(piece.offsets),
            }
        return {"index": piece.index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}


def usage(num_prompt_tokens: int, num_tokens: int) -> dict[str, int]:
    """Return OpenAI's count of tokens."""
    total = num_prompt_tokens + num_tokens
    return {"prompt_tokens": num_prompt_tokens, "completion_tokens": num_tokens, "total_tokens": total}
