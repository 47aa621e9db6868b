"""Tables of all states: they list the states, and sample and evaluate as step by step."""

from dataclasses import replace

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.data import sampler
from gflownet.envs.slots import HypergridEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp import answer
from gflownet.mdp.answer import StateTable, state_table
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.states import GraphStates
from gflownet.policy.config import ModelConfig
from gflownet.policy.mlp import MLPPolicy
from tests.contracts.environments import ENVIRONMENTS

NUM = 64
TABULATED = ("hypergrid", "bit_sequence", "catalogue")


@pytest.fixture(params=TABULATED)
def context(request):
    return GraphBuildingEnvContext(ENVIRONMENTS[request.param]()).with_layout(MLPPolicy.layout)


@pytest.fixture
def policy(context):
    torch.manual_seed(0)
    return MLPPolicy(context, ModelConfig(num_layers=2, num_emb=16)).double()


def conditioning(num: int = NUM) -> Conditioning:
    return Conditioning(torch.full((num, 1), 0.5, dtype=torch.float64), torch.ones(num))


def table_of(context: GraphBuildingEnvContext) -> StateTable:
    table = state_table(context)
    assert table is not None
    return table


def without_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sampler, answer):
        monkeypatch.setattr(module, "state_table", lambda context: None)


def test_table_lists_every_state_and_transition(context):
    table = table_of(context)
    graph = enumerate_states(context.env)
    assert sorted(table.codes.tolist()) == sorted(context.env.identify(graph.states).tolist())
    assert bool((table.locate(table.states) == torch.arange(len(table.codes))).all())
    num_actions = context.env.forward_masks(table.states).without_stop().num_actions()
    assert bool(((table.successor >= 0).sum(1) == num_actions).all())


@pytest.mark.parametrize("exploration", [{}, {"temperature": 2.0, "random_action_prob": 0.2}])
def test_trajectories_are_those_sampled_step_by_step(context, policy, exploration, monkeypatch):
    batches = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(1)
        options = {"conditioning": conditioning(), "generator": generator, **exploration}
        batches.append((sampler.sample_forward(context, policy, **options), generator.get_state()))
        without_table(monkeypatch)
    (by_table, state), (by_step, state_by_step) = batches
    assert torch.equal(state, state_by_step)
    assert bool(by_table.states.equals(by_step.states).all())
    assert bool(by_table.terminal.equals(by_step.terminal).all())
    for name in ("trajectory", "log_backward", "log_symmetry", "origin"):
        assert torch.equal(getattr(by_table, name), getattr(by_step, name))
    for name in ("actions", "backward"):
        pairs = zip(getattr(by_table, name).parts, getattr(by_step, name).parts, strict=True)
        assert all(torch.equal(ours, expected) for ours, expected in pairs)


def test_outputs_are_those_of_distinct_states(context, policy, monkeypatch):
    batch = sampler.sample_forward(context, policy, conditioning=conditioning(), generator=torch.Generator())
    rows = conditioning(len(batch.states)).encoding
    outputs = answer.ask(context, policy, batch.states, rows)
    log_prob, numbers = outputs.log_prob(batch.actions), outputs.numbers
    assert outputs.first is not None
    assert bool(batch.states[outputs.first[outputs.owner]].equals(batch.states).all())
    assert outputs.num_distinct == len(table_of(context).codes)
    without_table(monkeypatch)
    expected = answer.ask(context, policy, batch.states, rows)
    torch.testing.assert_close(log_prob, expected.log_prob(batch.actions))
    torch.testing.assert_close(numbers, expected.numbers)


def test_policy_is_called_once_for_equal_conditioning(context, policy):
    calls = []

    def counted(batch, rows):
        calls.append(len(rows))
        return policy(batch, rows)

    generator = torch.Generator().manual_seed(0)
    sampler.sample_forward(context, counted, conditioning=conditioning(), generator=generator)
    assert calls == [len(table_of(context).codes)]
    calls.clear()
    encoding = torch.arange(NUM, dtype=torch.float64)[:, None] / NUM
    unequal = Conditioning(encoding, torch.ones(NUM))
    sampler.sample_forward(context, counted, conditioning=unequal, generator=generator)
    assert len(calls) > 1
    assert calls[0] == NUM


def test_logits_that_are_no_numbers_raise(context, policy):
    with torch.no_grad():
        policy.logits.bias.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="graph 0: expected numbers as logits"):
        sampler.sample_forward(context, policy, conditioning=conditioning(), generator=torch.Generator())


class UnorderedHypergridEnv(HypergridEnv):
    """Coordinates in another order are the same state."""

    def identify(self, states: GraphStates) -> torch.Tensor:
        return super().identify(replace(states, node_attr=states.node_attr.sort(1).values))


def test_environments_with_symmetries_or_many_states_have_no_table():
    assert HypergridEnv(2, 8).every_state() is not None
    envs = UnorderedHypergridEnv(2, 8), HypergridEnv(4, 8), ENVIRONMENTS["operation_graph"]()
    assert [env.every_state() for env in envs] == [None] * len(envs)
