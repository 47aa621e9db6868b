"""Operation graphs: limits of real modules, walks that never end early, tables, counts by brute force, and errors."""

import pytest
import torch
from omegaconf import OmegaConf

from gflownet.certificate.exact import enumerate_states
from gflownet.envs import operation_tables
from gflownet.envs.config import EnvConfig, OperationGraphConfig
from gflownet.envs.operation_graph import OperationGraphContext, OperationGraphEnv
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.typed import graph_cost
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.action import ActionMasks, GraphAction, GraphActionType
from gflownet.mdp.environment import IllegalAction
from gflownet.operations.tensor_shape import Adapter, Layout, Shape, ShapeError, join
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.graph_transformer import GraphTransformerPolicy
from gflownet.translation.model import to_pytorch_model
from tests.contracts.environments import CONVOLUTIONS, ENVIRONMENTS, operation_graphs
from tests.oracles.networkx_states import num_automorphisms, oracle_of, search_classes

Kind = GraphActionType
MODULES = {
    "torch.nn:Conv2d": {"out_channels": 5, "kernel_size": [[1, 3], [3, 1]], "padding": ["same"], "activation": "relu"},
    "torch.nn:MaxPool2d": {"kernel_size": [[2, 4]]},
}
VOLUMES = {
    "torch.nn:Conv3d": {"out_channels": 3, "kernel_size": [[1, 3, 3], [3, 1, 1]], "activation": "relu"},
    "torch.nn:MaxPool3d": {"kernel_size": [[2, 1, 1]]},
}
VOLUME_OUTPUT = {"inputs": ((2, 4, 4, 4),), "output": Shape.of((3, 2, 4, 4))}
FUNCTIONS = {  # eight attributes, more than fit into one number with the type of a node
    "torch.nn:ELU": {"alpha": [1, 2]},
    "torch.nn:LeakyReLU": {"negative_slope": [0.1, 0.2]},
    "torch.nn:Softplus": {"beta": [1, 2]},
    "torch.nn:Hardtanh": {"max_val": [1, 2]},
    "torch.nn:Softshrink": {"lambd": [0.1, 0.2]},
    "torch.nn:Dropout": {"p": [0.1, 0.2]},
    "torch.nn:Softmax": {"dim": [1, 2]},
    "torch.nn:LocalResponseNorm": {"size": [1, 2]},
}
TOKENS = Shape.of([7], "tokens")
OF_TOKENS = {"embedding": {"vocabulary_size": 9, "features": [3, 4]}, "linear": {"features": [3, 50]}}
# Several inputs, of which one may have the shape of another (vectors), or not.
ATTENTION = {"operations": ("cross_attention",), "choices": {"cross_attention": {"heads": 2}}, "max_hidden_nodes": 1}
BILINEAR = {
    "operations": ("torch.nn:Bilinear", "linear"),
    "choices": {"torch.nn:Bilinear": {"out_features": [2, 3], "bias": [True, False]}, "linear": {"features": 2}},
    "max_parameters": 60,
}
SHARED = {
    "inputs": ((3,),),
    "operations": ("linear",),
    "choices": {"linear": {"features": [3, 4], "activation": ["relu", "linear"]}},
    "max_parameters": 50,
    "share": True,
}
LARGER_CONVOLUTIONS = {"features": [4, 8, 16], "kernel_size": [1, 3], "stride": [1, 2], "dilation": 1}


def larger(**changes) -> OperationGraphEnv:
    options = {
        "choices": {"conv2d": {**LARGER_CONVOLUTIONS, "merge": ["sum", "max"]}},
        "activations": ("relu", "gelu"),
        "max_hidden_nodes": 8,
        "max_edges": 14,
    }
    return operation_graphs(**{**options, **changes})


def small(name: str) -> OperationGraphEnv:
    env = ENVIRONMENTS[name]()
    assert isinstance(env, OperationGraphEnv)
    return env


