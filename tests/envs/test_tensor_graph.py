"""Tensor programs: equality of states, conversion to and from states, evaluation, and rules against an oracle."""

import json
import re

import pytest
import torch

from gflownet.autodiff.evaluation import evaluate
from gflownet.autodiff.nodes import ElementwiseNode, LeafNode, LinearNode, Node, NonlinearNode, TransformNode
from gflownet.autodiff.text import parse
from gflownet.certificate.exact import enumerate_states
from gflownet.envs.config import EnvConfig, TensorGraphConfig
from gflownet.envs.tensor_graph import TensorGraphContext, TensorGraphEnv, TensorGraphFacts
from gflownet.envs.tensor_program import TensorProgram, program_of, read_inputs
from gflownet.mdp.action import ActionBatch, GraphAction
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.environment import IllegalAction
from tests.contracts.environments import tensor_graphs
from tests.oracles.networkx_states import oracle_of, search_classes
from tests.search.terminal_states import random_terminal_states

SHAPES = {"A": (2, 3), "B": (3, 2), "v": (3,)}


def program(text: str) -> TensorProgram:
    leaves = "".join(f"input {name}[{','.join(map(str, shape))}]\n" for name, shape in SHAPES.items())
    return program_of(parse(leaves + text).node(), SHAPES)


def space(**changes) -> TensorGraphEnv:
    options = {"inputs": SHAPES, "functions": ("tanh", "exp"), "new_extents": (2,), "max_operations": 3, "max_rank": 4}
    return tensor_graphs(**{**options, **changes})


@pytest.mark.parametrize(
    ("first", "second", "are_equal"),
    [
        ("y[i,k] = sum_j A[i,j] B[j,k]", "y[p,q] = sum_m A[p,m] B[m,q]", True),
        ("y[i,k] = sum_j A[i,j] B[j,k]", "y[i,k] = sum_j B[j,k] A[i,j]", True),
        (
            "y[i,k] = sum_j A[i,j] B[j,k]",
            "y[k,i] = sum_j A[i,j] B[j,k]",
            True,
        ),  # the layout of a result does not matter
        ("y[i,k] = sum_j A[i,j] B[j,k]", "y[i,k] = sum_j (A[i,j] + B[j,k])", False),
        ("y[i,j] = A[i,j] + B[j,i]", "y[i,j] = B[j,i] + A[i,j]", True),
        ("y[i,j] = A[i,j] - B[j,i]", "y[i,j] = B[j,i] - A[i,j]", False),
        ("y[i,j] = A[i,j] - B[j,i]", "y[a,b] = A[a,b] - B[b,a]", True),
        ("y[i] = sum_j A[i,j]", "y[j] = sum_i A[i,j]", False),
        ("t[i,j] = A[i,j] * B[j,i]\ny[i,j] = tanh(t[i,j])", "t[i,j] = A[i,j] * B[j,i]\ny[i,j] = exp(t[i,j])", False),
        ("y[i] = sum_j A[i,j] v[j]", "t[a] = sum_b v[b] A[a,b]\ny[c] = t[c]", False),
    ],
)
def test_tensor_program_equality_ignores_index_names_and_operand_order(first, second, are_equal):
    env = space()
    left, right = program(first), program(second)
    assert (left == right) is are_equal
    assert (hash(left) == hash(right)) is are_equal
    codes = env.identify(env.states_of([left, right]))
    assert bool(codes[0] == codes[1]) is are_equal


def test_tensor_program_round_trip_through_states_and_json():
    env = space()
    states = random_terminal_states(env, 40, seed=1)
    programs = [env.terminal(states, i) for i in range(len(states))]
    restored = [program_of(candidate.node(), SHAPES) for candidate in programs]
    assert torch.equal(env.identify(env.states_of(restored)), env.identify(states))
    for candidate in programs:
        assert TensorProgram.from_dict(json.loads(json.dumps(candidate.to_dict()))) == candidate
        assert str(candidate) in json.dumps(candidate.to_dict())


def test_terminal_programs_contain_all_node_kinds():
    env = space()
    states = random_terminal_states(env, 100, seed=2)
    kinds: set[type] = set()
    for i in range(len(states)):
        stack: list[Node] = [env.terminal(states, i).node()]
        while stack:
            node = stack.pop()
            kinds.add(type(node))
            stack.extend(node.inputs)
    assert kinds == {LeafNode, TransformNode, ElementwiseNode, LinearNode, NonlinearNode}


def test_tensor_program_evaluates_stacked_examples_independently():
    """A leading batch axis gives the same result as one evaluation per example."""
    env = space()
    states = random_terminal_states(env, 20, seed=3)
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(4, *shape, generator=generator).double() for name, shape in SHAPES.items()}
    for i in range(len(states)):
        candidate = env.terminal(states, i)
        leaves = {name: LeafNode((4, *shape), name=name, dtype=torch.float64) for name, shape in SHAPES.items()}
        single = {name: LeafNode(shape, name=name, dtype=torch.float64) for name, shape in SHAPES.items()}
        batched = evaluate([candidate.node(leaves)], {leaves[name]: values[name] for name in SHAPES})[0]
        for example in range(4):
            separate = evaluate([candidate.node(single)], {single[name]: values[name][example] for name in SHAPES})[0]
            torch.testing.assert_close(batched[example], separate, rtol=1e-12, atol=1e-9)


