"""A conditional policy samples in proportion to the reward of every temperature and preference."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from gflownet.certificate.exact import (
    StateGraph,
    enumerate_states,
    forward_scores,
    policy_log_prob,
    target_distribution,
    terminating_distribution,
    total_variation,
)
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.task import GFNTask, Score
from gflownet.learning.sampler import sample_backward, sample_forward
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from tests.evaluation.candidates import config_with
from tests.oracles.tabular import Flows, RememberingContext, TabularPolicy, classes_of, labelled_flows, uniform_backward

CONDITIONS = (
    "evaluation.objectives=[red,sparse]",
    "evaluation.floor_score=0.01",
    "cond.temperature.sample_dist=uniform",
    "cond.temperature.dist_params=[0.5,4.0]",
)


class RedAndSparse(GFNTask):
    """Two objectives of a graph of nodes a and b: the share of the nodes that are a, and few edges."""

    objectives = ("red", "sparse")

    def evaluate(self, graph, *, seed):
        return Score(0.5)

    @staticmethod
    def utilities_of(states: GraphStates) -> Tensor:
        """Return the utilities [B, 2] of states."""
        num_red = (states.node_type == 0).sum(1)
        num_edges = states.has_edge.sum((1, 2)) / 2
        return torch.stack([(num_red + 0.2) / (states.num_nodes + 0.2), 1 / (1 + num_edges / 2)], 1).float()


@dataclass(frozen=True)
class Space:
    """An enumerated environment, and the rewards of its states under several conditionings."""

    env: GraphBuildingEnv
    graph: StateGraph
    task: RedAndSparse

    def log_rewards(self, conditioning: Conditioning) -> list[Tensor]:
        """Return the log-reward of every state, [S], under each conditioning."""
        utilities = self.task.utilities_of(self.graph.states)
        num = len(self.graph)
        rows = zip(conditioning.encoding, conditioning.beta, strict=True)
        return [
            self.task.log_reward(utilities, Conditioning(e.expand(num, -1), beta.expand(num))).double()
            for e, beta in rows
        ]

    def rewarded(self, batch: TrajectoryBatch) -> TrajectoryBatch:
        utilities = self.task.utilities_of(batch.terminal)
        return batch.with_rewards(self.task.log_reward(utilities, Conditioning(batch.conditioning, batch.beta)))


def space_of(max_nodes: int, *overrides: str) -> Space:
    env = GraphBuildingEnv(["a", "b"], max_nodes=max_nodes)
    return Space(env, enumerate_states(env), RedAndSparse(config_with(*CONDITIONS, *overrides)))


class ConditionalTable(TabularPolicy):
    """One table of logits for each of a few encodings."""

    def __init__(self, context, space, flows: Sequence[Flows], encodings: Tensor) -> None:
        super().__init__(context, space, flows[0])
        self.encodings = encodings
        self.tables = torch.tensor([list(each.log_forward.values()) for each in flows], dtype=torch.float64)

    def position_of(self, conditioning: Tensor) -> Tensor:
        """Return which of the encodings each row is, [B]."""
        return (conditioning[:, None] == self.encodings).all(2).int().argmax(1)

    def forward(self, batch, conditioning) -> tuple[GraphActionCategorical, Tensor]:
        which = self.position_of(conditioning)
        states, env = batch["states"], self.space.env
        owner, actions = env.forward_masks(states).positions()
        children = self.space.position_of(env.apply(states[owner], actions))
        parents, stop = self.space.position_of(states), (actions.kind == 0).tolist()
        keys = [
            self.forward_keys[parents[g], child, is_stop]
            for g, child, is_stop in zip(owner.tolist(), children, stop, strict=True)
        ]
        logits = self._spread(batch, self.context.action_types, self.tables[which[owner], keys])
        return self.context.categorical(batch, logits), torch.zeros(len(states))


@pytest.mark.parametrize("overrides", [(), ("cond.focus.use=true", "cond.focus.cosim=0.8")])
def test_conditional_analytic_flows_balance(overrides):
    space = space_of(3, *overrides)
    conditioning = space.task.sample_conditioning(6, generator=torch.Generator().manual_seed(3))
    rewards = space.log_rewards(conditioning)
    classes, log_symmetry = classes_of(space.env, space.graph), space.graph.num_automorphisms.log()
    flows = [labelled_flows(classes, reward + log_symmetry, uniform_backward(classes)) for reward in rewards]
    context = RememberingContext(space.env, num_cond_dim=space.task.num_cond_dim).with_layout(TabularPolicy.layout)
    policy = ConditionalTable(context, classes, flows, conditioning.encoding)

    targets = [target_distribution(space.graph, reward) for reward in rewards]
    for encoding, target in zip(conditioning.encoding, targets, strict=True):
        log_prob = policy_log_prob(space.graph, forward_scores(context, policy, encoding))
        assert total_variation(terminating_distribution(space.graph, log_prob), target) < 1e-9
    distances = [total_variation(a, b) for i, a in enumerate(targets) for b in targets[:i]]
    assert max(distances) > 0.2  # a policy deaf to its conditioning would be this far off

    times, generator = 10, torch.Generator().manual_seed(4)
    many = Conditioning(conditioning.encoding.repeat(times, 1), conditioning.beta.repeat(times))
    fresh = sample_forward(context, policy, conditioning=many, generator=generator, random_action_prob=0.3)
    reversed_states = fresh.terminal[torch.arange(len(fresh)).flip(0)]  # states are replayed under another conditioning
    replayed = sample_backward(context, reversed_states, conditioning=many, generator=generator)
    batch = TrajectoryBatch.cat([space.rewarded(fresh), space.rewarded(replayed)])
    objective = TrajectoryBalance(context, AlgoConfig())
    log_z = torch.stack([reward[space.graph.terminal].logsumexp(0) for reward in rewards])
    objective.log_z.forward = lambda conditioning: log_z[policy.position_of(conditioning)]
    assert float(objective.loss(policy, batch).value) < 1e-9
    wrong = batch.with_rewards(batch.log_reward.roll(1))
    assert float(objective.loss(policy, wrong).value) > 0.1
