"""Models of operation graphs: names, inputs and outputs, refusals, copies, cache, dtype, memory format, autocast."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import graph_cost
from gflownet.operations.tensor_shape import Layout
from gflownet.translation import summary, to_pytorch_model, to_source
from gflownet.translation.model import TranslatedModel
from tests.translation.operation_graphs import block, graph_of, hidden, image_input


def small(**fields) -> ComputationGraph:
    """A composite, a repeated subgraph, a merge of three shapes, a node without operation, and a dead node."""
    nodes = [
        image_input(3, 8, 8),
        hidden(1, "conv_bn_relu", features=6, stride=2),
        {"id": 2, "node_type": "hidden", "subgraph": "block", "repeat": 3},
        hidden(3, "identity", aggregation="max", align="auto", edge_weight=True, activation_function="softmax"),
        hidden(5, "identity"),
        hidden(7, "global_pool"),
        {"id": 6, "node_type": "hidden", "output_size": 9, "bias": 0.5, "activation_function": "relu"},
        hidden(4, "head", kind="output", features=10, aggregation="concat", align="pool"),
    ]
    edges = [(0, 1), (1, 2), (0, 3, {"weight": 0.5}), (1, 3), (2, 3), (3, 5), (3, 4), (0, 4), (6, 4), (0, 7), (7, 6)]
    return graph_of(nodes, edges, subgraphs={"block": block(Layout.IMAGE, 4)}, **fields)


@pytest.fixture(scope="module")
def model() -> TranslatedModel:
    torch.manual_seed(0)
    return to_pytorch_model(small()).eval()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_names_of_modules_and_parameters(model):
    modules = {name: type(module).__name__.partition("_")[0] for name, module in model.named_children()}
    assert modules == {
        "conv_bn_relu_1": "ConvBnRelu",
        "block_2": "ModuleList",
        "adapt_0_3": "Conv2d",
        "adapt_2_3": "Conv2d",
        "proj_7_6": "Linear",
        "head_4": "Linear",
    }
    names = list(model.state_dict())
    assert names[:6] == ["weight_0_3", "weight_1_3", "weight_2_3", "bias_3", "bias_6", "weight_7_6"]
    assert {"block_2.0.conv2d_2.bias", "block_2.2.conv2d_1.weight"} <= set(names)
    assert not any("_5." in name or "identity_3" in name for name in names)
    assert model.get_parameter("weight_0_3").item() == 0.5
    assert model.get_parameter("bias_6").item() == 0.5


def test_copies_compute_the_same(model, x):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    expected = model(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), expected)
        with torch.no_grad():
            other.get_parameter("bias_6").add_(1.0)
        assert torch.equal(model(x), expected)


@pytest.mark.parametrize(
    ("batch", "got"),
    [
        (torch.zeros(3, 8, 8), r"\[3, 8, 8\]"),
        (torch.zeros(2, 3, 8, 9), r"\[2, 3, 8, 9\]"),
        (torch.zeros(2, 4, 8, 8), r"\[2, 4, 8, 8\]"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "dtype torch.int64"),
    ],
)
def test_wrong_inputs_are_refused(model, batch, got):
    with pytest.raises(ValueError, match=r"input 0: expected floating numbers of shape \[B, 3, 8, 8\], got .*" + got):
        model(batch)


def test_several_inputs_and_outputs(x):
    nodes = [
        image_input(3, 8, 8),
        image_input(5, node_id=1),
        hidden(2, "conv2d", features=4),
        hidden(3, "head", features=2, kind="output", align="auto"),
        hidden(4, "linear", features=3, kind="output", align="auto"),
    ]
    edges = [(0, 2), (2, 3), (1, 3), (1, 4), (2, 4)]
    vectors = torch.randn(4, 5)
    y = to_pytorch_model(graph_of(nodes, edges))(x, vectors)
    assert y.shape == (4, 5)
    nodes[2] = {**nodes[2], "node_type": "output"}
    image, logits, more = to_pytorch_model(graph_of(nodes, edges))(x, vectors)
    assert [value.shape[1:] for value in (image, logits, more)] == [(4, 8, 8), (2,), (3,)]


def test_shared_subgraph_has_one_set_of_weights(x):
    nodes = [image_input(3, 8, 8), {"id": 1, "node_type": "output", "subgraph": "block", "repeat": 3}]
    subgraphs = {"block": block(Layout.IMAGE, 3)}
    counts = {}
    for share in (False, True):
        graph = graph_of([nodes[0], {**nodes[1], "share": share}], [(0, 1)], subgraphs=subgraphs)
        model = to_pytorch_model(graph)
        counts[share] = sum(parameter.numel() for parameter in model.parameters())
        assert counts[share] == graph_cost(graph).num_parameters == summary(graph).num_parameters
    assert counts[False] == 3 * counts[True]
    once = model.block_1
    assert torch.equal(model(x), once(once(once(x))))


def test_growing_shared_subgraph_is_refused():
    nodes = [image_input(3, 8, 8), {"id": 1, "node_type": "output", "subgraph": "block", "repeat": 2, "share": True}]
    with pytest.raises(ValueError, match=r"node 1: expected the output image \[3, 8, 8\] of a shared subgraph, got"):
        to_pytorch_model(graph_of(nodes, [(0, 1)], subgraphs={"block": block(Layout.IMAGE, 4)}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "lstm"}, "node 1: expected an activation without state .*, got lstm"),
        ({"aggregation": "attention"}, "node 1: expected an aggregation out of sum, .*, got 'attention'"),
        ({"operation": {"name": "linear", "features": 3}}, "node 1: linear: expected a vector or sequence, got image"),
        ({"operation": None, "output_size": 3}, "node 1: expected an operation or a subgraph for a image, got none"),
    ],
)
def test_invalid_nodes_are_refused(change, message):
    node = {**hidden(1, "identity", kind="output"), **change}
    node = {key: value for key, value in node.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        to_pytorch_model(graph_of([image_input(3, 4, 4), node], [(0, 1)]))


def test_unmarked_cycle_among_tensors_is_refused():
    graph = graph_of([image_input(3), hidden(1, "identity", kind="output")], [(1, 1)])
    with pytest.raises(ValueError, match="expected no cycle"):
        to_pytorch_model(graph)


def test_cache_separates_subgraphs_and_weights(x):
    first, second = (
        graph_of(
            [image_input(3, 8, 8), {"id": 1, "node_type": "output", "subgraph": "block"}],
            [(0, 1)],
            subgraphs={"block": block(Layout.IMAGE, features)},
        )
        for features in (4, 5)
    )
    assert to_pytorch_model(first)(x).shape[1] == 4
    assert to_pytorch_model(second)(x).shape[1] == 5
    nodes = [image_input(3), hidden(1, "identity", kind="output", edge_weight=True)]
    for weight in (0.5, 2.0):
        assert to_pytorch_model(graph_of(nodes, [(0, 1, {"weight": weight})])).weight_0_1.item() == weight


def test_channels_last_and_autocast(x):
    outputs, configs = {}, {"plain": {}, "last": {"memory_format": "channels_last"}, "cast": {"autocast": "bfloat16"}}
    for name, config in configs.items():
        torch.manual_seed(0)
        model = to_pytorch_model(small(), config).eval()
        outputs[name] = model(x)
        values: list[torch.Tensor] = []
        model.conv_bn_relu_1.conv2d_1.register_forward_hook(lambda _, inputs, y, values=values: values.append(y))
        model(x)
        assert values[0].dtype == (torch.bfloat16 if name == "cast" else torch.float32)
        assert values[0].is_contiguous(memory_format=torch.channels_last) == (name == "last")
    assert torch.allclose(outputs["plain"], outputs["last"], atol=1e-5)
    assert outputs["cast"].dtype == torch.float32
    assert 0 < (outputs["plain"] - outputs["cast"]).abs().max() < 0.05


@pytest.mark.parametrize("operation", ["head", "global_pool", "linear"])
def test_gradient_of_a_mean_over_positions_is_channels_last(x, operation):
    """Pooling and activations of channels_last are slow for another format of the gradient."""
    settings = {} if operation == "global_pool" else {"features": 5}
    output = hidden(2, operation, kind="output", aggregation="sum", align="pool", **settings)
    nodes, edges = [image_input(3, 8, 8), hidden(1, "conv2d", features=6), output], [(0, 1), (1, 2)]
    if operation == "linear":  # the image becomes a vector as the other input
        nodes, edges = [*nodes, {"id": 3, "node_type": "input", "output_size": 6}], [*edges, (3, 2)]
    model, gradients = to_pytorch_model(graph_of(nodes, edges)), list[torch.Tensor]()
    model.conv2d_1.register_forward_hook(lambda _, inputs, y: y.register_hook(gradients.append) and None)
    model(x, *[torch.ones(4, 6)] * (len(nodes) - 3)).square().sum().backward()
    assert gradients[0].is_contiguous(memory_format=torch.channels_last)


def test_options_of_images_are_refused_for_vector_graphs():
    graph = ComputationGraph()
    graph.add_node(0, "input", output_size=3)
    graph.add_node(1, "output", output_size=2)
    graph.add_edge(0, 1)
    assert isinstance(to_pytorch_model(graph), TranslatedModel)
    for config in ({"memory_format": "channels_last"}, {"autocast": "bfloat16"}):
        with pytest.raises(ValueError, match="expected an operation graph"):
            to_pytorch_model(graph, config)


def test_tied_weight_is_shared():
    nodes = [
        {"id": 0, "node_type": "input", "shape": [6], "dtype": "token"},
        hidden(1, "embedding", vocabulary_size=11, features=4),
        hidden(2, "tied_linear", kind="output"),
    ]
    graph = graph_of(nodes, [(0, 1), (1, 2), (1, 2, {"port": "weight"})], multigraph=True)
    model = to_pytorch_model(graph)
    tokens = torch.randint(11, (2, 6))
    weight = model.embedding_1.weight
    assert torch.allclose(model(tokens), weight[tokens] @ weight.T, atol=1e-6)
    assert sum(parameter.numel() for parameter in model.parameters()) == 44 == graph_cost(graph).num_parameters
    with pytest.raises(ValueError, match=r"input 0: expected integers of shape \[B, 6\], got .* of dtype torch.float"):
        model(torch.zeros(2, 6))


def test_train_and_eval_reach_subgraphs(x):
    nodes = [image_input(3, 8, 8), {"id": 1, "node_type": "output", "subgraph": "drop"}]
    inner = {
        "nodes": [{"id": 0, "node_type": "input"}, hidden(1, "dropout", dropout=0.5, kind="output")],
        "edges": [{"source": 0, "target": 1}],
    }
    model = to_pytorch_model(graph_of(nodes, [(0, 1)], subgraphs={"drop": inner}))
    assert (model(x) == 0).float().mean() > 0.3
    assert torch.equal(model.eval()(x), x)


def test_edge_weights_are_exact_in_float64():
    nodes = [image_input(3), hidden(1, "identity", kind="output", edge_weight=True)]
    model = to_pytorch_model(graph_of(nodes, [(0, 1, {"weight": 0.1})]), {"dtype": "float64"})
    assert model.weight_0_1.item() == 0.1


def test_subgraph_starts_with_its_own_weights_and_biases():
    inner = {
        "nodes": [
            {"id": 0, "node_type": "input"},
            {"id": 1, "output_size": 3, "bias": 0.25, "node_type": "hidden"},
            hidden(2, "identity", kind="output", edge_weight=True, bias=-2.0),
        ],
        "edges": [{"source": 0, "target": 1, "weight": 0.5}, {"source": 1, "target": 2, "weight": 3.0}],
    }
    nodes = [image_input(3), {"id": 1, "node_type": "output", "subgraph": "scaled", "repeat": 2}]
    graph = graph_of(nodes, [(0, 1)], subgraphs={"scaled": inner})
    x = torch.randn(4, 3)
    expected = x
    for _ in range(2):
        expected = (0.5 * expected + 0.25) * 3.0 - 2.0
    namespace: dict = {"__name__": "network"}
    exec(to_source(graph), namespace)
    for model in (to_pytorch_model(graph), namespace["Model"]()):
        assert torch.allclose(model(x), expected, atol=1e-6)
