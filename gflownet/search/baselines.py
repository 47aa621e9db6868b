"""Search methods without a model: random search, regularised evolution and local search; samples within the hard caps.

Regularised evolution: Real et al. 2019, Regularized evolution for image classifier architecture search. Local search:
White et al. 2021, Exploring the loss landscape in neural architecture search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gflownet.learning.sampler import uniform_states
from gflownet.mdp.states import GraphStates
from gflownet.options import AT_LEAST_ONE, option
from gflownet.search.history import first_mask
from gflownet.search.method import Results, SearchMethod, SearchSetup
from gflownet.search.proposals import SpreadDraws, mutated, neighbours
from gflownet.workers.process import Stream

# Rounds of samples per call: where all of them are refused or known, the space has hardly any other candidate.
_MAX_ROUNDS = 50

Sample = Callable[[int], GraphStates]  # number -> that many terminal states


def allowed_states(setup: SearchSetup, num: int, sample: Sample, *, only_new: bool = False) -> GraphStates:
    """Return up to `num` sampled terminal states that no hard cap refuses.

    Args:
        setup: has the caps and the history.
        num: at least 1.
        sample: returns terminal states; called until there are enough.
        only_new: leave out architectures that are evaluated, in flight or sampled twice.
    """
    env, parts, num_missing = setup.context.env, [], num
    codes: set[int] = set()
    for _ in range(_MAX_ROUNDS):
        states = sample(num_missing)
        mask = is_allowed(setup, states)
        if only_new:
            mask &= setup.history.is_unknown(env.identify(states)) & first_mask(env.identify(states), codes)
        parts.append(states[mask.nonzero().squeeze(1)])
        num_missing -= len(parts[-1])
        if not num_missing:
            break
    return GraphStates.cat(parts)


def is_allowed(setup: SearchSetup, states: GraphStates) -> torch.Tensor:
    """Return which terminal states [B] no hard cap refuses, [B] bool."""
    refused = [setup.is_refused_at(states, index) for index in range(len(states))]
    return ~torch.tensor(refused, dtype=torch.bool)


_CALLS_PER_POOL = 64


@dataclass
class RandomSearchConfig:
    """Repeated architectures."""

    without_repeats: bool = option(False, "propose no architecture twice; the search ends when there are no others")


class RandomSearch(SearchMethod):
    """Proposes random architectures, a share of them spread evenly over their sizes (`search.random`)."""

    Config = RandomSearchConfig
    _draws: tuple[int, SpreadDraws] | None = None  # of the last pool, with its number

    def propose(self, call: int, num: int) -> GraphStates:
        """Return `num` terminal states, fewer where no others are left."""
        generator, number = self.setup.generator(call, Stream.ACTIONS), call // _CALLS_PER_POOL
        if self._draws is None or self._draws[0] != number:
            self._draws = number, self.setup.random_draws(number, Stream.POOL)
        draws = self._draws[1]
        return allowed_states(
            self.setup, num, lambda num: draws(num, generator), only_new=self.setup.config.options.without_repeats
        )


@dataclass
class EvolutionConfig:
    """Population, tournament and mutations."""

    population: int = option(30, "architectures of the population: the youngest", AT_LEAST_ONE)
    tournament: int = option(20, "random members, with replacement, of which the best one is mutated", AT_LEAST_ONE)


class RegularizedEvolution(SearchMethod):
    """Mutates the best of a random sample of the youngest architectures.

    The population are the last finished proposals, repeated architectures included; random architectures precede it.
    """

    Config = EvolutionConfig

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self.options: EvolutionConfig = setup.config.options

    def propose(self, call: int, num: int) -> GraphStates:
        """Return `num` random architectures, or mutations once the population is full."""
        generator = self.setup.generator(call, Stream.ACTIONS)
        youngest = self.history.proposals[-self.options.population :]
        if len(youngest) < self.options.population:
            return allowed_states(self.setup, num, lambda num: uniform_states(self.env, num, generator=generator))
        scores = torch.tensor([proposal.score for proposal in youngest], dtype=torch.float64)
        positions = torch.tensor([proposal.position for proposal in youngest])

        def sample(num: int) -> GraphStates:
            members = torch.randint(len(youngest), (num, self.options.tournament), generator=generator)
            winners = members.gather(1, scores[members].argmax(1, keepdim=True)).squeeze(1)
            parents = self.history.states[positions[winners]]
            return mutated(self.env, parents, generator)

        return allowed_states(self.setup, num, sample)


_NUM_NEIGHBOURS = 32  # random moves that are the neighbours of a graph; of places all changes of one place are


class FirstImprovement(SearchMethod):
    """Evaluates the neighbours of an architecture in random order and moves to the first better one.

    At a local optimum it starts again from a random architecture. Candidates of a batch are neighbours of the same
    architecture, or random ones of which the best is the next start.
    """

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self._num_read = 0  # proposals of the history
        self._num_moves = 0
        self._current: int | None = None  # position in the history; None: a start is needed
        self._neighbours: dict[int, GraphStates] = {}  # those without a result by code, in random order

    def propose(self, call: int, num: int) -> GraphStates:
        """Return the next neighbours that are not in flight, or random architectures where there are none."""
        waiting = [state for code, state in self._neighbours.items() if code not in self.history.in_flight]
        if waiting:
            return GraphStates.cat(waiting[:num])
        generator = self.setup.generator(call, Stream.START)
        return allowed_states(self.setup, num, lambda num: uniform_states(self.env, num, generator=generator))

    def observe(self, results: Results) -> Mapping[str, float]:
        """Move to the first better neighbour, or to the best start; give up a local optimum."""
        proposals = self.history.proposals[self._num_read :]
        self._num_read = len(self.history.proposals)
        scores = self.history.scores
        if self._current is None:
            self._move(max((proposal.position for proposal in proposals), key=scores.__getitem__))
        else:
            positions = [proposal.position for proposal in proposals]
            codes = self.env.identify(self.history.states[torch.tensor(positions)]).tolist()
            for position, code in zip(positions, codes, strict=True):
                if self._neighbours.pop(code, None) is not None and scores[position] > scores[self._current]:
                    self._move(position)
                    break
        if not self._neighbours:
            self._current = None
        return {"num_moves": float(self._num_moves)}

    def state_dict(self) -> dict[str, Any]:
        names = ("num_read", "num_moves", "current")
        return {name: getattr(self, f"_{name}") for name in names} | {"neighbours": list(self._neighbours)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_read, self._num_moves, self._current = state["num_read"], state["num_moves"], state["current"]
        neighbours = {} if self._current is None else self._neighbourhood(self._current)
        self._neighbours = {code: neighbours[code] for code in state["neighbours"]}

    def _move(self, position: int) -> None:
        self._num_moves += 1
        self._current = position
        self._neighbours = self._neighbourhood(position)

    def _neighbourhood(self, position: int) -> dict[int, GraphStates]:
        """Return the neighbours of an architecture by code, in random order, without refused ones."""
        state = self.history.states[position : position + 1]
        generator = self.setup.generator(position, Stream.NEIGHBOURS)
        states = neighbours(self.env, state, generator, num=_NUM_NEIGHBOURS)
        states = states[is_allowed(self.setup, states).nonzero().squeeze(1)]
        return {code: states[i : i + 1] for i, code in enumerate(self.env.identify(states).tolist())}
