"""Merges of unequal inputs and shared subgraphs against plain PyTorch: model, source, ONNX, costs, identity."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import OperationCost, graph_cost
from gflownet.translation import summary, to_pytorch_model, to_source
from gflownet.translation.graph_summary import GraphSummary
from gflownet.translation.model import TranslatedModel
from tests.translation.operation_graphs import Data, graph_of, hidden, random_graph

TOLERANCE = {"rtol": 0, "atol": 1e-6}
SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "image": ((8, 6, 5), "image"),
    "signal": ((8, 6), "signal"),
    "sequence": ((6, 8), "sequence"),
}
GATES = [
    ("image", (8,), "vector", lambda x: x[:, :, None, None]),
    ("image", (8, 1, 1), "image", lambda x: x),
    ("image", (1, 6, 5), "image", lambda x: x),
    ("image", (8, 6, 1), "image", lambda x: x),
    ("image", (1,), "vector", lambda x: x[:, :, None, None]),
    ("signal", (8,), "vector", lambda x: x[:, :, None]),
    ("signal", (1, 6), "signal", lambda x: x),
    ("sequence", (8,), "vector", lambda x: x[:, None]),
    ("sequence", (1, 8), "sequence", lambda x: x),
    ("sequence", (6, 1), "sequence", lambda x: x),
]
MERGES = {
    "sum": lambda a, b: a + b,
    "mean": lambda a, b: (a + b) / 2,
    "product": lambda a, b: a * b,
    "max": torch.maximum,
    "min": torch.minimum,
}


def merge_graph(*inputs: tuple[tuple[int, ...], str], **fields) -> ComputationGraph:
    """Inputs that meet in one identity."""
    nodes: list[Data] = [
        {"id": place, "node_type": "input", "shape": list(sizes), "layout": layout}
        for place, (sizes, layout) in enumerate(inputs)
    ]
    last = len(nodes)
    nodes.append(hidden(last, "identity", kind="output", **fields))
    return graph_of(nodes, [(place, last) for place in range(last)])


def samples(graph: ComputationGraph) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [graph.nodes[node_id].attributes["shape"] for node_id in graph.input_node_ids]
    return [torch.randn(4, *sizes, generator=generator) for sizes in shapes]


def assert_computes(graph: ComputationGraph, expected: Tensor) -> TranslatedModel:
    """Compare the model and its source with the expected output, and all counts with the module's."""
    model, inputs = to_pytorch_model(graph), samples(graph)
    torch.testing.assert_close(model(*inputs), expected, **TOLERANCE)
    namespace: dict = {"__name__": "network"}
    exec(to_source(graph), namespace)
    other = namespace["Model"]()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(*inputs), expected, **TOLERANCE)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    assert graph_cost(graph).num_parameters == summary(graph).num_parameters == num_parameters
    return model


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize(("kind", "sizes", "layout", "lift"), GATES)
def test_merge_broadcasts(merge, kind, sizes, layout, lift):
    for is_first in (False, True):
        pair = [SHAPES[kind], (sizes, layout)]
        graph = merge_graph(*(reversed(pair) if is_first else pair), aggregation=merge)
        values = samples(graph)
        x, gate = reversed(values) if is_first else values
        assert_computes(graph, MERGES[merge](x, lift(gate)))
        source = to_source(graph)
        assert not any(word in source for word in ("expand", "repeat", "mean(", "pool", "nn.Conv", "nn.Linear"))
        assert "broadcast to " in str(summary(graph))


def test_merge_broadcasts_every_input_to_the_common_shape():
    """No input has the shape of the result."""
    graph = merge_graph(((8, 1, 1), "image"), ((1, 6, 5), "image"), ((8,), "vector"), aggregation="product")
    a, b, c = samples(graph)
    assert_computes(graph, a * b * c[:, :, None, None])


