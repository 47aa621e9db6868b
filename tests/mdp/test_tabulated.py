"""Tables of all states: they list the states, and sample and evaluate as step by step."""

from dataclasses import replace

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.slots import HypergridEnv, SlotEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning import sampler
from gflownet.mdp import answer
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.answer import StateTable, state_table
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Rule, Rules
from gflownet.mdp.states import UNSET, Attribute, GraphStates
from gflownet.policy.config import ModelConfig
from gflownet.policy.mlp import MLPPolicy
from tests.contracts.environments import ENVIRONMENTS

NUM = 64
TABULATED = ("hypergrid", "bit_sequence", "catalogue", "large", "of a user")


class LadderEnv(SlotEnv):
    """A user's environment: a place may be filled with a value that is above that of the place before it."""

    def __init__(self) -> None:
        super().__init__(("low", "middle", "high"), Attribute("height", (1, 2, 3, 4, 5, 6, 7, 8)))

    def forward_rules(self, states: GraphStates) -> Rules:
        values = states.node_attr[..., 0].long()
        below = torch.nn.functional.pad(values[:, :-1], (1, 0), value=-1)
        above = torch.nn.functional.pad(values[:, 1:], (0, 1), value=UNSET)
        column = torch.arange(8)
        fits = (column > below[..., None]) & ((above == UNSET)[..., None] | (column < above[..., None]))
        return {
            GraphActionType.Stop: [Rule.of_graph("all places are empty", self.filled(states).any(1))],
            GraphActionType.SetNodeAttr: [
                Rule("the place is filled", states.node_attr == UNSET),
                Rule("values ascend", fits),
            ],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        return {GraphActionType.RemoveNodeAttr: [Rule("the place is empty", states.node_attr != UNSET)]}


MADE = {"large": lambda: HypergridEnv(3, 8), "of a user": LadderEnv}


@pytest.fixture(params=TABULATED)
def context(request):
    return GraphBuildingEnvContext((ENVIRONMENTS | MADE)[request.param]()).with_layout(MLPPolicy.layout)


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
    num_states, num_distinct = len(table_of(context).codes), len(batch.states.node_attr.unique(dim=0))
    assert outputs.num_distinct == (num_states if num_states <= len(rows) else num_distinct)
    without_table(monkeypatch)
    expected = answer.ask(context, policy, batch.states, rows)
    torch.testing.assert_close(log_prob, expected.log_prob(batch.actions))
    torch.testing.assert_close(numbers, expected.numbers)


@pytest.mark.parametrize("num_conditionings", [1, 3, NUM])
def test_policy_reads_each_pair_of_state_and_conditioning_once(context, policy, num_conditionings, monkeypatch):
    """Under one conditioning, a small space takes one call; the trajectories are always those sampled step by step."""
    calls, batches = [], []

    def counted(batch, rows):
        calls.append(torch.cat([batch["node_attr"].flatten(1).double(), rows], 1))
        return policy(batch, rows)

    encoding = (torch.arange(NUM, dtype=torch.float64) % num_conditionings)[:, None] / NUM
    conditions = Conditioning(encoding, torch.ones(NUM))
    for sampled_by in (counted, policy):
        options = {"conditioning": conditions, "generator": torch.Generator().manual_seed(0)}
        batches.append(sampler.sample_forward(context, sampled_by, **options))
        without_table(monkeypatch)
    pairs = torch.cat(calls)
    assert len(pairs.unique(dim=0)) == len(pairs)
    assert max(map(len, calls)) <= 4 * NUM
    num_states = len(context.env.every_state())
    assert num_conditionings > 1 or num_states > 4 * NUM or list(map(len, calls)) == [num_states]
    by_table, by_step = batches
    if num_conditionings < NUM:  # states of later steps are evaluated with those of earlier ones
        assert len(calls) < by_table.trajectory.bincount().max()
    assert bool(by_table.terminal.equals(by_step.terminal).all())
    assert torch.equal(by_table.trajectory, by_step.trajectory)


def test_sparse_table_suits_whole_spaces_only():
    """Slots of a sparse batch depend on its states."""
    context = GraphBuildingEnvContext(HypergridEnv(2, 8))
    rows = conditioning().encoding
    assert table_of(context).suits(rows, None, num=NUM)
    assert not table_of(context).suits(rows, None, num=NUM - 1)
    assert not table_of(context).suits(torch.arange(2)[:, None], None, num=NUM)


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
    assert HypergridEnv(4, 8).every_state() is not None
    envs = UnorderedHypergridEnv(2, 8), HypergridEnv(5, 8), ENVIRONMENTS["operation_graph"]()
    assert [env.every_state() for env in envs] == [None] * len(envs)