LIMITED = ("tight", "projections", "layouts", "positions", "tokens")
LARGER = {
    "no_limit": larger,
    "tight": lambda: larger(max_parameters=700, max_multiply_adds=12_000),
    "tight_projections": lambda: larger(inputs=((3, 8, 8), (2, 6, 7)), align="auto", max_parameters=500),
    "few_edges": lambda: larger(inputs=((3, 8, 8), (6, 4, 4)), max_edges=8, max_parameters=400),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("no_limit", "tight"))) for name in LARGER]
)
def test_random_walks_finish_within_limits_and_return(name):
    """Every state has an action; finished networks keep the limits; every way back ends in the initial state."""
    env, generator = LARGER[name](), torch.Generator().manual_seed(3)
    states = uniform_states(env, 40, generator=generator)
    assert int(states.num_nodes.max()) > env.num_ends + 4
    for index in range(0, len(states), 3):
        cost = graph_cost(env.terminal(states, index))
        for value, limit in zip((cost.num_parameters, cost.multiply_adds), env.caps, strict=True):
            assert value <= limit
    while len(states):
        masks = env.backward_masks(states)
        moves = masks.num_actions() > 0
        ended, states = states[~moves], states[moves]
        assert bool((ended.num_nodes == env.num_ends).all())
        assert not bool(ended.has_edge.any())
        masks = ActionMasks({kind: mask[moves] for kind, mask in masks.masks.items()})
        if len(states):
            backward = masks.sample_uniform(generator)
            before = env.apply(states, backward)
            assert bool(env.forward_masks(before).contains(env.reverse(states, backward)).all())
            states = before