def test_broadcast_inputs_are_scaled_by_edge_weights():
    graph = merge_graph(SHAPES["image"], ((8,), "vector"), edge_weight=True)
    model = to_pytorch_model(graph)
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.fill_(place + 0.5)
    values = {name: parameter.item() for name, parameter in model.named_parameters()}
    x, gate = samples(graph)
    expected = x * values["weight_0_2"] + gate[:, :, None, None] * values["weight_1_2"] + values["bias_2"]
    torch.testing.assert_close(model(x, gate), expected, **TOLERANCE)


CONCATS = [
    ("channels", [((3, 6, 5), "image"), ((1, 6, 5), "image")], 1),
    ("channels", [((6, 3), "sequence"), ((6, 8), "sequence")], 2),
    ("channels", [((3, 6), "signal"), ((4, 6), "signal")], 1),
    ("channels", [((3,), "vector"), ((4,), "vector")], 1),
    ("positions", [((3, 6, 5), "image"), ((3, 2, 5), "image")], 2),
    ("positions", [((12, 4), "sequence"), ((4, 4), "sequence"), ((1, 4), "sequence")], 1),
    ("positions", [((3, 6), "signal"), ((3, 2), "signal")], 2),
]


@pytest.mark.parametrize(("axis", "shapes", "dim"), CONCATS)
def test_concat_along_axis(axis, shapes, dim):
    graph = merge_graph(*shapes, aggregation="concat", axis=axis)
    assert_computes(graph, torch.cat(samples(graph), dim=dim))
    assert ("concat(axis=positions) -> identity" in str(summary(graph))) == (axis == "positions")


def pooled(x: Tensor, sizes: tuple[int, int]) -> Tensor:
    return F.adaptive_avg_pool2d(x, sizes)


def test_align_pool_averages_positions():
    image, small, vector = SHAPES["image"], ((8, 3, 2), "image"), ((8,), "vector")
    graph = merge_graph(image, small, align="pool")
    x, y = samples(graph)
    assert_computes(graph, pooled(x, (3, 2)) + y)
    graph = merge_graph(image, vector, align="pool", aggregation="product")
    x, y = samples(graph)
    assert_computes(graph, x.mean((2, 3)) * y)
    graph = merge_graph(((12, 4), "sequence"), ((4, 3), "sequence"), align="pool", aggregation="concat")
    x, y = samples(graph)
    assert_computes(graph, torch.cat([x.unflatten(1, (4, 3)).mean(2), y], dim=2))


@pytest.mark.parametrize(
    ("layout", "axis", "sizes", "positions"),
    [
        ("image", 1, [(3, 2, 3), (3, 8, 6), (3, 4, 6)], (4, 6)),
        ("signal", 1, [(3, 2), (3, 8), (3, 4)], (4,)),
        ("sequence", 2, [(2, 3), (8, 3), (4, 3)], (4,)),
    ],
)
def test_positions_of_a_node_are_those_of_its_inputs(layout, axis, sizes, positions):
    """Fewer positions are repeated, more are averaged; source, ONNX and costs are those of the model."""
    graph = merge_graph(*((each, layout) for each in sizes), align="pad", positions=list(positions))
    values = [each.movedim(axis, 1) for each in samples(graph)]
    pool = F.adaptive_avg_pool2d if layout == "image" else F.adaptive_avg_pool1d
    expected = F.interpolate(values[0], size=positions) + pool(values[1], positions) + values[2]
    assert_computes(graph, expected.movedim(1, axis))
    assert ComputationGraph.from_dict(graph.to_dict()).canonical_key() == graph.canonical_key()
    other = merge_graph(*((each, layout) for each in sizes), align="pad")
    assert other.canonical_key() != graph.canonical_key()
    assert "nearest positions" in str(summary(graph))
    assert "average pooling" in str(summary(graph))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"align": "pad", "positions": [4]}, r"expected inputs with positions of 1 axes, got image \[8, 6, 5\]"),
        ({"align": "pad", "positions": [0, 4]}, "expected a list of 1 to . sizes >= 1 for positions, got"),
        ({"positions": [4, 4]}, 'expected inputs of one shape, .*"align": "pool" averages positions'),
    ],
)
def test_positions_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        to_pytorch_model(merge_graph(SHAPES["image"], **fields))


