"""What the exactness script trains on: trajectories renamed to the representatives of their states mean the same."""

import importlib
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from gflownet.data.sampler import sample_forward
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.answer import distinct
from gflownet.metrics.exact import enumerate_states
from gflownet.objectives.config import AlgoConfig


@pytest.fixture
def exact_training(monkeypatch, checkout) -> ModuleType:
    monkeypatch.syspath_prepend(str(checkout / "scripts"))
    return importlib.import_module("scripts.exact_training")


def sampled(exact_training, *, directed: bool, config: AlgoConfig):
    """Return a space, what is trained there, and 64 trajectories of the untrained policy."""
    env = GraphBuildingEnv(["a", "b"], max_nodes=4, directed=directed)
    graph = enumerate_states(env)
    space = exact_training.EnumeratedSpace(env, graph, torch.linspace(-1, 1, len(graph)))
    setting = exact_training.Setting(algo=config, num_steps=1)
    context, policy, objective = exact_training.learners(env, setting, seed=0)
    given, generator = Conditioning(torch.zeros(64, 1), torch.ones(64)), torch.Generator().manual_seed(0)
    batch = sample_forward(context, policy, conditioning=given, generator=generator, random_action_prob=0.5)
    return space, policy, objective, batch.with_rewards(space.rewards_of(batch.terminal))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(("method", "backward_policy"), [("tb", "uniform"), ("db", "learned"), ("subtb", "tlm")])
def test_renamed_trajectories_have_the_loss_of_the_others_and_fewer_states(
    exact_training, directed, method, backward_policy
):
    config = AlgoConfig(method=method, backward_policy=backward_policy)
    space, policy, objective, batch = sampled(exact_training, directed=directed, config=config)
    renamed = space.renamed(batch)
    before, after = (float(objective.loss(policy, b).value.detach()) for b in (batch, renamed))
    assert after == pytest.approx(before, rel=1e-5)
    assert torch.equal(space.env.identify(renamed.states), space.env.identify(batch.states))
    counts = [len(distinct(b.states, torch.zeros(len(b.states), 1))[0]) for b in (batch, renamed)]
    assert counts[1] == len(torch.unique(space.env.identify(batch.states))) < counts[0]
    moved = renamed.successors()[0]
    undone = space.env.apply(renamed.states[renamed.successors()[1]], renamed.backward[moved])
    assert torch.equal(space.env.identify(undone), space.env.identify(renamed.states[moved]))


def test_other_actions_of_the_states_change_the_loss(exact_training):
    """The negative control: the policy tells actions apart that the renaming might mix up."""
    space, policy, objective, batch = sampled(exact_training, directed=False, config=AlgoConfig(method="tb"))
    renamed = space.renamed(batch)
    is_node = renamed.actions.kind == int(GraphActionType.AddNode)
    other = torch.where(is_node, 1 - renamed.actions.column, renamed.actions.column)  # the other colour
    wrong = replace(renamed, actions=ActionBatch(renamed.actions.kind, renamed.actions.row, other))
    before, after = (float(objective.loss(policy, b).value.detach()) for b in (renamed, wrong))
    assert after != pytest.approx(before, rel=1e-3)
