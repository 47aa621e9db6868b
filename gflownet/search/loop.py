"""The loop of a search: propose, evaluate, learn; in rounds, or with evaluations in flight."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import count
from typing import Any

import torch

from gflownet.errors import UserError, counted
from gflownet.evaluation.evaluator import AsynchronousEvaluator, Evaluation, evaluation_of
from gflownet.evaluation.job import Request, Ticket
from gflownet.evaluation.store_rows import EvaluationStatus
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.states import GraphStates
from gflownet.search.history import History, Proposal, ProposalOrigin
from gflownet.search.method import SearchMethod
from gflownet.search.sampler import RewardScale, ScoreModel

# Longest wait for a finished evaluation between two checks for a stop request, seconds.
_CHECK_EVERY_S = 0.2
# Work of the method between two looks at the evaluations, seconds.
_WORK_S = 0.1
# Proposals in a row without a new evaluation after which a search ends: its method only repeats itself.
_MAX_REPEATS = 2_000
# Best proposals whose origins are counted.
_NUM_BEST = 10
# Rounds of a search by default, and the largest size of a round unless there are more places: larger ones find less.
_NUM_ROUNDS, _LARGEST_ROUND = 24, 8


@dataclass(frozen=True)
class SearchStep:
    """The results of one round."""

    number: int  # of the round, from 1 on
    evaluations: Sequence[Evaluation]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Pending:
    """A submitted terminal state."""

    state: GraphStates  # one state
    code: int
    ticket: Ticket
    is_new: bool
    round: int  # in which its result is learned, without `max_in_flight`


class SearchLoop:
    """Rounds of a search method until its budget is spent.

    Without `max_in_flight` a round is proposed from the results of all rounds but the last `lookahead` ones, which are
    evaluated meanwhile: timing decides no contents. With it, a round ends with every finished evaluation, and the
    timing of evaluations decides its contents.
    """

    def __init__(
        self,
        method: SearchMethod,
        history: History,
        *,
        batch_size: int,
        max_in_flight: int = 0,
        num_evaluations: int,
        patience: int = 0,
    ) -> None:
        """Keep the components.

        Args:
            method: proposes.
            history: gets the results; that of the method.
            batch_size: candidates proposed together.
            max_in_flight: bound on the candidates without a result; 0: rounds.
            num_evaluations: new evaluations after which the search ends.
            patience: evaluations without a better score after which it ends; 0: no end.
        """
        self.method, self.history, self.batch_size = method, history, batch_size
        self.max_in_flight, self.num_evaluations, self.patience = max_in_flight, num_evaluations, patience
        self.round = 0
        lookahead = method.setup.config.lookahead
        lookahead = int(not method.setup.task.is_cheap) if lookahead is None else lookahead
        self.lookahead = 0 if max_in_flight else lookahead
        self.num_calls = 0  # of `propose`
        self._work: Iterator[None] = iter(())  # of the method, until the next round is learned
        self.end = ""  # reason of the end, empty before
        self._pending: list[_Pending] = []
        self._stored: dict[str, Any] = {}  # pending states of a checkpoint
        self._num_repeats = 0
        self.num_trained_on = 0  # architectures of the history when the sampler was trained on it; 0: it was not
        self.scale: RewardScale | None = None  # of the rewards of that training
        self._model: ScoreModel | None = None  # the last one

    def steps(self, evaluator: AsynchronousEvaluator) -> Generator[SearchStep]:
        """Yield every round from the next one on.

        Raises:
            EvaluationStoppedError: a stop request, or the budget is spent; the round is not counted.
        """
        self._resubmit(evaluator)
        for number in count(self.round + 1):
            if self._is_over():
                return
            num_calls = self.num_calls
            try:
                step = self._next_round(number, evaluator)
            except BaseException:
                if not self._pending:  # a resumed run repeats the round; candidates in flight are submitted again
                    self.num_calls = num_calls
                raise
            if step is None:
                return
            self.round = number
            yield step

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, safe to load with `weights_only=True`."""
        return {
            "round": self.round,
            "num_calls": self.num_calls,
            "num_repeats": self._num_repeats,
            "num_trained_on": self.num_trained_on,
            "scale": None if self.scale is None else self.scale.state_dict(),
            "history": self.history.state_dict(),
            "method": self.method.state_dict(),
            **self._pending_state(),
        }

    def _pending_state(self) -> dict[str, Any]:
        if not self._pending:
            return {"pending": None}
        states, in_flight = GraphStates.cat([each.state for each in self._pending]), self.history.in_flight
        origins = [in_flight[each.code].origin if each.code in in_flight else None for each in self._pending]
        return {
            "pending": states.state_dict(),
            "pending_rounds": [each.round for each in self._pending],
            "pending_origins": [None if origin is None else int(origin) for origin in origins],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; `steps` submits states in flight again, and checks for the end."""
        self.round = state["round"]
        self._num_repeats, self.num_calls = state["num_repeats"], state["num_calls"]
        self.num_trained_on = state["num_trained_on"]
        self.scale = None if state["scale"] is None else RewardScale(self.method.setup.task, **state["scale"])
        self.history.load_state_dict(state["history"])
        self.method.load_state_dict(state["method"])
        self._stored = {name: state[name] for name in state if name.startswith("pending") and state["pending"]}

    @property
    def num_rounds(self) -> int:
        """Return the expected number of rounds."""
        return self.round + math.ceil(max(self.num_evaluations - self.history.num_new, 0) / self.batch_size)

    def score_model(self) -> ScoreModel:
        """Return the surrogate, fitted to the evaluations that the sampler was trained on, to all before."""
        num = self.num_trained_on or len(self.history)
        if self._model is None or self._model.num != num:
            self._model = ScoreModel(self.method.setup, num)
        return self._model

    @property
    def verified(self) -> list[Proposal]:
        """Return the evaluated samples of the sampler."""
        is_later = (each for each in self.history.proposals if each.position >= self.num_trained_on)
        return [each for each in is_later if each.origin is ProposalOrigin.SAMPLER]

    @property
    def is_sampler_trained(self) -> bool:
        """Return whether the sampler was trained on all evaluations but those of its own samples."""
        return self.num_trained_on > 0 and self.num_trained_on + len(self.verified) == len(self.history)

    def _num_left(self) -> int:
        return self.num_evaluations - self.history.num_new - len(self._pending)

    def _is_over(self) -> bool:
        if not self.end and self._num_left() <= 0 and not self._pending:
            num = self.num_evaluations
            self.end = f"{counted(num, 'evaluation')} {'is' if num == 1 else 'are'} done"
        if not self.end and self.patience and self._since_best() >= self.patience:
            self.end = f"no better score in {counted(self.patience, 'evaluation')} (search.patience)"
        self.end_at_repeats()
        return bool(self.end)

    def end_at_repeats(self) -> None:
        """End the search where its method has proposed only known architectures for a long time."""
        if not self.end and self._num_repeats >= _MAX_REPEATS:
            self.end = f"no new architecture in {counted(self._num_repeats, 'proposal')}"

    def _since_best(self) -> int:
        """Return the number of architectures evaluated after the best one, without the surrogate's initial ones."""
        scores = self.history.scores
        if not scores:
            return 0
        start = self.method.setup.config.num_initial if self.method.uses_surrogate else 0
        return max(len(scores) - max(scores.index(max(scores)) + 1, start), 0)

    def _next_round(self, number: int, evaluator: AsynchronousEvaluator) -> SearchStep | None:
        if self.max_in_flight:
            return self._asynchronous_round(number, evaluator)
        if self.lookahead or self._pending:
            return self._overlapped_round(number, evaluator)
        return self._round(number, evaluator)

    def _round(self, number: int, evaluator: AsynchronousEvaluator) -> SearchStep | None:
        states = self.propose(self._next_size())
        if states is None:
            return None
        env = self.history.env
        candidates = [env.terminal(states, index) for index in range(len(states))]
        step = self._learn(number, [(states, evaluator.evaluate(candidates, step=number))])
        self._start_work(number)
        self._do_work(math.inf)
        return step

    def _overlapped_round(self, number: int, evaluator: AsynchronousEvaluator) -> SearchStep | None:
        """Propose further rounds while the oldest one is evaluated, and learn from that one."""
        while self._may_propose():
            states = self.propose(self._next_size())
            if states is None:
                break
            self._submit(states, evaluator, round=self._pending[-1].round + 1 if self._pending else number)
        if not self._pending:
            return None
        finished = [each for each in self._pending if each.round == self._pending[0].round]
        self._start_work(self.round)
        while any(each.ticket.record is None for each in finished):
            self._advance(evaluator)
        return self._learn_finished(number, finished, evaluator)

    def _may_propose(self) -> bool:
        """Return whether a further round may be proposed before the oldest one in flight is learned."""
        if self._num_left() <= 0:
            return False
        if not self._pending:
            return True
        # The first predictions wait for all of the first design.
        num_initial = self.method.setup.config.num_initial if self.method.uses_surrogate else 0
        num_known = len(self.history)
        num_designed = num_known + len(self.history.in_flight)
        if num_known < num_initial:  # the first design depends on no results
            return num_designed < num_initial
        return len({each.round for each in self._pending}) <= self.lookahead

    def _start_work(self, round: int) -> None:
        """Begin the method's work on the results up to a round; without further proposals none is needed."""
        self._work = self.method.work(round) if self._num_left() > 0 else iter(())

    def _do_work(self, limit_s: float) -> bool:
        """Do pieces of the method's work for about `limit_s` seconds; return whether there were any."""
        start, is_working = time.process_time(), False
        while time.process_time() - start < limit_s and next(self._work, self) is not self:
            is_working = True
        self.history.method_seconds += time.process_time() - start
        return is_working

    def _advance(self, evaluator: AsynchronousEvaluator) -> None:
        """Do some of the method's work, or wait for a finished evaluation."""
        evaluator.advance(timeout=0.0 if self._do_work(_WORK_S) else _CHECK_EVERY_S)

    def _learn_finished(self, number: int, finished: list[_Pending], evaluator: AsynchronousEvaluator) -> SearchStep:
        """Learn from finished candidates, after the rest of the method's work on earlier results."""
        while self._do_work(_WORK_S):
            evaluator.advance(timeout=0.0)
        self._pending = [each for each in self._pending if each not in finished]
        evaluator.flush()
        return self._learn(number, [(each.state, [_evaluation(each, evaluator)]) for each in finished])

    def _asynchronous_round(self, number: int, evaluator: AsynchronousEvaluator) -> SearchStep | None:
        """Fill the places in flight, wait for a result, and learn from all that are finished."""
        is_first, is_started = True, False
        while True:
            room = min(self.max_in_flight - len(self._pending), self._num_left())
            if room > 0 and (is_first or not self._pending):
                states = self.propose(min(room, self._next_size()))
                if states is None and not self._pending:
                    return None
                if states is not None:
                    self._submit(states, evaluator, round=number)
                is_first = room > self.batch_size and states is not None
            if not is_started:
                self._start_work(self.round)
                is_started = True
            finished = [each for each in self._pending if each.ticket.record is not None]
            if finished:
                return self._learn_finished(number, finished, evaluator)
            self._advance(evaluator)

    def propose(self, num: int) -> GraphStates | None:
        """Return the next candidates, in flight from now on; None where the method has none.

        Raises:
            UserError: proposals that are no terminal states.
        """
        start, self.method.origins = time.process_time(), None
        states = self.method.propose(self.num_calls + 1, num)
        self.history.method_seconds += time.process_time() - start
        self._check(states)
        if not len(states):
            if not self.history.in_flight:  # whose results may lead to others
                self.end = self.end or "the method has no further proposals"
            return None
        origins = [] if self.method.origins is None else self.method.origins.tolist()
        self.history.start(states, [ProposalOrigin(each) for each in origins if len(origins) == len(states)])
        self.num_calls += 1
        return states

    def _next_size(self) -> int:
        return min(self.batch_size, self._num_left())

    def _check(self, states: GraphStates) -> None:
        """Raise UserError for proposals that are no terminal states."""
        key = f"search.method={self.method.setup.config.method}"
        if not isinstance(states, GraphStates):
            raise UserError(f"{key}: expected GraphStates from propose, got {type(states).__name__}")
        if len(states) and not bool(self.history.env.forward_masks(states).masks[GraphActionType.Stop].all()):
            raise UserError(f"{key}: expected terminal states from propose, got one in which Stop is not legal")

    def _submit(self, states: GraphStates, evaluator: AsynchronousEvaluator, *, round: int) -> None:
        env = self.history.env
        tickets = evaluator.submit([Request(env.terminal(states, i)) for i in range(len(states))], step=round)
        earlier = {each.code for each in self._pending}  # in flight, or finished and not yet in the history
        for index, (code, ticket) in enumerate(zip(env.identify(states).tolist(), tickets, strict=True)):
            is_new = self.history.position(code) is None and code not in earlier
            self._pending.append(_Pending(states[index : index + 1], code, ticket, is_new, round))
            earlier.add(code)

    def _resubmit(self, evaluator: AsynchronousEvaluator) -> None:
        """Submit the candidates in flight of a checkpoint."""
        stored, self._stored = self._stored, {}
        if not stored:
            return
        states = GraphStates(**stored["pending"])
        rounds = torch.tensor(stored["pending_rounds"])
        origins = stored["pending_origins"]
        self.history.start(states, [None if each is None else ProposalOrigin(each) for each in origins])
        for round in rounds.unique().tolist():
            self._submit(states[rounds == round], evaluator, round=round)

    def verify(self, states: GraphStates, evaluations: Sequence[Evaluation]) -> SearchStep:
        """Add the results of samples of the sampler, and let the method learn from them."""
        self.history.start(states, [ProposalOrigin.SAMPLER] * len(states))
        return self._learn(self.round, [(states, evaluations)])

    def learn(self, number: int, results: Iterable[tuple[GraphStates, Sequence[Evaluation]]]) -> SearchStep:
        """Add results to the history, let the method learn from them, and return the round.

        Args:
            number: of the round.
            results: terminal states and one evaluation of each.
        """
        step = self._learn(number, results)
        self._work = self.method.work(number)
        self._do_work(math.inf)
        return step

    def _learn(self, number: int, results: Iterable[tuple[GraphStates, Sequence[Evaluation]]]) -> SearchStep:
        """Return the round as `learn`, without the work that may follow."""
        evaluations: list[Evaluation] = []
        num_before, num_proposals = self.history.num_new, len(self.history.proposals)
        for states, of_states in results:
            self.history.add(states, of_states)
            evaluations += of_states
        is_repeated = self.history.num_new == num_before
        self._num_repeats = self._num_repeats + len(evaluations) if is_repeated else 0
        start = time.process_time()
        metrics = dict(self.method.observe(number))
        self.history.method_seconds += time.process_time() - start
        metrics |= origin_counts(self.history.proposals, num_proposals)
        return SearchStep(number, evaluations, metrics | self._metrics())

    def _metrics(self) -> dict[str, float]:
        num_evaluations, evaluation_s = max(self.history.num_new, 1), math.fsum(self.history.seconds)
        return {
            "num_proposals": float(len(self.history.proposals)),
            "method_seconds_per_evaluation": self.history.method_seconds / num_evaluations,
            "method_share": self.history.method_seconds / evaluation_s if evaluation_s else 0.0,
            "evaluation_seconds": evaluation_s,
        }


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


def _evaluation(pending: _Pending, evaluator: AsynchronousEvaluator) -> Evaluation:
    record = pending.ticket.record
    assert record is not None
    is_refused = record.status is EvaluationStatus.REFUSED
    cached = not pending.is_new or (record.run != evaluator.run and not is_refused)
    return evaluation_of(record, task=evaluator.task, cached=cached)