@pytest.mark.parametrize("align", ["project", "pad", "auto"])
def test_align_changes_channels(align):
    pairs = [(SHAPES["image"], ((1, 6, 5), "image")), (SHAPES["sequence"], ((6, 3), "sequence"))]
    pairs += [(SHAPES["image"], ((3, 3, 1), "image"))] if align != "project" else []
    for first, second in pairs:
        graph = merge_graph(first, second, align=align)
        torch.manual_seed(0)
        x, y = samples(graph)
        if first[1] == "image":
            x, y = pooled(x, (second[0][1], second[0][2])), y.movedim(1, -1)
        weights = list(to_pytorch_model(graph).parameters())
        assert [weight.numel() for weight in weights] == ([8 * y.shape[-1]] if align != "pad" else [])
        torch.manual_seed(0)
        weights = list(to_pytorch_model(graph).parameters())
        y = F.pad(y, (0, 8 - y.shape[-1])) if align == "pad" else y @ weights[0].flatten(1).T
        torch.manual_seed(0)
        assert_computes(graph, x + (y.movedim(-1, 1) if first[1] == "image" else y))


def test_align_of_concat_along_positions():
    shapes = ((6, 4), "sequence"), ((2, 3), "sequence")
    graph = merge_graph(*shapes, aggregation="concat", axis="positions", align="pad")
    x, y = samples(graph)
    assert_computes(graph, torch.cat([x, F.pad(y, (0, 1))], dim=1))
    graph = merge_graph(*shapes, aggregation="concat", axis="positions", align="project")
    model = to_pytorch_model(graph)
    (weight,) = model.parameters()
    torch.testing.assert_close(model(x, y), torch.cat([x, y @ weight.T], dim=1), **TOLERANCE)
    assert graph_cost(graph).num_parameters == weight.numel() == 12


@pytest.mark.parametrize(
    ("axis", "first", "second", "dim"),
    [
        ("height", (3, 4, 5), (3, 2, 5), 2),
        ("width", (3, 4, 5), (3, 4, 2), 3),
        ("depth", (3, 4, 5, 2), (3, 1, 5, 2), 2),
        ("height", (3, 4, 5, 2), (3, 4, 1, 2), 3),
        ("width", (3, 4, 5, 2), (3, 4, 5, 6), 4),
        ("channels", (3, 4, 5, 2), (1, 4, 5, 2), 1),
    ],
)
def test_concat_and_slice_along_an_axis(axis, first, second, dim):
    layout = "image" if len(first) == 3 else "volume"
    graph = merge_graph((first, layout), (second, layout), aggregation="concat", axis=axis)
    x, y = samples(graph)
    assert_computes(graph, torch.cat([x, y], dim=dim))
    nodes = [
        {"id": 0, "shape": list(first)},
        {"id": 1, "node_type": "output", "operation": {"name": "slice", "axis": axis, "start": 1}},
    ]
    assert_computes(graph_of(nodes, [(0, 1)]), x.narrow(dim, 1, first[dim - 1] - 1))


def test_concat_along_width_aligns_the_other_axes():
    graph = merge_graph(((3, 4, 5), "image"), ((2, 2, 6), "image"), aggregation="concat", axis="width", align="pad")
    x, y = samples(graph)
    assert_computes(graph, torch.cat([F.avg_pool2d(x, (2, 1)), F.pad(y, (0, 0, 0, 0, 0, 1))], dim=3))


@pytest.mark.parametrize("layout", ["image", "volume"])
def test_maximum_after_a_learned_projection(layout):
    positions, conv = ((4, 5), F.conv2d) if layout == "image" else ((2, 4, 5), F.conv3d)
    graph = merge_graph(((8, *positions), layout), ((3, *positions), layout), aggregation="max", align="project")
    x, y = samples(graph)
    torch.manual_seed(0)
    (weight,) = to_pytorch_model(graph).parameters()
    torch.manual_seed(0)
    assert_computes(graph, torch.maximum(x, conv(y, weight)))
    assert graph_cost(graph) == OperationCost(24, 24 * math.prod(positions))


