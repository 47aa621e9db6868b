"""Regularised evolution (Real et al. 2019, Regularized evolution for image classifier architecture search)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gflownet.data.uniform import uniform_states
from gflownet.errors import UserError
from gflownet.mdp.states import GraphStates
from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, option
from gflownet.search.allowed import allowed_states
from gflownet.search.method import SearchMethod, SearchSetup
from gflownet.search.mutations import mutated


@dataclass
class EvolutionConfig:
    """Population, tournament and mutations."""

    population: int = option(30, "architectures of the population: the youngest", AT_LEAST_ONE)
    tournament: int = option(20, "random members, with replacement, of which the best one is mutated", AT_LEAST_ONE)
    max_undone: int = option(
        0, "former number of undone steps; only 0 is left: a mutation is one local move", NOT_NEGATIVE
    )


class RegularizedEvolution(SearchMethod):
    """Mutates the best of a random sample of the youngest architectures.

    The population are the last finished proposals, repeated architectures included; random architectures precede it.
    """

    Config = EvolutionConfig

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self.options: EvolutionConfig = setup.config.options
        if self.options.max_undone:
            raise UserError("search.options.max_undone: a mutation is one local move now; leave the option out")

    def propose(self, call: int, num: int) -> GraphStates:
        """Return `num` random architectures, or mutations once the population is full."""
        generator = self.setup.generator(call)
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
