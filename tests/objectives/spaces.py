"""Small spaces with symmetries, and batches of trajectories on them whose rewards are looked up."""

import torch
from torch import Tensor

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.metrics.exact import enumerate_states
from tests.oracles.tabular import Classes, classes_of


class FromOneNode(GraphBuildingEnv):
    """Graphs that start as one node: every state may stop."""

    def initial_states(self, num: int) -> GraphStates:
        states = GraphStates.empty(num, self.vocabulary)
        states.node_type[:, 0] = 0
        states.num_nodes[:] = 1
        return states

    def backward_rules(self, states: GraphStates):
        rules = dict(super().backward_rules(states))
        first = rules[GraphActionType.RemoveNode]
        more = first[0]._replace(text="one node stays", holds=(states.num_nodes > 1)[:, None, None])
        return {**rules, GraphActionType.RemoveNode: [*first, more]}


SPACES = {
    "two_coloured_3": lambda: GraphBuildingEnv(["a", "b"], max_nodes=3),
    "connected_5": lambda: GraphBuildingEnv(["a"], max_nodes=5, min_nodes=5),
    "from_one_node_4": lambda: FromOneNode(["a"], max_nodes=4),
}


def make_space(name: str) -> Classes:
    env = SPACES[name]()
    return classes_of(env, enumerate_states(env))


def rewards_of(space: Classes, *, seed: int = 7) -> Tensor:
    """Log-rewards [S] of which no regularity of the graphs tells anything."""
    return torch.randn(len(space.graph), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_symmetries(space: Classes) -> Tensor:
    """log |Aut(s)| - log |Aut(s0)| of every class, [S]."""
    counts = torch.tensor(space.symmetries, dtype=torch.float64).log()
    return counts - counts[0]


def make_batch(
    context: GraphBuildingEnvContext, policy: PolicyFunction, space: Classes, log_reward: Tensor, *, num: int = 5
) -> TrajectoryBatch:
    """As many trajectories from the policy, explored, as drawn backwards; all rewards filled in."""
    generator = torch.Generator().manual_seed(3)
    conditioning = Conditioning(torch.zeros(num, 1), torch.ones(num))
    forward = sample_forward(context, policy, conditioning=conditioning, generator=generator, random_action_prob=0.3)
    chosen = space.graph.terminal[torch.randint(len(space.graph.terminal), (num,), generator=generator)]
    ends = space.graph.states[chosen]
    backward = sample_backward(context, ends, conditioning=conditioning, generator=generator)
    batch = TrajectoryBatch.cat([forward, backward])
    on_the_way = torch.tensor(space.position_of(batch.states))
    may_stop = torch.tensor([s in space.may_stop for s in on_the_way.tolist()])
    batch = batch.with_state_rewards(torch.where(may_stop, log_reward[on_the_way], 0.0).float())
    return batch.with_rewards(log_reward[space.position_of(batch.terminal)].float())
