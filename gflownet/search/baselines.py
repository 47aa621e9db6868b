"""Search methods without a model: random search and regularised evolution; samples within the hard caps.

Regularised evolution: Real et al. 2019, Regularized evolution for image classifier architecture search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gflownet.data.sampler import uniform_states
from gflownet.mdp.states import GraphStates
from gflownet.options import AT_LEAST_ONE, option
from gflownet.search.history import first_mask
from gflownet.search.method import SearchMethod, SearchSetup
from gflownet.search.proposals import SpreadDraws, mutated
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
