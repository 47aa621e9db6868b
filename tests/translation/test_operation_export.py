"""Operation graphs as source, exported programs, ONNX files, compiled modules; summary and latency."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.operations.tensor_shape import Layout
from gflownet.translation import export_program, summary, to_onnx, to_pytorch_model, to_source
from gflownet.translation.graph_summary import GraphSummary
from tests.translation.operation_graphs import block, graph_of, hidden, image_input

OUTSIDE = "tests.translation.outside_operation"


def images() -> ComputationGraph:
    """Merges with adapters, a repeated subgraph, a composite, a node without operation, a layer of ours."""
    nodes = [
        image_input(3, 9, 9),
        hidden(1, "conv_bn_relu", features=6, stride=2),
        {"id": 2, "node_type": "hidden", "subgraph": "block", "repeat": 2},
        hidden(3, "layer_scale", aggregation="max", edge_weight=True, align="pad"),
        hidden(5, "identity"),
        hidden(7, "global_pool", activation_function="softmax"),
        {"id": 6, "node_type": "hidden", "output_size": 9, "align": "pool", "attributes": {"aggregation": "gated_sum"}},
        hidden(4, "head", kind="output", features=10, aggregation="concat", align="pool"),
    ]
    edges = [(0, 1), (1, 2), (0, 3, {"weight": 0.5}), (2, 3), (3, 5), (3, 4), (6, 4), (1, 7), (7, 6), (1, 6)]
    return graph_of(nodes, edges, subgraphs={"block": block(Layout.IMAGE, 4)})


def tokens() -> ComputationGraph:
    """Tokens and a vector in, a sequence and a vector out; a tied weight and a transformer block."""
    nodes = [
        {"id": 0, "node_type": "input", "shape": [6], "dtype": "token"},
        image_input(5, node_id=1),
        hidden(2, "embedding", vocabulary_size=11, features=4),
        hidden(3, "transformer_block", heads=2),
        {"id": 4, "node_type": "hidden", "output_size": 4, "activation_function": "tanh"},
        hidden(5, "tied_linear", kind="output"),
        hidden(6, "linear", features=3, kind="output", align="auto"),
    ]
    edges = [(0, 2), (2, 3), (3, 4), (2, 4), (4, 5), (2, 5, {"port": "weight"}), (1, 6), (4, 6)]
    return graph_of(nodes, edges)


def outside() -> ComputationGraph:
    nodes = [
        image_input(4),
        hidden(1, f"{OUTSIDE}:DoubledLinear", activation_function=f"{OUTSIDE}:Cubed"),
        hidden(2, "linear", features=3, kind="output"),
    ]
    return graph_of(nodes, [(0, 1), (1, 2)])


GRAPHS = pytest.mark.parametrize("make", [images, tokens, outside])
BUILT_IN = pytest.mark.parametrize("make", [pytest.param(images, marks=pytest.mark.slow), tokens])


def inputs_of(model, batch=3):
    torch.manual_seed(7)
    return [x if x.dtype == torch.int64 else torch.randn_like(x) for x in model.zeros(batch)]


def assert_close(first, second, atol=1e-5):
    pairs = [(first, second)] if isinstance(first, torch.Tensor) else zip(first, second, strict=True)
    for one, other in pairs:
        assert torch.allclose(one, other, atol=atol)


@GRAPHS
def test_source_gives_the_same_model(make):
    graph = make()
    namespace: dict = {"__name__": "network"}
    exec(compile(to_source(graph, name="Network"), "network.py", "exec"), namespace)
    torch.manual_seed(3)
    model = to_pytorch_model(graph)
    torch.manual_seed(3)
    other = namespace["Network"]()
    state = other.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    inputs = inputs_of(model)
    assert_close(other.eval()(*inputs), model.eval()(*inputs))


def test_source_needs_only_torch_and_the_layers_used():
    text = to_source(images())
    assert "gflownet." not in text
    assert "class LayerScale(nn.Module)" in text
    assert "class SelfAttention" not in text
    assert text.count("class Block") == 2  # two shapes of one subgraph
    assert f"from {OUTSIDE} import DoubledLinear as user_" in to_source(outside())
    assert "self.to(torch.float64)" in to_source(images().with_translation({"dtype": "float64"}))


@BUILT_IN
def test_exported_program_takes_any_batch(make):
    model = to_pytorch_model(make())
    program = export_program(model).module()
    assert model.training
    inputs = inputs_of(model, batch=5)
    assert_close(program(*inputs), model.eval()(*inputs))


@pytest.mark.slow
@GRAPHS
@pytest.mark.filterwarnings("ignore")  # torch 2.13's exporter warns about itself
def test_onnx_gives_the_same_numbers(make, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = to_pytorch_model(make())
    to_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    inputs = inputs_of(model, batch=5)
    names = [value.name for value in session.get_inputs()]
    assert names == (["x0", "x1"] if make is tokens else ["x"])
    outputs = session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})
    expected = model.eval()(*inputs)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    assert_close([torch.from_numpy(value) for value in outputs], expected)


@pytest.mark.parametrize("make", [images, tokens])
def test_summary_counts_parameters_and_flops(make):
    graph = make()
    model = to_pytorch_model(graph).eval()
    result = summary(graph)
    assert isinstance(result, GraphSummary)
    assert result.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    # The counter has no rule for the fused attention of the CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        outputs = model(*model.zeros(2))
    assert result.flops == counter.get_total_flops() // 2
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    assert [shape.sizes for shape in result.outputs] == [tuple(value.shape[1:]) for value in outputs]


def test_summary_lists_adapters_settings_and_dead_nodes():
    result = summary(images())
    assert isinstance(result, GraphSummary)
    rows = {node.node_id: node for node in result.nodes}
    assert result.dead_node_ids == (5,)
    assert rows[3].adapters == ("0: average pooling 9x9 to 5x5, zeros for channels 3 to 4",)
    assert rows[4].adapters == ("3: mean over positions",)
    assert rows[1].operation == "conv_bn_relu(features=6, stride=2)"
    assert rows[2].operation == "block x 2"
    assert rows[3].operation == "max -> layer_scale"
    text = str(result)
    assert "image [6, 5, 5]" in text
    assert f"{result.num_parameters:,}" in text.splitlines()[-1]
    (line,) = (line for line in text.splitlines() if line.startswith("5 "))
    assert line.split()[-1] == "dead"


def test_projection_reaches_nodes_without_operation():
    nodes = [image_input(3), {"id": 1, "node_type": "output", "output_size": 3}, hidden(2, "identity")]
    graph = graph_of(nodes, [(0, 1), (0, 2)])
    for projection, count in (("auto", 2), ("always", 11)):
        model = to_pytorch_model(graph, {"projection": projection})
        assert sum(parameter.numel() for parameter in model.parameters()) == count
        assert summary(graph, projection=projection).num_parameters == count
