"""Small spaces with symmetries, random rewards for their states, and batches of trajectories on them."""

import functools

import torch
from torch import Tensor

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.sampler import sample_backward, sample_forward
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from tests.oracles.tabular import Classes, classes_of


class FromOneNode(GraphBuildingEnv):
    """Graphs that start with one node, so that Stop is legal in every state."""

    def initial_states(self, num: int) -> GraphStates:
        states = GraphStates.empty(num, self.vocabulary)
        states.node_type[:, 0] = 0
        states.num_nodes[:] = 1
        return states

    def backward_rules(self, states: GraphStates):
        rules = dict(super().backward_rules(states))
        first = rules[GraphActionType.RemoveNode]
        keep_one_node = first[0]._replace(text="one node stays", holds=(states.num_nodes > 1)[:, None, None])
        return {**rules, GraphActionType.RemoveNode: [*first, keep_one_node]}


SPACES = {
    "two_coloured_3": lambda: GraphBuildingEnv(["a", "b"], max_nodes=3),
    "connected_5": lambda: GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5),
    "from_one_node_4": lambda: FromOneNode(["a"], max_nodes=4),
}


@functools.cache
def make_space(name: str) -> Classes:
    env = SPACES[name]()
    return classes_of(env, enumerate_states(env))


def rewards_of(space: Classes, *, seed: int = 7) -> Tensor:
    """Return independent standard normal log-rewards, [S]."""
    return torch.randn(len(space.graph), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_symmetries(space: Classes) -> Tensor:
    """Return log |Aut(s)| - log |Aut(s0)| of every class, [S]."""
    counts = torch.tensor(space.symmetries, dtype=torch.float64).log()
    return counts - counts[0]


def make_batch(
    context: GraphBuildingEnvContext, policy: PolicyFunction, space: Classes, log_reward: Tensor, *, num: int = 5
) -> TrajectoryBatch:
    """Return `num` trajectories sampled forwards with exploration and `num` sampled backwards, with rewards."""
    generator = torch.Generator().manual_seed(3)
    conditioning = Conditioning(torch.zeros(num, 1), torch.ones(num))
    forward = sample_forward(context, policy, conditioning=conditioning, generator=generator, random_action_prob=0.3)
    positions = space.graph.terminal[torch.randint(len(space.graph.terminal), (num,), generator=generator)]
    ends = space.graph.states[positions]
    backward = sample_backward(context, ends, conditioning=conditioning, generator=generator)
    batch = TrajectoryBatch.cat([forward, backward])
    visited = torch.tensor(space.position_of(batch.states))
    may_stop = torch.tensor([s in space.may_stop for s in visited.tolist()])
    batch = batch.with_state_rewards(torch.where(may_stop, log_reward[visited], 0.0).float())
    return batch.with_rewards(log_reward[space.position_of(batch.terminal)].float())
