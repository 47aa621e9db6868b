"""The hypergrid of Bengio et al. 2021: starting at the origin, each step raises one coordinate by one.

Letters: B states, D dimensions, H coordinates of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from gflownet.envs.config import EnvConfig
from gflownet.envs.slots import SlotEnv
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import position_of
from gflownet.mdp.environment import Rule, Rules
from gflownet.mdp.states import Attribute, GraphStates


class HypergridEnv(SlotEnv):
    """D coordinates from 0 to H - 1; a trajectory may stop anywhere. An empty place is coordinate 0."""

    def __init__(self, num_dims: int, side: int) -> None:
        if num_dims < 1 or side < 2:
            raise ValueError(f"hypergrid: expected num_dims >= 1 and side >= 2, got {num_dims} and {side}")
        names = [f"x{dim}" for dim in range(num_dims)]
        super().__init__(names, Attribute("coordinate", tuple(range(1, side)), counted=True))
        self.side = side

    def shown(self, position: int) -> str:
        """Return the coordinate over the largest one, so that a terminal object determines its reward."""
        return f"{position + 1}/{self.side - 1}"

    def position(self, value: int | str) -> int:
        """Return the coordinate as stored in a state."""
        return position_of([self.shown(position) for position in range(-1, self.side - 1)], value, "coordinate") - 1

    def forward_rules(self, states: GraphStates) -> Rules:
        """Return the rules of raising a coordinate; Stop is always legal."""
        is_next = self._columns == states.node_attr[:, :, :1] + 1
        return {
            Kind.Stop: [Rule("a trajectory may stop anywhere", torch.ones(1, 1, 1, dtype=torch.bool))],
            Kind.SetNodeAttr: [Rule("a coordinate is raised by one at a time", is_next)],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        """Return the rule of lowering a coordinate: it is not 0."""
        return {Kind.RemoveNodeAttr: [Rule("the coordinate is 0", states.node_attr >= 0)]}

    @cached_property
    def _columns(self) -> Tensor:
        return torch.arange(self.side - 1)


class HypergridContext(GraphBuildingEnvContext):
    """Context of hypergrids, from the options under `env.hypergrid`."""

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> HypergridEnv:
        """Return the environment; the sizes of the task are not used."""
        grid = config.hypergrid
        return HypergridEnv(grid.num_dims, grid.side)
