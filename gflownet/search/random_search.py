"""Random search: uniformly random legal actions."""

from __future__ import annotations

from dataclasses import dataclass

from gflownet.data.uniform import uniform_states
from gflownet.mdp.states import GraphStates
from gflownet.options import option
from gflownet.search.allowed import allowed_states
from gflownet.search.method import SearchMethod

# Random streams of a call.
_ACTIONS = 0


@dataclass
class RandomSearchConfig:
    """Repeated architectures."""

    without_repeats: bool = option(False, "propose no architecture twice; the search ends when there are no others")


class RandomSearch(SearchMethod):
    """Proposes architectures from uniformly random legal actions."""

    Config = RandomSearchConfig

    def propose(self, call: int, num: int) -> GraphStates:
        """Return `num` terminal states, fewer where no others are left."""
        generator = self.setup.generator(call, _ACTIONS)
        return allowed_states(
            self.setup,
            num,
            lambda num: uniform_states(self.env, num, generator=generator),
            only_new=self.setup.config.options.without_repeats,
        )