@pytest.mark.parametrize("name", [f"operation_graph_{name}" for name in LIMITED])
def test_modules_of_networks_keep_the_parameter_limit(name):
    env = small(name)
    graph = enumerate_states(env)
    kinds = {Layout.TOKENS: torch.long}
    examples = [torch.zeros(2, *shape.sizes, dtype=kinds.get(shape.layout)) for shape in env.input_shapes]
    sizes = []
    for index in graph.terminal[:: max(1, len(graph.terminal) // 20)].tolist():
        network = env.terminal(graph.states, index)
        assert network.validate() == []
        model = to_pytorch_model(network)
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
        assert graph_cost(network).num_parameters == sizes[-1]
        assert model(*examples).shape == (2, *env.output_shape.sizes)
    limit = env.caps[0]
    assert 0.75 * limit < max(sizes) <= limit


def test_terminal_network_holds_chosen_values():
    env = operation_graphs(
        activations=("relu", "gelu"), choices={"conv2d": {**CONVOLUTIONS["conv2d"], "merge": ["sum", "max"]}}
    )
    states = env.initial_states(1)
    for action in (
        GraphAction(Kind.AddNode, 0, value="conv2d"),
        GraphAction(Kind.SetNodeAttr, 2, attribute="features", value=8),
        GraphAction(Kind.SetNodeAttr, 2, attribute="kernel_size", value=3),
        GraphAction(Kind.SetNodeAttr, 2, attribute="activation", value="gelu"),
        GraphAction(Kind.SetNodeAttr, 2, attribute="merge", value="max"),
        GraphAction(Kind.AddEdge, 2, 1, value="forward"),
    ):
        states = env.step(states, env.encode_batch([action]))
    node = env.terminal(states, 0).nodes[2]
    fixed = {"stride": 1, "dilation": 1}
    assert dict(node.attributes["operation"]) == {"name": "conv2d", "features": 8, "kernel_size": 3, **fixed}
    assert (node.activation_function, node.aggregation, node.attributes["align"]) == ("gelu", "max", "pad")


@pytest.mark.parametrize(
    ("options", "num_networks"),
    [
        ({"operations": ("conv2d", "max_pool2d"), "max_edges": 3}, 32),
        ({"operations": tuple(MODULES), "choices": MODULES}, 45),
        pytest.param(
            {"operations": tuple(VOLUMES), "choices": VOLUMES, "inputs": ((2, 4, 4, 4),), "max_parameters": 90},
            27,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {**VOLUME_OUTPUT, "operations": tuple(VOLUMES), "choices": VOLUMES, "max_parameters": 90},
            28,
            marks=pytest.mark.slow,
        ),
        ({"inputs": ((3,), (4,)), "operations": ("torch:sub",), "max_edges": 4}, 26),
        pytest.param(
            {**ATTENTION, "inputs": ((2, 4), (3, 4)), "max_parameters": None, "align": "auto"},
            44,
            marks=pytest.mark.slow,
        ),
        pytest.param({**SHARED, "max_hidden_nodes": 2}, 50, marks=pytest.mark.slow),
        pytest.param({**SHARED, "inputs": ((3,), (3,)), "max_edges": 5}, 303, marks=pytest.mark.slow),
        pytest.param({**BILINEAR, "inputs": ((3,),), "max_parameters": 75, "share": True}, 246, marks=pytest.mark.slow),
        pytest.param({**BILINEAR, "inputs": ((3,), (2,)), "align": "auto"}, 444, marks=pytest.mark.slow),
        pytest.param({"operations": tuple(FUNCTIONS), "choices": FUNCTIONS}, 1193, marks=pytest.mark.slow),
        (
            {"output": Shape.of((5, 4, 4)), "operations": ("conv2d", "max_pool2d", "torch.nn:Flatten"), "max_edges": 3},
            32,
        ),
        ({"inputs": (TOKENS,), "output": Shape.of((7, 5)), "operations": tuple(OF_TOKENS), "choices": OF_TOKENS}, 9),
        pytest.param({"max_edges": 6}, 309, marks=pytest.mark.slow),
    ],
)
def test_number_of_networks_equals_brute_force(options, num_networks):
    """Classes and automorphisms of a search with the reference rules and networkx isomorphism."""
    env = operation_graphs(**{"max_parameters": 420, **options})
    graph = enumerate_states(env)
    classes, terminal = search_classes(oracle_of(env))
    assert (len(graph), len(graph.terminal)) == (len(classes), len(terminal))
    assert len(terminal) == num_networks
    automorphisms = [num_automorphisms(network) for network in terminal]
    assert sorted(graph.num_automorphisms[graph.terminal].tolist()) == sorted(automorphisms)


@pytest.mark.parametrize("name", ["operation_graph_layouts", "operation_graph_projections"])
def test_tables_match_alignment_of_shapes(name):
    env = small(name)
    tables = env.tables
    for i, first in enumerate(tables.shapes):
        for j, second in enumerate(tables.shapes):
            try:
                fits = join((first, second)) == second
            except ShapeError:
                fits = False
            assert bool(tables.fits[i, j]) == fits, f"{first} {second}"
            assert not fits or i <= j
            if fits:
                adapter = Adapter(first, second)
                assert tables.adapter[i, j].tolist() == [adapter.num_parameters, adapter.multiply_adds]


def test_value_of_a_setting_may_be_any_json_value():
    """Equal values of several operations (2, 2.0) are one value of an attribute; each operation has its own."""
    choices = {
        "torch.nn:Conv2d": {"out_channels": 3, "kernel_size": [[1, 3], [3, 1]], "bias": [True, False]},
        "torch.nn:MaxPool2d": {"kernel_size": [[1, 3], 2], "ceil_mode": True},
        "torch.nn:Upsample": {"scale_factor": [2, 2.5], "mode": ["nearest", "bilinear"]},
        "torch.nn:ELU": {"alpha": [2.0, 3.0]},
        "torch.nn:CELU": {"alpha": [2, 3]},
        "torch.nn:Unflatten": {"dim": 1, "unflattened_size": [[[1, 3]]]},  # fits no shape
    }
    choices = OmegaConf.create(choices)  # as from a YAML file
    env = operation_graphs(operations=tuple(choices), choices=choices, max_hidden_nodes=1, max_edges=2)
    graph = enumerate_states(env)
    operations = {
        repr(sorted(node.attributes["operation"].items()))
        for index in graph.terminal.tolist()
        for node in env.terminal(graph.states, index).nodes.values()
        if node.node_type is NodeType.HIDDEN
    }
    assert len(operations) == 4 + 2 + 4 + 2 + 2
    assert sum("('alpha', 2.0)" in each for each in operations) == 1
    assert sum("('alpha', 2)" in each for each in operations) == 1
    networks = [env.terminal(graph.states, index) for index in graph.terminal.tolist()]
    assert len(env.states_of(networks)) == len(networks)


def test_remaining_budget_is_a_feature():
    env = operation_graphs(max_parameters=400, max_multiply_adds=20_000)
    context, states = OperationGraphContext(env), env.initial_states(1)
    before = context.extra_node_features(states)[0, :, -2:]
    assert before.tolist() == [pytest.approx([1 - 20 / 400, 1 - 15 / 20_000])] * 4
    after = env.step(states, env.encode_batch([GraphAction(Kind.AddNode, 0, value="batch_norm")]))
    left = [6 / 400, 0, 1 - 26 / 400, float(before[0, 1])]
    assert context.extra_node_features(after)[0, 2, 4:].tolist() == pytest.approx(left)


@pytest.mark.parametrize("policy_class", [DenseTransformerPolicy, GraphTransformerPolicy])
def test_policy_reads_budget(policy_class):
    env = operation_graphs(max_parameters=400)
    context = OperationGraphContext(env).with_layout(policy_class.layout)
    torch.manual_seed(0)
    policy = policy_class(context, ModelConfig(num_layers=1, num_emb=8))
    other = OperationGraphContext(operation_graphs(max_parameters=300)).with_layout(policy_class.layout)
    states, encoding = env.initial_states(2), torch.zeros(2, 1)
    first, second = (policy(each.to_batch(states), encoding)[0].log_probs()[1] for each in (context, other))
    assert first.shape == second.shape
    assert not torch.allclose(first, second)


def test_foreign_network_raises():
    env = operation_graphs()
    network = env.terminal(env.initial_states(1), 0)
    network.add_edge(0, 1)
    assert len(env.states_of([network])) == 1
    wide = ComputationGraph.from_dict(network.to_dict())
    settings = {"operation": {"name": "conv2d", "features": 32, "kernel_size": 1}, "align": "pad"}
    wide.add_node(2, NodeType.HIDDEN, output_size=None, activation_function="relu", attributes=settings)
    wide.add_edge(0, 2)
    wide.add_edge(2, 1)
    with pytest.raises(ValueError, match=r"graph 0: expected a conv2d.features out of \[4, 8\], got 32"):
        env.states_of([wide])
    limited = operation_graphs(max_parameters=50)
    settings = {"operation": {"name": "conv2d", "features": 8, "kernel_size": 3}, "align": "pad"}
    wide = ComputationGraph.from_dict(network.to_dict())
    wide.add_node(2, NodeType.HIDDEN, output_size=None, activation_function="relu", attributes=settings)
    wide.add_edge(0, 2)
    wide.add_edge(2, 1)
    with pytest.raises(ValueError, match="graph 0: expected a network within"):
        limited.states_of([wide])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": []}, r"env.operation_graph.operations: expected distinct operations, got \[\]"),
        ({"operations": ["conv9d"]}, "operation: expected one of .*got 'conv9d'"),
        ({"operations": ["conv2d"], "choices": {"conv": {}}}, "choices: expected operations out of conv2d, got conv"),
        ({"choices": {"conv2d": {"width": 3}}}, "choices.conv2d: expected settings out of .* got width"),
        ({"choices": {"conv2d": {"features": [0]}}}, r"choices.conv2d.features: expected an int in .* got 0"),
        ({"choices": {"conv2d": {"merge": "concat"}}}, "choices.conv2d.merge: expected merges out of .* got 'concat'"),
        ({"operations": ["to_image"]}, r"choices.to_image.height: expected an int in .* got none"),
        (
            {"operations": ["tied_linear"]},
            "same 1 to 3 inputs, none of them weight, got tied_linear with input, weight",
        ),
        ({"choices": {"conv2d": {"bias": [{}, []]}}}, r"choices.conv2d.bias: expected a bool, got {}"),
        ({"choices": {"conv2d": {"stride": [1, 1.0]}}}, r"conv2d.stride: expected distinct values, got \[1, 1.0\]"),
        ({"activations": ["rely"]}, "activation: expected one of .*got 'rely'"),
        ({"max_parameters": 30}, "max_parameters: expected at least 40, for the output layer, got 30"),
        ({"max_edges": 1}, "max_edges: expected at least 2, to connect inputs and outputs, got 1"),
        ({"choices": {"conv2d": {"features": list(range(1, 60))}}}, "reach at most 50 shapes"),
    ],
)
def test_invalid_options_raise(options, message, monkeypatch):
    monkeypatch.setattr(operation_tables, "_MAX_SHAPES", 50)
    config = EnvConfig(operation_graph=OperationGraphConfig(**options))
    with pytest.raises(ValueError, match=message):
        OperationGraphContext.build_env(config, input_sizes=[Shape.of([3, 8, 8]), 7], output_sizes=[5])