def test_identity_of_aligned_graphs():
    """An equal shape needs no alignment; a broadcast differs from an average; axis and align are written."""
    image, gate = SHAPES["image"], ((8, 1, 1), "image")
    assert merge_graph(image, image) == merge_graph(image, image, align="auto")
    assert merge_graph(image, image).canonical_key() == merge_graph(image, image, align="auto").canonical_key()
    graphs = [merge_graph(image, gate, **fields) for fields in ({}, {"align": "auto"}, {"align": "pool"})]
    graphs += [merge_graph(image, gate, aggregation="concat", **fields) for fields in ({}, {"axis": "positions"})]
    assert len({graph.canonical_key() for graph in graphs}) == len(graphs)
    explicit = merge_graph(image, gate, aggregation="concat", axis="channels")
    assert explicit == graphs[3]
    assert ComputationGraph.from_dict(json.loads(graphs[4].to_json())).to_dict() == graphs[4].to_dict()


def test_identity_of_merges_inside_of_a_subgraph():
    def outer(shape: list[int], **fields) -> ComputationGraph:
        gated: Data = {
            "nodes": [
                {"id": 0, "node_type": "input"},
                {"id": 1, "node_type": "input", "port": "gate"},
                hidden(2, "identity", kind="output", **fields),
            ],
            "edges": [{"source": 0, "target": 2}, {"source": 1, "target": 2}],
        }
        nodes = [{"id": 0, "shape": [8, 4, 4]}, {"id": 1, "shape": shape}]
        nodes.append({"id": 2, "node_type": "output", "subgraph": "gated"})
        return graph_of(nodes, [(0, 2), (1, 2, {"port": "gate"})], subgraphs={"gated": gated})

    assert outer([8, 4, 4]) == outer([8, 4, 4], align="auto")
    assert outer([8, 1, 1]) != outer([8, 1, 1], align="auto")


TOWER: Data = {
    "nodes": [
        {"id": 0, "node_type": "input"},
        {"id": 1, "node_type": "output", "operation": {"name": "linear", "features": 8}},
    ],
    "edges": [{"source": 0, "target": 1}],
}


def siamese(*, share: bool = True, **fields) -> ComputationGraph:
    """Two inputs through one tower of 16 x 8 + 8 weights; node 2 is dead."""
    nodes: list[Data] = [{"id": place, "shape": [16]} for place in (0, 1)]
    nodes += [{"id": place, "subgraph": "tower", "share": share, **fields} for place in (2, 3, 5)]
    nodes.append(hidden(4, "identity", kind="output", aggregation="product"))
    return graph_of(nodes, [(0, 3), (1, 5), (0, 2), (3, 4), (5, 4)], subgraphs={"tower": TOWER})


def test_siamese_network_has_one_set_of_weights():
    graph = siamese()
    assert sum(parameter.numel() for parameter in to_pytorch_model(siamese(share=False)).parameters()) == 272
    tower = nn.Linear(16, 8)
    x, y = (value.requires_grad_() for value in samples(graph))
    expected = tower(x) * tower(y)
    gradients = torch.autograd.grad(expected.square().sum(), [x, y, tower.weight, tower.bias])
    model = to_pytorch_model(graph)
    assert list(model.state_dict()) == ["tower_3.linear_1.weight", "tower_3.linear_1.bias"]
    model.load_state_dict({f"tower_3.linear_1.{name}": value for name, value in tower.state_dict().items()})
    output = model(x, y)
    torch.testing.assert_close(output, expected, **TOLERANCE)
    own = torch.autograd.grad(output.square().sum(), [x, y, *model.parameters()])
    for one, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    namespace: dict = {"__name__": "network"}
    assert to_source(graph).count("self.tower_3 = ") == 1
    exec(to_source(graph), namespace)
    other = namespace["Model"]()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x, y), expected, **TOLERANCE)
    assert sum(parameter.numel() for parameter in other.parameters()) == 136


