"""The loop of a search: keep candidates in flight, learn from their results, until an end.

Letters: B candidates of a call.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Any

import torch

from gflownet.errors import UserError, counted
from gflownet.evaluation.evaluator import AsynchronousEvaluator, Evaluation
from gflownet.evaluation.job import EvaluationFuture, Request
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.states import GraphStates
from gflownet.search.history import Proposal, ProposalOrigin
from gflownet.search.method import Candidates, Learned, Results, SearchMethod

# Longest wait for a finished evaluation between two checks for a stop request, seconds.
_CHECK_EVERY_S = 0.2
# Proposals in a row without a new evaluation after which a search ends: its method only repeats itself.
_MAX_REPEATS = 2_000
# Best proposals whose origins are counted.
_NUM_BEST = 10
# Rounds of a search by default, and the largest size of a round unless there are more places: larger ones find less.
_NUM_ROUNDS, _LARGEST_ROUND = 24, 8
NO_PROPOSALS = "the method has no further proposals"


@dataclass(frozen=True)
class LoopOptions:
    """How many candidates are in flight, how many are learned together, and when it ends."""

    batch: int  # candidates proposed together, and learned together
    width: int  # candidates in flight, at least `batch`
    in_order: bool = True  # learn in order of submission, of whole calls; False: of completion, which timing decides
    num_evaluations: float = math.inf  # new evaluations
    num_rounds: float = math.inf
    patience: int = 0  # evaluations without a better score; 0: no end


@dataclass(frozen=True)
class SearchStep:
    """The results of one round, or of a training step of the method between two rounds."""

    number: int  # of the round, from 1 on
    evaluations: Sequence[Evaluation] = ()  # none of a training step
    metrics: dict[str, float] = field(default_factory=dict)
    other_evaluations: Sequence[Evaluation] = ()  # of further states that the method has scored
    log_rewards: Sequence[float] = ()
    is_resumable: bool = False  # whether a resumed run continues after this training step


@dataclass(frozen=True, eq=False)
class _Call:
    """Candidates that a method proposed together, until their results are learned."""

    number: int
    round: int  # rounds learned before it
    states: GraphStates  # B terminal states
    origins: tuple[ProposalOrigin, ...]  # B, or none where they are not known
    futures: tuple[EvaluationFuture, ...] = ()  # B once they are submitted

    def part(self, rows: list[int]) -> _Call:
        """Return the candidates of these rows."""
        return replace(
            self,
            states=self.states[torch.tensor(rows, dtype=torch.int64)],
            origins=tuple(self.origins[row] for row in rows) if self.origins else (),
            futures=tuple(self.futures[row] for row in rows),
        )

    def rows(self, *, finished: bool) -> list[int]:
        """Return the rows with a result, or those without one."""
        return [row for row, future in enumerate(self.futures) if (future.record is not None) == finished]


class SearchLoop:
    """Keeps `width` candidates of a method in flight, and learns `batch` of them at a time.

    In order of submission the results and the order of all candidates follow from seed and options; in order of
    completion the times of evaluations decide them.

    Attributes:
        round: rounds learned so far.
        num_calls: calls of `propose` with candidates so far.
        end: reason of the end, empty before.
    """

    def __init__(self, method: SearchMethod, options: LoopOptions) -> None:
        self.method, self.history, self.options = method, method.history, options
        self.round = self.num_calls = self.num_repeats = 0
        self.end = ""
        self._in_flight: list[_Call] = []

    def steps(self, evaluator: AsynchronousEvaluator) -> Generator[SearchStep]:
        """Yield every round from the next one on, and the training steps of the method between them.

        Raises:
            EvaluationStoppedError: a stop request, or the budget is spent; the round is not counted.
        """
        self._in_flight = [self._submitted(call, evaluator) for call in self._in_flight]  # of a checkpoint
        with self.method.session(evaluator, first_call=self.num_calls + 1):
            while not self._is_over():
                self._fill(evaluator)
                yield from self._worked(evaluator)
                if not self._in_flight:  # some methods have candidates only after their work
                    self._fill(evaluator)
                if not self._in_flight:
                    self.end = NO_PROPOSALS
                    return
                yield self._learn_next(evaluator)

    def propose(self, num: int) -> Candidates:
        """Return the next candidates, in flight from now on; none where the method has none for now.

        Raises:
            UserError: proposals that are no terminal states.
        """
        with self._timed():
            candidates = Candidates.of(self.method.propose(self.num_calls + 1, num))
        if self.method.keeps_history:
            self._check(candidates.states)
            self.history.start(candidates.states, _origins(candidates))
        self.num_calls += bool(len(candidates.states))
        return candidates

    def learn(self, results: Results) -> SearchStep:
        """Add results to the history, let the method learn from them, and return the round."""
        history, method = self.history, self.method
        num_proposals, num_new = len(history.proposals), history.num_new
        if method.keeps_history:
            history.add(results.states, results.evaluations)
        with self._timed():
            learned = Learned.of(method.observe(results))
        self.round = results.round
        self.num_repeats = 0 if history.num_new > num_new else self.num_repeats + len(results.evaluations)
        counts = origin_counts(history.proposals, num_proposals) | (self._metrics() if method.keeps_history else {})
        metrics = {**learned.metrics, **counts}
        return SearchStep(self.round, results.evaluations, metrics, learned.other_evaluations, learned.log_rewards)

    def work(self) -> Generator[SearchStep]:
        """Do the work of the method after a round, in pieces; the training steps among them are steps of the run."""
        with closing(self.method.work(self.round)) as work:
            while True:
                with self._timed():
                    done = next(work, None)
                if done is None:
                    return
                step = Learned.of(done)
                yield SearchStep(
                    self.round, (), dict(step.metrics), log_rewards=step.log_rewards, is_resumable=step.is_resumable
                )

    def end_at_repeats(self) -> None:
        """End the search where its method has proposed only known architectures for a long time."""
        if not self.end and math.isinf(self.options.num_rounds) and self.num_repeats >= _MAX_REPEATS:
            self.end = f"no new architecture in {counted(self.num_repeats, 'proposal')}"

    @property
    def num_rounds(self) -> int:
        """Return the expected number of rounds."""
        num_left = max(self.options.num_evaluations - self.history.num_new, 0) / self.options.batch
        return int(
            min(self.round + math.ceil(num_left) if math.isfinite(num_left) else math.inf, self.options.num_rounds)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, safe to load with `weights_only=True`."""
        return {
            "round": self.round,
            "num_calls": self.num_calls,
            "num_repeats": self.num_repeats,
            "history": self.history.state_dict(),
            "method": self.method.state_dict(),
            "in_flight": [
                (call.number, call.round, call.states.state_dict(), [int(origin) for origin in call.origins])
                for call in self._in_flight
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; `steps` submits candidates in flight again, and checks for the end."""
        self.round, self.num_calls, self.num_repeats = (state[name] for name in ("round", "num_calls", "num_repeats"))
        self.history.load_state_dict(state["history"])
        self.method.load_state_dict(state["method"])
        self._in_flight = [
            _Call(number, round, GraphStates(**states), tuple(map(ProposalOrigin, origins)))
            for number, round, states, origins in state["in_flight"]
        ]
        for call in self._in_flight if self.method.keeps_history else ():
            self.history.start(call.states, call.origins)

    def _fill(self, evaluator: AsynchronousEvaluator) -> None:
        """Propose candidates while there is room for a batch of them."""
        while 0 < (num := self._next_size()) <= self.options.width - self._num_in_flight:
            num_known = len(self.history)
            if self.options.in_order and num_known < self.method.num_first <= num_known + self._num_in_flight:
                return
            candidates = self.propose(num)
            if not len(candidates.states):
                return
            call = _Call(self.num_calls, self.round, candidates.states, _origins(candidates))
            self._in_flight.append(self._submitted(call, evaluator))

    def _submitted(self, call: _Call, evaluator: AsynchronousEvaluator) -> _Call:
        env, states = self.method.env, call.states
        requests = [Request(env.terminal(states, index)) for index in range(len(states))]
        return replace(call, futures=tuple(evaluator.submit(requests, step=call.number)))

    def _worked(self, evaluator: AsynchronousEvaluator) -> Iterator[SearchStep]:
        """Do the work of the method while candidates are evaluated, and yield its training steps."""
        if self._next_size() <= 0:  # without further proposals none is needed
            return
        with closing(self.work()) as work:
            for step in work:
                if self._in_flight:
                    evaluator.advance(timeout=0.0)
                if step.metrics:
                    yield step

    def _learn_next(self, evaluator: AsynchronousEvaluator) -> SearchStep:
        """Wait for the next results, and learn them."""
        if not self.options.in_order:  # known candidates alone may be enough: new ones go on too
            evaluator.advance(timeout=0.0)
        while not (parts := self._finished()):
            evaluator.advance(timeout=_CHECK_EVERY_S)
        left = self._in_flight[1:]
        if not self.options.in_order:  # others may finish while these are learned
            left = [call.part(rows) for call in self._in_flight if (rows := call.rows(finished=False))]
        futures = [future for part in parts for future in part.futures]
        results = Results(
            self.round + 1,
            parts[0].states if len(parts) == 1 else GraphStates.cat([part.states for part in parts]),
            [future.request.candidate for future in futures],
            [each for part in parts for each in evaluator.evaluations(part.futures, step=part.number)],
        )
        step = self.learn(results)
        self._in_flight = left
        if self.options.in_order:
            return step
        ages = [self.round - 1 - part.round for part in parts for _ in part.futures]
        return replace(step, metrics=step.metrics | {"sample_age": math.fsum(ages) / len(ages)})

    def _finished(self) -> list[_Call]:
        """Return the candidates to learn next, none while they are evaluated."""
        if self.options.in_order:
            oldest = self._in_flight[0]
            return [] if oldest.rows(finished=False) else [oldest]
        parts = [call.part(rows) for call in self._in_flight if (rows := call.rows(finished=True))]
        num = sum(len(part.futures) for part in parts)
        return parts if num >= min(self.options.batch, self._num_in_flight) else []

    @property
    def _num_in_flight(self) -> int:
        return sum(len(call.states) for call in self._in_flight)

    def _next_size(self) -> int:
        """Return the number of candidates of the next call, 0 or less where no more are needed."""
        options = self.options
        num_left = min(
            options.num_evaluations - self.history.num_new, (options.num_rounds - self.round) * options.batch
        )
        return int(min(options.batch, num_left - self._num_in_flight))

    def _is_over(self) -> bool:
        if not self.end and not self._in_flight and self._next_size() <= 0:
            num, unit = self.options.num_evaluations, "evaluation"
            if self.history.num_new < num:
                num, unit = self.options.num_rounds, "training step"
            self.end = f"{counted(int(num), unit)} {'is' if num == 1 else 'are'} done"
        if not self.end and self.options.patience and self._since_best() >= self.options.patience:
            self.end = f"no better score in {counted(self.options.patience, 'evaluation')} (search.patience)"
        self.end_at_repeats()
        return bool(self.end)

    def _since_best(self) -> int:
        """Return the number of architectures evaluated after the best one and the first candidates."""
        scores = self.history.scores
        if not scores:
            return 0
        return max(len(scores) - max(scores.index(max(scores)) + 1, self.method.num_first), 0)

    def _check(self, states: GraphStates) -> None:
        """Raise UserError for proposals that are no terminal states."""
        key = f"search.method={self.method.setup.config.method}"
        if not isinstance(states, GraphStates):
            raise UserError(f"{key}: expected GraphStates from propose, got {type(states).__name__}")
        if len(states) and not bool(self.method.env.forward_masks(states).masks[GraphActionType.Stop].all()):
            raise UserError(f"{key}: expected terminal states from propose, got one in which Stop is not legal")

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Add the CPU seconds of the block to those of the method."""
        start = time.process_time()
        yield
        self.history.method_seconds += time.process_time() - start

    def _metrics(self) -> dict[str, float]:
        num_evaluations, evaluation_s = max(self.history.num_new, 1), math.fsum(self.history.seconds)
        return {
            "num_proposals": float(len(self.history.proposals)),
            "method_seconds_per_evaluation": self.history.method_seconds / num_evaluations,
            "method_share": self.history.method_seconds / evaluation_s if evaluation_s else 0.0,
            "evaluation_seconds": evaluation_s,
        }


def _origins(candidates: Candidates) -> tuple[ProposalOrigin, ...]:
    return () if candidates.origins is None else tuple(map(ProposalOrigin, candidates.origins.tolist()))


def round_size(num_evaluations: int, *, places: int) -> int:
    """Return the size of the rounds of a search with a surrogate: a multiple of the places.

    The search has about `_NUM_ROUNDS` rounds, more where these would be larger than `_LARGEST_ROUND`.
    """
    num = math.ceil(num_evaluations / (_NUM_ROUNDS * places))
    return places * max(1, min(num, _LARGEST_ROUND // places))


def origin_counts(proposals: Sequence[Proposal], first: int) -> dict[str, float]:
    """Return how many proposals have each origin: from position `first` on, in all, and of the best scores.

    Nothing without origins.
    """
    best = nlargest(_NUM_BEST, proposals, key=lambda each: each.score)
    groups = {"": proposals[first:], "_total": proposals, "_best": best}
    if not any(each.origin is not None for each in proposals):
        return {}
    counts = {end: Counter(each.origin for each in group) for end, group in groups.items()}
    return {
        f"proposed_{origin.name.lower()}{end}": float(count[origin])
        for end, count in counts.items()
        for origin in ProposalOrigin
    }
