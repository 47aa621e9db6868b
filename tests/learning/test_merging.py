"""Merging of isomorphic states into one representative per class."""

from dataclasses import replace

import pytest
import torch

from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.learning.learner import merge_isomorphic
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.answer import distinct
from gflownet.mdp.environment import Environment
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from tests.contracts.environments import ENVIRONMENTS
from tests.data.policies import opinionated, unconditional
from tests.search.terminal_states import ENVIRONMENT_NAMES
from tests.toy_policies import UniformPolicy


def trajectories_of(env: Environment, *, num: int) -> TrajectoryBatch:
    """Return trajectories sampled forward by a uniform policy, and backward from where those ended."""
    context, _ = opinionated(env, dense=False)
    generator, conditioning = torch.Generator().manual_seed(0), unconditional(num)
    forward = sample_forward(context, UniformPolicy(context), conditioning=conditioning, generator=generator)
    backward = sample_backward(context, forward.terminal, conditioning=conditioning, generator=generator)
    return TrajectoryBatch.cat([forward, backward]).with_rewards(torch.linspace(-1, 1, 2 * num))


def merged(env: Environment, batch: TrajectoryBatch) -> TrajectoryBatch:
    return merge_isomorphic(env, batch, env.canonical_forms(batch.states))


def num_distinct(batch: TrajectoryBatch) -> int:
    return len(distinct(batch.states, torch.zeros(len(batch.states), 1))[0])


@pytest.mark.parametrize("name", ENVIRONMENT_NAMES)
def test_merge_isomorphic_actions_are_legal(name):
    env = ENVIRONMENTS[name]()
    before = trajectories_of(env, num=10)
    after = merged(env, before)
    code = env.identify(before.states)
    assert torch.equal(env.identify(after.states), code)
    assert num_distinct(after) == len(code.unique())
    assert bool(env.forward_masks(after.states).contains(after.actions).all())
    step, successor = before.successors()
    reached = env.identify(env.apply(after.states[step], after.actions[step]))
    assert torch.equal(reached, code[successor])
    assert bool(env.backward_masks(after.states[successor]).contains(after.backward[step]).all())
    left = env.identify(env.apply(after.states[successor], after.backward[step]))
    assert torch.equal(left, code[step])


@pytest.mark.parametrize("directed", [False, True])
def test_merge_isomorphic_actions_are_isomorphic(directed):
    """The isomorphism class of (state, action) is unchanged."""
    env = GraphBuildingEnv(["a", "b"], max_nodes=5, directed=directed)
    before = trajectories_of(env, num=100)
    after = merged(env, before)
    codes = env.identify_actions(before.states, before.actions)
    assert torch.equal(env.identify_actions(after.states, after.actions), codes)
    step, successor = before.successors()
    undone = env.identify_actions(before.states[successor], before.backward[step])
    assert torch.equal(env.identify_actions(after.states[successor], after.backward[step]), undone)
    assert num_distinct(after) == len(env.identify(before.states).unique()) < num_distinct(before)


@pytest.mark.parametrize("backward_policy", ["uniform", "learned"])
def test_merge_isomorphic_keeps_loss(backward_policy):
    env = GraphBuildingEnv(["a", "b"], max_nodes=5)
    context, policy = opinionated(env, two_way=backward_policy == "learned")
    objective = TrajectoryBalance(context, AlgoConfig(backward_policy=backward_policy))
    before = trajectories_of(env, num=50)
    expected = objective.loss(policy, before).value.item()
    assert objective.loss(policy, merged(env, before)).value.item() == pytest.approx(expected, rel=1e-4)


def test_merge_isomorphic_skips_hard_states():
    env = GraphBuildingEnv(["a"], max_nodes=6)
    before = trajectories_of(env, num=20)
    forms = env.canonical_forms(before.states)
    unknown = replace(forms, num_automorphisms=torch.zeros_like(forms.num_automorphisms))
    after = merge_isomorphic(env, before, unknown)
    assert bool(after.states.equals(before.states).all())
    assert all(torch.equal(a, b) for a, b in zip(after.actions.parts, before.actions.parts, strict=True))


def test_merge_isomorphic_stop_and_first_node():
    actions = ActionBatch(
        torch.tensor([int(GraphActionType.Stop), int(GraphActionType.AddNode)]), torch.zeros(2).long(), torch.zeros(2)
    )
    names = torch.tensor([[2, 1, 0], [0, 1, 2]])
    assert actions.renamed(names, directed=False).row.tolist() == [0, 0]


def test_merge_isomorphic_undirected_pair_order():
    kind = torch.full((2,), int(GraphActionType.AddEdge))
    actions = ActionBatch(kind, torch.tensor([1, 1]), torch.zeros(2))  # nodes 0 and 1 of 3
    names = torch.tensor([[2, 1, 0], [1, 2, 0]])
    assert actions.renamed(names, directed=False).row.tolist() == [1 * 3 + 2, 1 * 3 + 2]
    assert actions.renamed(names, directed=True).row.tolist() == [2 * 3 + 1, 1 * 3 + 2]
