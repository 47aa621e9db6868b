"""Connected graphs whose nodes have colours: the environment is GraphBuildingEnv, its options are here."""

from __future__ import annotations

from collections.abc import Sequence

from gflownet.envs.config import EnvConfig
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.states import MOST_VALUES


class ColouredGraphContext(GraphBuildingEnvContext):
    """The context of coloured graphs; the environment comes from the options under `env.coloured_graph`."""

    @classmethod
    def from_config(
        cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int], num_cond_dim: int
    ) -> ColouredGraphContext:
        """Return the context of the space that the options describe; the task's sizes play no part.

        Raises:
            ValueError: the option that describes no space.
        """
        options = config.coloured_graph
        colours = list(options.colours)
        if not 1 <= len(set(colours)) == len(colours) <= MOST_VALUES:
            raise ValueError(f"env.coloured_graph.colours: expected 1 to {MOST_VALUES} distinct colours, got {colours}")
        if options.min_nodes > options.max_nodes:
            raise ValueError(
                f"env.coloured_graph.min_nodes: expected at most max_nodes={options.max_nodes}, got {options.min_nodes}"
            )
        env = GraphBuildingEnv(
            colours, max_nodes=options.max_nodes, min_nodes=options.min_nodes, directed=options.directed
        )
        return cls(env, num_cond_dim=num_cond_dim)
