"""Answers to a request as a stream of pieces, with a bounded number of unread events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from statistics import fmean
from typing import Protocol

from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.serving.requests import Event, FinishEvent, PromptEvent
from gflownet.rhn.serving.sampling import FinishReason, Sampled
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


MAX_UNREAD = 128  # events of one answer; more pause it, until its client has read them


class Control(Protocol):
    """Control of requests in the engine, by their ids."""

    def cancel(self, request_ids: Iterable[int]) -> None:
        """End requests."""
        ...

    def pause(self, request_ids: Iterable[int]) -> None:
        """Stop requests, which keep their slots."""
        ...

    def resume(self, request_ids: Iterable[int]) -> None:
        """Continue paused requests."""
        ...


class Answer:
    """A stream of pieces, one or more choices per prompt. Used by the thread of the event loop only."""

    def __init__(self, choices: dict[int, Choice], num_prompt_tokens: int, control: Control) -> None:
        """`choices` by request id of the engine."""
        self.num_prompt_tokens = num_prompt_tokens
        self.is_paused = False
        self._choices, self._open, self._control = choices, dict(choices), control
        self._events: list[Event] = []
        self._failure: RequestError | None = None
        self._changed = asyncio.Event()

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens of all choices."""
        return sum(choice.num_tokens for choice in self._choices.values())

    def add(self, event: Event) -> None:
        """Add an event of the engine."""
        self._events.append(event)
        self._changed.set()
        if len(self._events) >= MAX_UNREAD and not self.is_paused:
            self.is_paused = True
            self._control.pause(self._open)

    def fail(self, error: RequestError) -> None:
        """End the answer with an error."""
        self._failure = error
        self._changed.set()
        self.close()

    def close(self) -> None:
        """Cancel the unfinished choices."""
        self._resume()
        self._control.cancel(self._open)

    async def pieces(self, deadline: float) -> AsyncIterator[list[Piece]]:
        """Yield new pieces until every choice is finished.

        Raises:
            RequestError: the clock of the event loop passes `deadline`, or the engine fails.
        """
        while self._open:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                self.fail(RequestError(HTTPStatus.GATEWAY_TIMEOUT, "the answer took longer than the server allows"))
            self._changed.clear()
            events, self._events = self._events, []
            pieces = self._read(events)
            self._resume()
            if self._failure is not None:
                raise self._failure
            if pieces:
                yield pieces

    def _resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._control.resume(self._open)

    def _read(self, events: Sequence[Event]) -> list[Piece]:
        """Return the pieces of some events, one per choice."""
        pieces: list[Piece | None] = []
        changed: dict[int, Choice] = {}
        for event in events:
            choice = self._choices[event.request_id]
            if isinstance(event, FinishEvent):
                changed.pop(event.request_id, None)
                del self._open[event.request_id]
                pieces.append(self._last_piece(choice, event))
                continue
            for sampled in event.sampled if isinstance(event, PromptEvent) else (event.sampled,):
                choice.add(sampled)
            changed[event.request_id] = choice
        pieces += [choice.piece() for choice in changed.values()]
        return [piece for piece in pieces if piece is not None]

    def _last_piece(self, choice: Choice, event: FinishEvent) -> Piece | None:
        if event.finish_reason is FinishReason.ERROR:
            self._failure = self._failure or RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, event.error)
        return choice.piece(event.finish_reason, cut=event.cut)
