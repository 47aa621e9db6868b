"""The evaluations of a search in the order in which they finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates


class ProposalOrigin(IntEnum):
    """The source of a proposed candidate."""

    DESIGN = 0  # before the first prediction
    MUTATION = 2
    POLICY = 3
    RANDOM = 4
    SAMPLER = 5  # trained after the search
    EARLIER = 6  # best ones of earlier runs
    START = 7  # env.start and its edits, before the first prediction


@dataclass(frozen=True)
class Proposal:
    """One candidate that a method proposed, with its result."""

    hash: str  # canonical hash
    score: float
    is_new: bool  # evaluated for this proposal: it counts to the budget
    position: int  # of its architecture in the history
    origin: ProposalOrigin | None = None  # None: not known


@dataclass(frozen=True)
class InFlight:
    """A proposed candidate without a result."""

    state: GraphStates  # one state
    origin: ProposalOrigin | None


_PLAIN = ("scores", "measured", "utilities", "metrics", "seconds")  # columns of a history that are saved as they are


class History:
    """Distinct evaluated architectures with their results, in order, and those in flight.

    Letters: n distinct architectures, K objectives.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.proposals: list[Proposal] = []  # all, known ones included
        self.scores: list[float] = []  # n; the floor score of a failed evaluation, or one above a hard cap
        self.measured: list[float] = []  # n, scores without regard to hard caps
        self.utilities: list[tuple[float, ...]] = []  # n
        self.metrics: list[dict[str, float]] = []  # n
        self.seconds: list[float] = []  # n, of the evaluations
        self.statuses: list[EvaluationStatus] = []  # n
        self.in_flight: dict[int, InFlight] = {}  # by code
        self.num_new = 0  # proposals that were evaluated for this search
        self.method_seconds = 0.0  # of proposing and learning
        self._position: dict[int, int] = {}  # code -> position
        self._chunks: list[GraphStates] = []

    def __len__(self) -> int:
        """Return n."""
        return len(self.scores)

    @property
    def states(self) -> GraphStates:
        """Return the terminal states of all n architectures. Raises ValueError before the first one."""
        if not self._chunks:
            raise ValueError("expected at least one evaluation, got none")
        if len(self._chunks) > 1:
            self._chunks = [GraphStates.cat(self._chunks)]
        return self._chunks[0]

    def position(self, code: int) -> int | None:
        """Return the position of the architecture with a code (`Environment.identify`), None for an unknown one."""
        return self._position.get(code)

    def is_unknown(self, codes: Tensor) -> Tensor:
        """Return which codes [B] are neither evaluated nor in flight, [B] bool."""
        return ~torch.isin(codes, torch.tensor([*self._position, *self.in_flight], dtype=torch.int64))

    @property
    def states_in_flight(self) -> GraphStates:
        """Return the terminal states of the architectures in flight, in the order of their proposals."""
        return GraphStates.cat([self.env.initial_states(0), *(each.state for each in self.in_flight.values())])

    def start(self, states: GraphStates, origins: Sequence[ProposalOrigin | None] = ()) -> None:
        """Add B terminal states to those in flight, with the origins [B] of their proposals where they are known."""
        known = origins or [None] * len(states)
        for index, (code, origin) in enumerate(zip(self.env.identify(states).tolist(), known, strict=True)):
            self.in_flight.setdefault(code, InFlight(states[index : index + 1], origin))

    def positions_by_hash(self) -> dict[str, int]:
        """Return the position of each evaluated architecture by its canonical hash."""
        return {proposal.hash: proposal.position for proposal in self.proposals}

    def add(self, states: GraphStates, evaluations: Sequence[Evaluation]) -> None:
        """Add the results of B terminal states; an architecture that is known stays at its position."""
        codes, new = self.env.identify(states).tolist(), []
        for index, (code, evaluation) in enumerate(zip(codes, evaluations, strict=True)):
            started = self.in_flight.pop(code, None)
            is_new = not evaluation.cached and evaluation.status is not EvaluationStatus.REFUSED
            position = self._position.get(code, len(self.scores))
            origin = None if started is None else started.origin
            self.num_new += is_new
            self.proposals.append(Proposal(evaluation.hash, evaluation.score, is_new, position, origin))
            if code in self._position:
                continue
            self._position[code] = position
            new.append(index)
            measured = evaluation.infeasible_score
            self.scores.append(evaluation.score)
            self.measured.append(evaluation.score if measured is None else measured)
            self.utilities.append(tuple(evaluation.utilities))
            self.metrics.append(dict(evaluation.metrics))
            self.seconds.append(evaluation.seconds)
            self.statuses.append(evaluation.status)
        if new:
            self._chunks.append(states[torch.tensor(new)])

    def state_dict(self) -> dict[str, Any]:
        """Return the contents as tensors and plain values, safe to load with `weights_only=True`."""
        return {
            "states": self.states.state_dict() if len(self) else None,
            "proposals": [
                (p.hash, p.score, p.is_new, p.position, None if p.origin is None else int(p.origin))
                for p in self.proposals
            ],
            **{name: getattr(self, name) for name in _PLAIN},
            "statuses": [status.value for status in self.statuses],
            "method_seconds": self.method_seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; nothing is in flight."""
        self.proposals = [
            Proposal(*row, origin=None if origin is None else ProposalOrigin(origin))
            for *row, origin in state["proposals"]
        ]
        self.num_new = sum(proposal.is_new for proposal in self.proposals)
        vars(self).update({name: list(state[name]) for name in _PLAIN})
        self.statuses = [EvaluationStatus(value) for value in state["statuses"]]
        self.method_seconds = state["method_seconds"]
        self._chunks = [] if state["states"] is None else [GraphStates(**state["states"])]
        codes = self.env.identify(self.states).tolist() if self._chunks else []
        self._position = {code: position for position, code in enumerate(codes)}
        self.in_flight = {}


def first_mask(codes: Tensor, earlier: set[int] | None = None) -> Tensor:
    """Return which codes [B] have not occurred before, [B] bool; they are added to the earlier ones."""
    seen, mask = set[int]() if earlier is None else earlier, []
    for code in codes.tolist():
        mask.append(code not in seen)
        seen.add(code)
    return torch.tensor(mask, dtype=torch.bool)
