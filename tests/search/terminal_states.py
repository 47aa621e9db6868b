"""Random terminal states of an environment."""

import pytest
import torch

from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from tests.contracts.environments import ENVIRONMENTS

# One environment of each kind; the others differ in sizes and options.
_FAST = (
    *("catalogue", "undirected_attributes", "labelled_dag", "computation_graph_ordered", "hypergrid"),
    *("operation_graph_tight", "choices_capped", "recurrent_stack", "tensor_graph"),
)
ENVIRONMENT_NAMES = [name if name in _FAST else pytest.param(name, marks=pytest.mark.slow) for name in ENVIRONMENTS]


def random_terminal_states(env: Environment, num: int, *, seed: int) -> GraphStates:
    generator = torch.Generator().manual_seed(seed)
    states, finished = env.initial_states(num), []
    while len(states):
        actions = env.forward_masks(states).sample_uniform(generator)
        stops = actions.kind == int(Kind.Stop)
        finished.append(states[stops])
        states = env.apply(states[~stops], actions[~stops]) if bool((~stops).any()) else states[:0]
    return GraphStates.cat(finished)


def renamed_nodes(states: GraphStates, *, seed: int) -> GraphStates:
    generator = torch.Generator().manual_seed(seed)
    num, size = states.node_type.shape
    keys = torch.rand(num, size, generator=generator).masked_fill(~states.exists, 2.0)
    order = keys.argsort(1)
    graphs = torch.arange(num)[:, None]
    pairs = graphs[:, :, None], order[:, :, None], order[:, None, :]
    return GraphStates(
        num_nodes=states.num_nodes,
        node_type=states.node_type[graphs, order],
        node_attr=states.node_attr[graphs, order],
        edge_type=states.edge_type[pairs],
        edge_attr=states.edge_attr[pairs],
        edge_order=states.edge_order[pairs],
        reach=states.reach[pairs],
        num_bridges=states.num_bridges[pairs] if states.num_bridges.numel() else states.num_bridges,
        limit=states.limit,
    )