def sharing(*names, features=(4, 4), name="linear"):
    """Return two linear layers of one input [4] with `share`, and their difference."""
    nodes: list[Data] = [{"id": 0, "shape": [4]}]
    for place, (share, size) in enumerate(zip(names, features, strict=True), start=1):
        nodes.append(hidden(place, name, features=size) | ({"share": share} if share else {}))
    nodes += [hidden(3, "torch:mul", other=2.0), hidden(4, "identity", kind="output")]
    return graph_of(nodes, [(0, 1), (0, 3), (3, 2), (1, 4), (2, 4)])


def test_nodes_that_share_an_operation_have_one_module():
    graph, x = sharing("w", "w"), torch.randn(3, 4)
    model = to_pytorch_model(graph)
    assert list(model.state_dict()) == ["linear_1.weight", "linear_1.bias"]
    layer = model.linear_1
    torch.testing.assert_close(model(x), layer(x) + layer(2 * x))
    namespace: Data = {}
    exec(to_source(graph), namespace)
    other = namespace["Model"]()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x))
    assert graph_cost(graph) == OperationCost(20, 32)
    assert summary(graph).num_parameters == sum(each.numel() for each in model.parameters()) == 20
    assert "shared as w" in str(summary(graph))


def test_names_of_what_is_shared_do_not_matter():
    assert sharing("w", "w") == sharing("v", "v")
    assert sharing("w", "v") == sharing(None, None) != sharing("w", "w")


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (sharing("w", "w", features=(4, 3)), "node 2: expected the operation of node 1, which shares 'w', got"),
        (sharing(True, True), "expected a name, a text for share, got True"),
    ],
)
def test_unequal_operations_cannot_share(graph, message):
    with pytest.raises(ValueError, match=message):
        to_pytorch_model(graph)


def test_costs_of_shared_subgraph():
    """Weights count at the first live node, multiply-adds at every one."""
    result = summary(siamese())
    assert isinstance(result, GraphSummary)
    assert (result.num_parameters, result.multiply_adds) == (136, 256)
    assert [node.num_parameters for node in result.nodes if node.is_live] == [136, 0, 0]
    assert graph_cost(siamese()) == OperationCost(136, 256)


def test_identity_of_shared_subgraphs():
    """Which nodes share counts; the sharing of one node that applies its subgraph once does not."""
    assert siamese() != siamese(share=False)
    nodes: list[Data] = [{"id": 0, "shape": [16]}]
    nodes += [{"id": place, "subgraph": name, "share": True} for place, name in enumerate("aabb", start=1)]
    nodes.append(hidden(9, "identity", kind="output", aggregation="concat"))
    edges = [(0, place) for place in range(1, 5)] + [(place, 9) for place in range(1, 5)]
    graphs = []
    for names in ("aabb", "abab", "bbaa", "abba"):
        for node, name in zip(nodes[1:5], names, strict=True):
            node["subgraph"] = name
        graphs.append(graph_of(nodes, edges, subgraphs={"a": TOWER, "b": TOWER}))
    assert graphs[0] == graphs[2]
    assert len({graph.canonical_key() for graph in graphs}) == 3
    one = [
        graph_of(
            [nodes[0], {"id": 1, "node_type": "output", "subgraph": "a", "share": share}],
            [(0, 1)],
            subgraphs={"a": TOWER},
        )
        for share in (True, False)
    ]
    assert one[0] == one[1]


@pytest.mark.slow
def test_random_graphs_share_and_broadcast():
    """The generator reaches every case that the oracle and the costs are compared on."""
    graphs = [random_graph(seed) for seed in range(40)]
    texts = [str(summary(graph)) for graph in graphs]
    for words in ("broadcast to", " shared", "learned projection", "zeros for channels", "average pooling"):
        assert any(words in text for text in texts)
    nodes = [list(graph.nodes.values()) for graph in graphs]
    sharing = [[node.attributes["subgraph"] for node in each if node.attributes.get("share")] for each in nodes]
    assert any(len(names) > len(set(names)) for names in sharing)
    assert any(node.attributes.get("axis") == "positions" for each in nodes for node in each)
    for graph in graphs:
        num_parameters = sum(parameter.numel() for parameter in to_pytorch_model(graph).parameters())
        assert num_parameters == graph_cost(graph).num_parameters
