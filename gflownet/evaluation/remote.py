"""Evaluation for sampling workers: they submit candidates to the main process's dispatcher and poll for results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.ticket import Request, Ticket
from gflownet.graphs.canonical import Candidate

# Shortest and longest pause between two polls of a worker, seconds.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class EvaluationDesk:
    """The dispatcher in calls that return at once, so that the server's thread keeps answering other workers."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._numbers = count()
        self._open: dict[int, tuple[list[Ticket], int]] = {}

    def submit(self, candidates: Sequence[Candidate], step: int) -> int:
        """Start the evaluation of candidates and return its number."""
        number = next(self._numbers)
        self._open[number] = self._dispatcher.submit([Request(each) for each in candidates], step=step), step
        return number

    def take(self, number: int) -> list[Evaluation] | None:
        """Return the evaluations of `submit`, None while one is running."""
        tickets, step = self._open[number]
        if any(ticket.record is None for ticket in tickets):
            self._dispatcher.advance(timeout=0)
        if any(ticket.record is None for ticket in tickets):
            return None
        del self._open[number]
        return self._dispatcher.evaluations(tickets, step=step)


class RemoteEvaluator(Evaluator):
    """The evaluator in a worker."""

    def __init__(self, desk: Any) -> None:
        """`desk`: proxy of an `EvaluationDesk`."""
        self._desk = desk

    def evaluate(self, candidates: Sequence[Candidate], *, step: int) -> list[Evaluation]:
        number = self._desk.submit(list(candidates), step)
        pause = _SHORTEST_PAUSE_S
        while (evaluations := self._desk.take(number)) is None:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return evaluations
