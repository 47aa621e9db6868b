"""First-improvement local search (White et al. 2021, Exploring the loss landscape in neural architecture search)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gflownet.data.uniform import uniform_states
from gflownet.mdp.states import GraphStates
from gflownet.options import AT_LEAST_ONE, option
from gflownet.search.allowed import allowed_states, is_allowed
from gflownet.search.method import SearchMethod, SearchSetup
from gflownet.search.mutations import neighbours

# Random streams.
_START, _NEIGHBOURS = range(2)


@dataclass
class FirstImprovementConfig:
    """Neighbourhoods of graphs."""

    num_neighbours: int = option(
        32, "random moves that are the neighbours of a graph; of places all changes of one place are", AT_LEAST_ONE
    )


class FirstImprovement(SearchMethod):
    """Evaluates the neighbours of an architecture in random order and moves to the first better one.

    At a local optimum it starts again from a random architecture. Candidates of a batch are neighbours of the same
    architecture, or random ones of which the best is the next start.
    """

    Config = FirstImprovementConfig

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
        generator = self.setup.generator(_START, call)
        return allowed_states(self.setup, num, lambda num: uniform_states(self.env, num, generator=generator))

    def observe(self, round: int) -> Mapping[str, float]:
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
        """Return the current architecture and the codes of its neighbours without a result."""
        names = ("num_read", "num_moves", "current")
        return {name: getattr(self, f"_{name}") for name in names} | {"neighbours": list(self._neighbours)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._num_read, self._num_moves, self._current = state["num_read"], state["num_moves"], state["current"]
        neighbours = {} if self._current is None else self._neighbourhood(self._current)
        # An earlier version had other neighbours.
        self._neighbours = {code: neighbours[code] for code in state["neighbours"] if code in neighbours}

    def _move(self, position: int) -> None:
        """Continue from an architecture of the history."""
        self._num_moves += 1
        self._current = position
        self._neighbours = self._neighbourhood(position)

    def _neighbourhood(self, position: int) -> dict[int, GraphStates]:
        """Return the neighbours of an architecture by code, in random order, without refused ones."""
        state, generator = self.history.states[position : position + 1], self.setup.generator(_NEIGHBOURS, position)
        states = neighbours(self.env, state, generator, num=self.setup.config.options.num_neighbours)
        states = states[is_allowed(self.setup, states).nonzero().squeeze(1)]
        return {code: states[i : i + 1] for i, code in enumerate(self.env.identify(states).tolist())}
