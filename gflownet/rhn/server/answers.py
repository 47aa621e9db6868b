"""Answers to a request as a stream of pieces, with a bounded number of unread events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from http import HTTPStatus
from typing import Protocol

from gflownet.rhn.server.choices import Choice, Piece
from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.serving.requests import Event, FinishEvent, PromptEvent
from gflownet.rhn.serving.sampling import FinishReason

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
