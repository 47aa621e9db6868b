"""Operation graphs that several tests use: node-link data, and seeded random graphs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.merges import MERGES
from gflownet.graphs.operation import read_operation
from gflownet.graphs.typed import NodeShapeError, infer_shapes
from gflownet.operations.tensor_shape import AXES, Layout, Shape

Data = dict[str, Any]
ACTIVATIONS = ("linear", "relu", "relu6", "tanh", "gelu", "gelu_tanh", "softmax")
SIZES = {Layout.VECTOR: (5,), Layout.SEQUENCE: (6, 4), Layout.SIGNAL: (3, 9), Layout.IMAGE: (3, 6, 5)}
SIZES |= {Layout.VOLUME: (2, 4, 3, 5)}
POINTWISE = ({"name": "identity"}, {"name": "batch_norm"})
OPERATIONS: Mapping[Layout, tuple[Data, ...]] = {
    Layout.VECTOR: (*POINTWISE, {"name": "linear", "features": 6}, {"name": "linear", "features": 3, "bias": False}),
    Layout.SEQUENCE: (*POINTWISE, {"name": "linear", "features": 6}, {"name": "layer_norm"}, {"name": "global_pool"}),
    Layout.SIGNAL: (
        *POINTWISE,
        {"name": "conv1d", "features": 4, "kernel_size": 3},
        {"name": "conv1d", "features": 2, "stride": 2},
        {"name": "max_pool1d"},
        {"name": "conv_bn_relu", "features": 4},
        {"name": "global_pool"},
    ),
    Layout.IMAGE: (
        *POINTWISE,
        {"name": "conv2d", "features": 4, "kernel_size": 3},
        {"name": "conv2d", "features": 2, "stride": 2, "bias": False},
        {"name": "max_pool2d"},
        {"name": "conv_bn_relu", "features": 4},
        {"name": "global_pool"},
    ),
    Layout.VOLUME: (
        *POINTWISE,
        {"name": "torch.nn:Conv3d", "out_channels": 4, "kernel_size": 3, "padding": "same"},
        {"name": "torch.nn:Conv3d", "out_channels": 2, "kernel_size": [1, 2, 1], "stride": [1, 1, 2]},
        {"name": "torch.nn:MaxPool3d", "kernel_size": [2, 1, 2]},
        {"name": "squeeze_excitation"},
        {"name": "global_pool"},
    ),
}


def graph_of(nodes: Iterable[Data], edges: Iterable[tuple[Any, ...]], **fields: Any) -> ComputationGraph:
    """Return the graph of nodes and of edges (source, target, further fields)."""
    links = [{"source": source, "target": target, **dict(*more)} for source, target, *more in edges]
    return ComputationGraph.from_dict({"nodes": list(nodes), "edges": links, **fields})


def image_input(*sizes: int, node_id: int = 0) -> Data:
    """Return an INPUT node with a shape."""
    return {"id": node_id, "node_type": "input", "shape": list(sizes)}


def hidden(node_id: int, operation: str, *, kind: str = "hidden", **fields: Any) -> Data:
    """Return a node with an operation; fields of a node stay there, the others are settings."""
    own = {"aggregation", "axis", "activation_function", "align", "positions", "edge_weight", "bias", "attributes"}
    settings = {key: value for key, value in fields.items() if key not in own}
    node = {key: value for key, value in fields.items() if key in own}
    return {"id": node_id, "node_type": kind, "operation": {"name": operation, **settings}, **node}


def block(layout: Layout, features: int) -> Data:
    """Return a residual subgraph that ends with a number of channels."""
    name = {Layout.SIGNAL: "conv1d", Layout.IMAGE: "conv2d", Layout.VOLUME: "torch.nn:Conv3d"}.get(layout, "linear")
    first, second = tuple[dict[str, Any], ...](
        {"out_channels": each, "kernel_size": 1} if layout is Layout.VOLUME else {"features": each}
        for each in (3, features)
    )
    nodes = [
        {"id": 0, "node_type": "input"},
        hidden(1, name, **first, activation_function="relu"),
        hidden(2, name, **second, kind="output", align="auto"),
        hidden(3, "identity"),
    ]
    edges = [(0, 1), (1, 2), (0, 2), (1, 3)]  # node 3 is dead
    return {"nodes": nodes, "edges": [{"source": source, "target": target} for source, target in edges]}


def random_graph(seed: int) -> ComputationGraph:
    """Return a valid graph with one to two inputs of one layout (or one of them a vector) and up to 8 nodes."""
    rng = random.Random(seed)
    layout = rng.choice(list(SIZES))
    layouts = [layout] + [rng.choice([layout, Layout.VECTOR])] * rng.randint(0, 1)
    nodes: list[Data] = []
    for node_id, each in enumerate(layouts):
        sizes = [size + rng.randint(0, 3) for size in SIZES[each]]
        nodes.append({"id": node_id, "node_type": "input", "shape": sizes, "layout": each.value})
    edges: list[Data] = []
    subgraphs = {"block": block(layout, 4), "vectors": block(Layout.VECTOR, 4)}
    data: Data = {"multigraph": rng.random() < 0.3, "nodes": nodes, "edges": edges, "subgraphs": subgraphs}
    num_hidden, first = rng.randint(2, 6), len(layouts)
    for node_id in range(first, first + num_hidden):
        sources = rng.sample(range(node_id), min(rng.randint(1, 3), node_id))
        in_edges: list[Data] = [{"source": source, "target": node_id} for source in sources]
        edges += in_edges
        nodes.append(_random_node(rng, data, node_id))
        if nodes[-1].get("edge_weight", "output_size" in nodes[-1]):
            for edge in in_edges:
                edge["weight"] = rng.uniform(-1, 2)
    last = first + num_hidden
    heads = rng.sample(range(first, last), min(2, num_hidden))
    edges += [{"source": source, "target": last} for source in heads]
    head = hidden(last, "head", features=3, kind="output")
    nodes.append({**head, "aggregation": rng.choice(MERGES), "align": "auto"})
    graph = ComputationGraph.from_dict(data)
    assert not graph.validate(), graph.validate()
    return graph


def _random_node(rng: random.Random, data: Data, node_id: int) -> Data:
    """Return a node that fits its in-edges."""
    common = {
        "id": node_id,
        "node_type": "hidden",
        "activation_function": rng.choice(ACTIVATIONS),
        "aggregation": rng.choice(MERGES),
        "edge_weight": rng.random() < 0.3,
    }
    ways: list[Data] = [{}, {}, *({"align": each} for each in ("pool", "project", "pad"))]
    axes = ("positions", rng.choice(AXES[2:])) if common["aggregation"] == "concat" else ()
    ways += [{"axis": axis, **way} for axis in axes for way in ways]
    ways = [*rng.sample(ways, len(ways)), {"align": "auto"}]
    identity = {**common, "operation": {"name": "identity"}}
    common |= next(way for way in ways if _is_valid(data, {**identity, **way}))
    merged = _merged_shape(data, {**common, "operation": {"name": "identity"}})
    choices: list[Data] = [{**common, "operation": each} for each in OPERATIONS[merged.layout]]
    name = "vectors" if merged.layout is Layout.VECTOR else "block"
    choices += [{**common, "subgraph": name, "repeat": rng.randint(1, 3)}]
    choices += [{**common, "subgraph": name, "repeat": repeat, "share": True} for repeat in (1, 2)]
    if merged.layout in (Layout.VECTOR, Layout.SEQUENCE):
        kind = rng.choice(["sum", "mean", "max", "concat", "attention", "gated_sum"])
        ordinary = {**common, "output_size": 4, "bias": rng.random(), "attributes": {"aggregation": kind}}
        for key in ("aggregation", "axis", "edge_weight"):
            ordinary.pop(key, None)
        if rng.random() < 0.5 or not _is_valid(data, ordinary):
            ordinary["align"] = "pool"
        choices += [ordinary] * 2
    rng.shuffle(choices)
    return next(node for node in choices if _is_valid(data, node))


def _merged_shape(data: Data, node: Data) -> Shape:
    return infer_shapes(ComputationGraph.from_dict({**data, "nodes": [*data["nodes"], node]}))[node["id"]].output


def _is_valid(data: Data, node: Data) -> bool:
    try:
        _merged_shape(data, node)
    except NodeShapeError:
        return False
    if "operation" in node:
        read_operation(node["operation"])
    return True


def random_stateful_graph(seed: int) -> ComputationGraph:
    """Return a random graph with up to three recurrent edges, and on sequences maybe a layer that carries its state."""
    rng, data = random.Random(seed), random_graph(seed).to_dict()
    *_, output = data["nodes"]
    shapes = infer_shapes(ComputationGraph.from_dict(data))
    sequences = [node_id for node_id, each in shapes.items() if each.output.layout is Layout.SEQUENCE]
    if sequences and rng.random() < 0.7:
        carried = hidden(len(data["nodes"]), rng.choice(["lstm", "gru"]), features=3, carry=True)
        data = _with(data, carried, [(rng.choice(sequences), carried["id"]), (carried["id"], output["id"])])
    inner = [node["id"] for node in data["nodes"] if node["node_type"] != "input"]
    for _ in range(rng.randint(0, 3)):
        link = (rng.choice([node["id"] for node in data["nodes"]]), rng.choice(inner), True)
        data = _with(data, None, [link])
    return ComputationGraph.from_dict(data)


def _with(data: Data, node: Data | None, links: list[tuple[Any, ...]]) -> Data:
    """Return data with a node and edges (source, target, whether recurrent), or unchanged where that is invalid."""
    edges = [{"edge_id": place, **edge} for place, edge in enumerate(data["edges"])]
    for source, target, *late in links:
        attributes = {"attributes": {"is_recurrent": True}} if late else {}
        edges.append({"source": source, "target": target, "edge_id": len(edges), **attributes})
    more = {**data, "nodes": [*data["nodes"], *([node] if node else [])], "edges": edges}
    return data if ComputationGraph.from_dict(more).validate() else more