@pytest.mark.parametrize(
    ("inputs", "output", "options", "message"),
    [
        ((TOKENS, (3,)), 5, {}, r"expected one input of tokens, or inputs without tokens, got tokens \[7\], vector"),
        (((3, 8, 8), (3,)), Shape.of((5, 8, 8)), {}, r"inputs of the output's layout, image \[5, 8, 8\], got image"),
        ((TOKENS,), 5, {}, r"operations: expected an operation that leads from tokens \[7\] to the output, got none"),
        (
            (TOKENS,),
            Shape.of((7, 5)),
            {"operations": ["embedding"], "choices": {"embedding": {"vocabulary_size": 9}}, "max_parameters": 100},
            "leads from .* to the output, or not within 100 parameters, got none",
        ),
    ],
)
def test_ends_that_no_network_joins_raise(inputs, output, options, message):
    with pytest.raises(ValueError, match=message):
        operation_graphs(inputs=inputs, output=output, **options)


def test_weights_of_a_shared_module_count_once():
    env = small("operation_graph_shared")
    graph = enumerate_states(env)
    networks = [env.terminal(graph.states, index) for index in graph.terminal.tolist()]
    assert any("share" in node.attributes for network in networks for node in network.nodes.values())
    costs = [graph_cost(network) for network in networks]
    sizes = env.sizes(graph.states[graph.terminal]).tolist()
    assert sizes == [[cost.num_parameters, cost.multiply_adds] for cost in costs]


