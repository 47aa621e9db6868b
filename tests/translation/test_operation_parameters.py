"""Names and numbers of the parameters of operation models: adapters, edge weights, biases, subgraphs of any name."""

from __future__ import annotations

import pytest
import torch

from gflownet.operations.tensor_shape import Layout
from gflownet.translation import summary, to_pytorch_model, to_source
from tests.translation.operation_graphs import block, graph_of, hidden, image_input


def test_edges_of_one_source_into_several_ports_have_own_weights():
    """Adapters and weights of six edges from two inputs into query, key and value."""
    node = hidden(1, "cross_attention", kind="output", edge_weight=True, align="project")
    ports = [(source, 1, {"port": port}) for source in (0, 2) for port in ("query", "key", "value")]
    graph = graph_of([image_input(5, 8), image_input(5, 4, node_id=2), node], ports)
    model = to_pytorch_model(graph)
    names = {name: parameter for name, parameter in model.named_parameters() if name[:6] in ("weight", "adapt_")}
    assert len(names) == 6 + 3
    assert sum(parameter.numel() for parameter in model.parameters()) == summary(graph).num_parameters
    model(torch.randn(2, 5, 8), torch.randn(2, 5, 4)).square().sum().backward()
    gradients = [parameter.grad.abs().sum() for parameter in names.values()]
    assert all(gradient > 0 for gradient in gradients)


def test_edge_weight_adds_a_learned_bias():
    nodes = [image_input(3), hidden(-4, "identity", kind="output", edge_weight=True, bias=2.0)]
    graph = graph_of(nodes, [(0, -4, {"weight": 3.0})])
    for activation, expected in (("linear", 5.0), ("relu6", 5.0)):
        nodes[1]["activation_function"] = activation
        model = to_pytorch_model(graph_of(nodes, [(0, -4, {"weight": 3.0})]))
        assert model(torch.ones(2, 3)).tolist() == [[expected] * 3] * 2
    assert summary(graph).num_parameters == 2
    assert [name for name, _ in model.named_parameters()] == ["weight_0_m4", "bias_m4"]


@pytest.mark.parametrize("name", ["x²", "ﬁ", "none", "f", "Base", "adapt_0", "nn", "bias", "日本"])
def test_any_name_of_a_subgraph_is_translated(name):
    node = {"id": 3, "node_type": "output", "subgraph": name, "align": "project"}
    nodes = [image_input(3), image_input(5, node_id=2), node]
    graph = graph_of(nodes, [(0, 3), (2, 3)], subgraphs={name: block(Layout.VECTOR, 4)})
    model = to_pytorch_model(graph)
    assert sum(parameter.numel() for parameter in model.parameters()) == summary(graph).num_parameters
    namespace: dict = {"__name__": "network"}
    exec(to_source(graph), namespace)
    other = namespace["Model"]()
    other.load_state_dict(model.state_dict())
    inputs = torch.randn(2, 3), torch.randn(2, 5)
    assert torch.equal(other(*inputs), model(*inputs))


def test_source_refuses_names_of_layers():
    with pytest.raises(ValueError, match="name: expected a name that the source does not use, got 'SelfAttention'"):
        to_source(
            graph_of([image_input(5, 8), hidden(1, "self_attention", kind="output")], [(0, 1)]), name="SelfAttention"
        )


def test_inputs_of_another_dtype_are_refused():
    """A model without parameters has a dtype, too."""
    nodes = [image_input(3), hidden(1, "identity", kind="output")]
    for node in (nodes[1], hidden(1, "linear", kind="output", features=2)):
        model = to_pytorch_model(graph_of([nodes[0], node], [(0, 1)]), {"dtype": "float64"})
        assert model(model.zeros(2)[0]).dtype == torch.float64
        with pytest.raises(ValueError, match=r"input 0: expected torch.float64 numbers of shape .* torch.float32"):
            model(torch.zeros(2, 3))
        assert list(model.float().state_dict()) == [name for name, _ in model.named_parameters()]
        assert model(torch.zeros(2, 3)).dtype == torch.float32


def test_rotary_positions_are_exact_in_float64():
    graph = graph_of([image_input(50, 8), hidden(1, "rotary_positions", kind="output")], [(0, 1)])
    x = torch.ones(1, 50, 8, dtype=torch.float64)
    y = to_pytorch_model(graph, {"dtype": "float64"})(x)
    assert torch.allclose(y.square().sum(-1), x.square().sum(-1), rtol=0, atol=1e-14)
    cast = to_pytorch_model(graph)
    assert cast(x.float()).dtype == torch.float32
    assert torch.equal(cast.double()(x), y)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({}, ""),
        ({"edge_weight": True}, "expected one input of tokens without edge_weight"),
        ({"activation_function": "gelu"}, "expected activation linear of tokens"),
        ({"aggregation": "mean"}, "expected one input of tokens without edge_weight"),
    ],
)
def test_tokens_are_neither_merged_nor_scaled_nor_activated(field, message):
    token = {"node_type": "input", "shape": [4], "dtype": "token"}
    nodes = [{"id": 0, **token}, {"id": 1, **token}, hidden(2, "identity", kind="output", **field)]
    graph = graph_of(nodes, [(0, 2), *([(1, 2)] if "aggregation" in field else [])])
    assert [problem.code for problem in graph.validate()] == ["shape_mismatch"] * bool(message)
    if message:
        assert message in graph.validate()[0].message
        return
    model = to_pytorch_model(graph, {"autocast": "bfloat16"})
    assert model(*model.zeros(2)).dtype == torch.int64