def test_tensor_program_shares_input_without_example_axis():
    """A parameter has no example axis; a result has one if any of its inputs has."""
    candidate = program("y[i] = sum_j A[i,j] v[j]")
    matrices = torch.arange(24.0, dtype=torch.float64).reshape(4, 2, 3)
    v = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)
    leaves = {"A": LeafNode((4, 2, 3), name="A", dtype=torch.float64), "v": LeafNode((3,), name="v", dtype=v.dtype)}
    value = evaluate([candidate.node(leaves)], {leaves["A"]: matrices, leaves["v"]: v})[0]
    torch.testing.assert_close(value, (matrices * v).sum(-1))


def test_tensor_program_with_repeated_operand():
    square = program("y[i,k] = sum_j A[i,j] A[k,j]")
    assert square == program("t[i,j] = A[i,j]\ny[i,k] = sum_j t[i,j] A[k,j]")
    matrix = torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    leaf = LeafNode((2, 3), name="A", dtype=torch.float64)
    value = evaluate([square.node({"A": leaf})], {leaf: matrix})[0]
    torch.testing.assert_close(value, matrix @ matrix.T)


@pytest.mark.parametrize(
    ("inputs", "max_operations", "num_states", "num_programs"),
    [({"a": (2,), "b": (2,)}, 1, 54, 28), pytest.param({"a": (2,)}, 2, 341, 146, marks=pytest.mark.slow)],
)
def test_tensor_graph_class_count_matches_oracle(inputs, max_operations, num_states, num_programs):
    """Search with the reference rules and networkx isomorphism; the larger space is of tests/test_exact_spaces.py."""
    env = tensor_graphs(
        inputs=inputs, operations=("transform", "*", "-"), functions=(), new_extents=(2,), max_operations=max_operations
    )
    classes, terminal = search_classes(oracle_of(env))
    states = enumerate_states(env)
    assert (len(states), len(states.terminal)) == (len(classes), len(terminal)) == (num_states, num_programs)


def test_illegal_action_message_names_the_rule():
    env = tensor_graphs(inputs={"a": (2,), "b": (3,)})
    states = env.initial_states(1)
    for action in (
        GraphAction(Kind.AddNode, 0, value="*"),
        GraphAction(Kind.AddEdge, 2, 4),
        GraphAction(Kind.AddNode, 1, value="keep"),
    ):
        states = env.step(states, env.encode_batch([action]))
    with pytest.raises(IllegalAction, match="only equal extents match"):
        env.step(states, env.encode_batch([GraphAction(Kind.AddEdge, 3, 5)]))
    with pytest.raises(IllegalAction, match="an operation has to be finished first"):
        env.step(states, ActionBatch(*(torch.tensor([0]) for _ in range(3))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operations": ("einsum",)}, "operations: expected some of transform"),
        ({"operations": ("*",), "inputs": {"a": (2,)}}, "inputs: expected two, or one and transforms"),
        ({"max_operations": 0}, "expected max_operations >= 1"),
        ({"new_extents": (0,)}, "new_extents: expected extents of at least 1"),
    ],
)
def test_tensor_graph_env_invalid_arguments_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        tensor_graphs(**changes)


def test_read_inputs_parses_names_and_shapes():
    assert read_inputs(["A[3, 4]", "s[]"]) == {"A": (3, 4), "s": ()}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["A"], "inputs: expected a name and a shape as in A[3,4], got 'A'"),
        (["A[0]"], "inputs: expected a name and a shape as in A[3,4], got 'A[0]'"),
        (["2[3]"], "inputs: expected a name and a shape as in A[3,4], got '2[3]'"),
        (["A[2]", "A[3]"], "inputs: expected distinct names, got 'A'"),
        (["keep[2]"], "inputs: expected distinct names, got 'keep'"),
    ],
)
def test_read_inputs_invalid_text_raises(texts, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_inputs(texts)


def test_tensor_graph_context_from_config_and_node_features():
    config = EnvConfig(tensor_graph=TensorGraphConfig(inputs=["A[2,3]"]))
    context = TensorGraphContext.from_config(config, input_sizes=(), output_sizes=(), num_cond_dim=2)
    assert context.num_cond_dim == 2
    env = TensorGraphContext.build_env(config, input_sizes=(), output_sizes=())
    states = env.step(env.initial_states(1), env.encode_batch([GraphAction(Kind.AddNode, 0, value="transform")]))
    facts = TensorGraphFacts(env.kinds, states)
    assert facts.extent[0, :4].tolist() == [0, 2, 3, 0]
    assert facts.is_pending[0, :4].tolist() == [False, True, True, False]
    features = context.extra_node_features(states)
    assert env.extents.tolist() == [2, 3]
    assert features.shape == (1, env.vocabulary.max_nodes, context.num_extra_node_features)
    assert features[0, 1].tolist() == [1, 0, 0, 1, 0, 0, 0]
    assert features[0, 3].tolist() == [0, 0, 1, 0, 1, 0, 0.5]


def test_states_of_unsupported_program_raises():
    with pytest.raises(ValueError, match="without a factor"):
        program("y[i,j] = 2.0 * A[i,j]")
    with pytest.raises(ValueError, match="expected a node type"):
        space(operations=("*",)).states_of([program("t[i] = sum_j A[i,j]")])
