"""Contract of every policy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.envs.computation_graph import ComputationGraphEnv
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.errors import UserError
from gflownet.mdp.action import PAIR_TYPES, ActionBatch, ActionMasks, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.mdp.states import Attribute, GraphStates
from gflownet.policy.config import POLICIES, ModelConfig
from gflownet.policy.in_parts import PolicyInParts
from tests.contracts.environments import ENVIRONMENTS, computation_graphs

# Graphs with unnamed nodes; slot environments (a fixed set of named places).
UNNAMED = {
    **{name: ENVIRONMENTS[name] for name in ("undirected", "undirected_attributes", "directed", "directed_attributes")},
    "undirected_6": lambda: GraphBuildingEnv(["a", "b"], max_nodes=6, node_attributes=[Attribute("mark", (0, 1))]),
    "directed_6": lambda: GraphBuildingEnv(["a"], max_nodes=6, directed=True),
    "computation_graph": lambda: computation_graphs(max_hidden_nodes=4, max_edges=10),
    "computation_graph_recurrent": lambda: computation_graphs(
        input_sizes=(3, 2), aggregations=("sum", "concat"), max_hidden_nodes=3, max_edges=10, allow_recurrent=True
    ),
}
PLACES = {name: ENVIRONMENTS[name] for name in ("hypergrid", "bit_sequence", "cells")}
CASES = {**UNNAMED, "labelled_dag": ENVIRONMENTS["labelled_dag"], **PLACES}
# The environments that each policy supports; it rejects the others.
READABLE = {
    "dense_transformer": tuple(CASES),
    "graph_transformer": tuple(CASES),
    "mlp": ("labelled_dag", *PLACES),
    "sequence_transformer": tuple(PLACES),
}
PAIRS = [(policy, name) for policy in POLICIES for name in READABLE[policy]]
of_readable_cases = pytest.mark.parametrize(("make_policy", "name"), PAIRS, indirect=["make_policy"])
of_one_case_each = pytest.mark.parametrize(
    ("make_policy", "name"), [(policy, READABLE[policy][0]) for policy in POLICIES], indirect=["make_policy"]
)
# The networks that are equivariant to renumbering of nodes.
of_graph_networks = pytest.mark.parametrize("make_policy", ["dense_transformer", "graph_transformer"], indirect=True)
NUM_COND = 3
MakePolicy = Callable[..., tuple[GraphBuildingEnvContext, Policy]]


@pytest.fixture
def make_policy(request) -> MakePolicy:
    """Return a factory of a small policy of the parametrised class and its context."""
    policy_class: Any = POLICIES.load(request.param)

    def make(env: Environment, *, backward: bool = False, **options) -> tuple[GraphBuildingEnvContext, Policy]:
        context = GraphBuildingEnvContext(env, num_cond_dim=NUM_COND).with_layout(policy_class.layout)
        context = context.with_backward() if backward else context
        with torch.random.fork_rng():
            torch.manual_seed(0)
            sizes = {"num_layers": 2, "num_emb": 16, "num_heads": 2, **options}
            policy = policy_class(context, ModelConfig(name=request.param, **sizes))
        return context, policy

    return make


def visited(env: Environment, *, num: int, seed: int) -> GraphStates:
    """Return all states of random walks that stop only when nothing else is legal, in one batch."""
    generator = torch.Generator().manual_seed(seed)
    states, batches = env.initial_states(num), []
    while len(states):
        batches.append(states)
        masks = env.forward_masks(states).masks
        moves = ActionMasks({kind: mask for kind, mask in masks.items() if kind != GraphActionType.Stop})
        goes_on = moves.num_actions() > 0
        states = states[goes_on]
        moves = ActionMasks({kind: mask[goes_on] for kind, mask in moves.masks.items()})
        states = env.step(states, moves.sample_uniform(generator))
    return GraphStates.cat(batches)


def conditioning_for(num: int) -> Tensor:
    return torch.rand(num, NUM_COND, generator=torch.Generator().manual_seed(9))


def log_probs(
    context: GraphBuildingEnvContext, policy: Policy, states: GraphStates, conditioning: Tensor
) -> list[dict[tuple[int, int, int], float]]:
    """Return the log-probability of every legal action (kind, row, column) of each state."""
    with torch.no_grad():
        categorical, _ = policy(context.to_batch(states), conditioning)
    graphs, values = categorical.log_probs()
    owner, actions = context.env.forward_masks(states).positions()
    assert torch.equal(graphs, owner)
    values_of: list[dict[tuple[int, int, int], float]] = [{} for _ in range(len(states))]
    for i, graph in enumerate(owner.tolist()):
        values_of[graph][int(actions.kind[i]), int(actions.row[i]), int(actions.column[i])] = float(values[i])
    return values_of


def relabelled(env: Environment, states: GraphStates, seed: int) -> tuple[GraphStates, Tensor]:
    """Return the states with their interchangeable nodes renumbered, and the new number of each node, [B, N]."""
    n, first = env.vocabulary.max_nodes, env.num_ends if isinstance(env, ComputationGraphEnv) else 0
    new = torch.arange(n).repeat(len(states), 1)
    generator = torch.Generator().manual_seed(seed)
    for i, num in enumerate(states.num_nodes.tolist()):
        if num > first:
            new[i, first:num] = first + torch.randperm(num - first, generator=generator)
    old, graph = new.argsort(1), torch.arange(len(states))[:, None]
    pairs = (graph[:, :, None], old[:, :, None], old[:, None, :])
    renamed = GraphStates(
        num_nodes=states.num_nodes,
        node_type=states.node_type[graph, old],
        node_attr=states.node_attr[graph, old],
        edge_type=states.edge_type[pairs],
        edge_attr=states.edge_attr[pairs],
        edge_order=states.edge_order[pairs],
        reach=states.reach[pairs],
        num_bridges=states.num_bridges if env.vocabulary.directed else states.num_bridges[pairs],
    )
    return renamed, new


def renamed_action(env: Environment, action: tuple[int, int, int], new: list[int]) -> tuple[int, int, int]:
    kind, row, column = action
    n = env.vocabulary.max_nodes
    if kind in PAIR_TYPES:
        ends = [new[row // n], new[row % n]]
        source, target = ends if env.vocabulary.directed else sorted(ends)
        return kind, source * n + target, column
    return kind, row if kind == GraphActionType.Stop else new[row], column


@of_graph_networks
@pytest.mark.parametrize("name", UNNAMED)
def test_policy_is_equivariant_to_node_renumbering(make_policy, name):
    env = CASES[name]()
    context, policy = make_policy(env)
    states = visited(env, num=6, seed=1)
    conditioning = conditioning_for(len(states))
    renamed, new = relabelled(env, states, seed=2)
    assert not bool(renamed.equals(states).all())
    before = log_probs(context, policy, states, conditioning)
    after = log_probs(context, policy, renamed, conditioning)
    for graph, expected in enumerate(before):
        moved = {renamed_action(env, a, new[graph].tolist()): value for a, value in expected.items()}
        assert after[graph] == pytest.approx(moved, abs=1e-5)


@of_readable_cases
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_policy_output_does_not_depend_on_other_states_in_batch(make_policy, name, every):
    env = CASES[name]()
    context, policy = make_policy(env)
    states = visited(env, num=4, seed=3)
    conditioning = conditioning_for(len(states))
    batched = log_probs(context, policy, states, conditioning)
    with torch.no_grad():
        _, outputs = policy(context.to_batch(states), conditioning)
    for i in range(0, len(states), every):
        (separate,) = log_probs(context, policy, states[i : i + 1], conditioning[i : i + 1])
        assert separate == pytest.approx(batched[i], abs=1e-5)
        assert sum(map(torch.exp, map(torch.tensor, separate.values()))) == pytest.approx(1.0, abs=1e-5)
        with torch.no_grad():
            _, output = policy(context.to_batch(states[i : i + 1]), conditioning[i : i + 1])
        assert float(output) == pytest.approx(float(outputs[i]), abs=1e-5)


@of_one_case_each
def test_policy_depends_on_every_conditioning_feature(make_policy, name):
    env = CASES[name]()
    context, policy = make_policy(env)
    states = visited(env, num=3, seed=4)
    has_choice = context.env.forward_masks(states).num_actions() > 1
    states = states[has_choice]
    plain = conditioning_for(len(states))
    before = log_probs(context, policy, states, plain)
    for feature in range(NUM_COND):
        changed = plain.clone()
        changed[:, feature] += 1.0
        after = log_probs(context, policy, states, changed)
        for values, changed_values in zip(before, after, strict=True):
            assert max(abs(values[a] - changed_values[a]) for a in values) > 1e-5


@of_one_case_each
def test_conditioning_of_one_state_does_not_affect_other_states(make_policy, name):
    env = CASES[name]()
    context, policy = make_policy(env)
    states = visited(env, num=3, seed=5)
    plain = conditioning_for(len(states))
    changed = plain.clone()
    changed[0] += 1.0
    before, after = (log_probs(context, policy, states, c) for c in (plain, changed))
    assert before[0] != pytest.approx(after[0], abs=1e-5)
    assert all(b == pytest.approx(a, abs=1e-6) for a, b in zip(after[1:], before[1:], strict=True))


@pytest.mark.parametrize(
    ("make_policy", "name"),
    # Without edges, the parameters for edges have no gradient.
    [pair for pair in PAIRS if pair[0] != "graph_transformer" or pair[1] not in PLACES],
    indirect=["make_policy"],
)
def test_policy_gradient_reaches_every_parameter(make_policy, name):
    """Exceptions: the key bias of attention, which shifts all scores of a node equally, and the logit of Stop in
    sequences and cells, where Stop is the only action whenever it is legal.
    """
    idle = ("lin_key.bias",) if name not in ("bit_sequence", "cells") else ("lin_key.bias", "heads.stop.")
    env = CASES[name]()
    context, policy = make_policy(env)
    states = visited(env, num=12, seed=6)
    categorical, outputs = policy(context.to_batch(states), conditioning_for(len(states)))
    _, values = categorical.log_probs()
    weights = torch.rand(len(values), generator=torch.Generator().manual_seed(7))
    ((values * weights).sum() + outputs.sum()).backward()
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert bool(parameter.grad.isfinite().all())
        if not any(part in parameter_name for part in idle):
            assert float(parameter.grad.abs().max()) > 1e-6, parameter_name


@of_graph_networks
def test_policy_depends_on_edge_directions(make_policy):
    """A chain, a fork and a join of three hidden nodes differ only in the directions of their edges."""
    env = computation_graphs(
        activations=("relu",), aggregations=("sum",), hidden_sizes=(4,), max_hidden_nodes=4, max_edges=12
    )
    context, policy = make_policy(env)
    add_node, add_edge = (int(k) for k in (GraphActionType.AddNode, GraphActionType.AddEdge))
    n = env.vocabulary.max_nodes

    def build(*actions: tuple[int, int, int]) -> GraphStates:
        states = env.initial_states(1)
        for action in actions:
            states = env.step(states, ActionBatch(*(torch.tensor([value]) for value in action)))
        return states

    hidden = [(add_node, 0, 2)] * 3
    states = [
        build(*hidden, *((add_edge, s * n + t, 0) for s, t in pairs))
        for pairs in (((2, 3), (3, 4)), ((2, 3), (2, 4)), ((3, 4), (2, 4)))
    ]
    values = log_probs(context, policy, GraphStates.cat(states), torch.zeros(3, NUM_COND))
    sorted_values = [sorted(of_state.values()) for of_state in values]
    for i in range(3):
        for j in range(i):
            assert sorted_values[i] != pytest.approx(sorted_values[j], abs=1e-6)


@pytest.mark.parametrize(
    ("make_policy", "name"),
    [(policy, READABLE[policy][0]) for policy in POLICIES if policy != "mlp"],  # which has no heads
    indirect=["make_policy"],
)
def test_policy_width_not_divisible_by_heads_raises(make_policy, name):
    with pytest.raises(ValueError, match=r"model\.num_emb: expected a multiple of num_heads=3, got 16"):
        make_policy(CASES[name](), num_heads=3)


@of_one_case_each
def test_policy_parameter_count_is_linear_in_layers(make_policy, name):
    def num_parameters(num_layers: int) -> int:
        _, policy = make_policy(CASES[name](), num_layers=num_layers, num_emb=8, num_heads=4)
        return sum(parameter.numel() for parameter in policy.parameters())

    one, two, four = map(num_parameters, (1, 2, 4))
    assert two > one
    assert four - two == 2 * (two - one)


UNSUPPORTED = [(policy, name) for policy in POLICIES for name in CASES if name not in READABLE[policy]]


@pytest.mark.parametrize(("make_policy", "name"), UNSUPPORTED, indirect=["make_policy"])
def test_policy_rejects_unsupported_environment(make_policy, name):
    expected = r"model\.name=\w+: expected an environment with a fixed number of nodes( and no edges)?, got \w+Env$"
    with pytest.raises(UserError, match=expected):
        make_policy(CASES[name]())


@of_readable_cases
def test_policy_both_matches_forward_and_covers_backward_actions(make_policy, name):
    """`both` has the forward distribution of `forward` and one over exactly the legal backward actions."""
    env = CASES[name]()
    context, policy = make_policy(env, backward=True)
    states = visited(env, num=6, seed=8)
    batch, conditioning = context.to_batch(states), conditioning_for(len(states))
    with torch.no_grad():
        forward, backward, outputs = policy.both(batch, conditioning)
        only_forward, same_outputs = policy(batch, conditioning)
    assert all(map(torch.equal, forward.log_probs(), only_forward.log_probs()))
    assert torch.equal(outputs, same_outputs)
    owner, actions = env.backward_masks(states).positions()
    graphs, values = backward.log_probs()
    assert torch.equal(graphs, owner)
    totals = torch.zeros(len(states)).index_add(0, graphs, values.exp())
    assert torch.allclose(totals, (env.backward_masks(states).num_actions() > 0).float(), atol=1e-5)
    has_choice = env.backward_masks(states).num_actions()[owner] > 1  # a sequence has one backward action
    assert bool(has_choice.any()) == (name != "bit_sequence")
    assert not bool(has_choice.any()) or values[has_choice].unique().numel() > 1
    first = torch.searchsorted(owner.sort().values, owner.unique())
    order = owner.argsort(stable=True)[first]
    indices = context.to_indices(batch, actions[order], graphs=owner[order], backward=True)
    assert torch.allclose(backward.repeated(owner[order]).log_prob(indices), values[order])


@of_readable_cases
def test_policy_in_parts_matches_whole_policy(make_policy, name):
    env = CASES[name]()
    context, policy = make_policy(env, backward=True)
    states = visited(env, num=6, seed=9)
    batch, conditioning = context.to_batch(states), conditioning_for(len(states))
    in_parts = PolicyInParts(policy, context, num_parts=4)
    *distributions, outputs = policy.both(batch, conditioning)
    *from_parts, same_outputs = in_parts.both(batch, conditioning)
    assert torch.allclose(outputs, same_outputs, atol=1e-5)
    for whole, parted in zip(distributions, from_parts, strict=True):
        (graphs, values), (same_graphs, same_values) = whole.log_probs(), parted.log_probs()
        assert torch.equal(graphs, same_graphs)
        assert torch.allclose(values, same_values, atol=1e-5)
    forward_values = in_parts(batch, conditioning)[0].log_probs()[1]
    assert torch.allclose(forward_values, policy(batch, conditioning)[0].log_probs()[1], atol=1e-5)


@of_one_case_each
def test_policy_both_without_backward_context_raises(make_policy, name):
    context, policy = make_policy(CASES[name]())
    with pytest.raises(ValueError, match="with_backward"):
        policy.both(context.to_batch(context.env.initial_states(2)), conditioning_for(2))