def test_last_edge_of_the_budget_is_kept_for_a_free_port():
    env = operation_graphs(inputs=((4,), (4,), (3,)), output=1, operations=("torch:sub",), choices={}, max_edges=5)
    states = env.initial_states(1)
    for action in (
        GraphAction(Kind.AddEdge, 1, 3, value="forward"),
        GraphAction(Kind.AddEdge, 2, 3, value="forward"),
        GraphAction(Kind.AddNode, 0, value="torch:sub"),
        GraphAction(Kind.SetEdgeAttr, 0, 4, attribute="ports", value="0"),
    ):
        states = env.step(states, env.encode_batch([action]))
    other, free = (env.encode_batch([GraphAction(Kind.AddEdge, source, 4, value="forward")]) for source in (2, 1))
    with pytest.raises(IllegalAction, match="the source's shape does not fit"):
        env.step(states, other)
    assert bool(env.forward_masks(states).contains(free))


def test_edge_carries_the_names_of_its_ports():
    env = operation_graphs(inputs=((3,), (3,)), operations=("torch:sub",), choices={})
    states = env.initial_states(1)
    for action in (
        GraphAction(Kind.AddNode, 0, value="torch:sub"),
        GraphAction(Kind.SetEdgeAttr, 0, 3, attribute="ports", value="1"),
        GraphAction(Kind.AddEdge, 1, 3, value="forward"),
        GraphAction(Kind.SetEdgeAttr, 1, 3, attribute="ports", value="0"),
        GraphAction(Kind.AddEdge, 3, 2, value="forward"),
    ):
        states = env.step(states, env.encode_batch([action]))
    ports = {edge.source: edge.attributes.get("port", "input") for edge in env.terminal(states, 0).in_edges(3)}
    assert ports == {0: "other", 1: "input"}
