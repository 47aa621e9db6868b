"""Slow, obvious evaluation of operation graphs: walk the graph, align and merge by hand, apply one module per node.

Letters: B batch, C channels or features. Weights are read from a state dict by the names in docs/translation.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import networkx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.graphs.composite import Composite
from gflownet.graphs.computation_graph import ComputationGraph, Edge, Node
from gflownet.graphs.operation import read_operation
from gflownet.operations.tensor_shape import Layout, Shape

Value = tuple[Tensor, Layout]
State = Mapping[str, Tensor]
CHANNEL_AXIS = {Layout.VECTOR: 1, Layout.SEQUENCE: 2, Layout.SIGNAL: 1, Layout.IMAGE: 1, Layout.VOLUME: 1}


def evaluate(graph: ComputationGraph, state: State, inputs: Mapping[int, Tensor], *, training: bool) -> list[Tensor]:
    """Return the value of every OUTPUT node, by ascending id, for a tensor [B, ...] per INPUT node."""
    values: dict[int, Value] = {}
    for node_id, tensor in inputs.items():
        layout = graph.nodes[node_id].attributes.get("layout")
        values[node_id] = (tensor, Layout(layout) if layout else Shape.of(tuple(tensor.shape[1:])).layout)
    return [value for value, _ in _outputs(graph, state, values, training)]


def evaluate_steps(
    graph: ComputationGraph, state: State, moments: Sequence[Mapping[int, Tensor]], sizes: Mapping[int, Shape]
) -> list[list[Tensor]]:
    """Return the values of the OUTPUT nodes at every time step, in eval mode.

    A recurrent edge reads its source's value of the step before, zeros of `sizes` at first.
    """
    batch, outputs = next(iter(moments[0].values())), []
    values: dict[int, Value] = {n: (batch.new_zeros(len(batch), *s.sizes), s.layout) for n, s in sizes.items()}
    for inputs in moments:
        values = {_before(node_id): value for node_id, value in values.items() if node_id >= 0}
        values |= {node_id: (tensor, sizes[node_id].layout) for node_id, tensor in inputs.items()}
        outputs.append([value for value, _ in _outputs(graph, state, values, False)])
    return outputs


def _before(node_id: int) -> int:
    """The key of a node's value of the step before; ids are >= 0 here."""
    return -1 - node_id


def _source(values: Mapping[int, Value], edge: Edge) -> Value:
    return values[_before(edge.source) if edge.is_recurrent else edge.source]


def _outputs(graph: ComputationGraph, state: State, values: dict[int, Value], training: bool) -> list[Value]:
    digraph = networkx.MultiDiGraph()
    digraph.add_nodes_from(graph.nodes)
    edges = [edge for edge in graph.edges.values() if edge.enabled]
    digraph.add_edges_from((edge.source, edge.target) for edge in edges)
    needed = set(graph.output_node_ids)
    for node_id in graph.output_node_ids:
        needed |= networkx.ancestors(digraph, node_id)
    digraph.remove_edges_from([(edge.source, edge.target) for edge in edges if edge.is_recurrent])
    digraph.add_edges_from((edge.source, edge.target) for edge in edges if not edge.is_recurrent)
    for node_id in networkx.topological_sort(digraph):
        if node_id in needed and node_id not in values:
            values[node_id] = _node_value(graph, graph.nodes[node_id], state, values, training)
    return [values[node_id] for node_id in graph.output_node_ids]


def _node_value(graph: ComputationGraph, node: Node, state: State, values: dict[int, Value], training: bool) -> Value:
    edges = [edge for edge in graph.in_edges(node.node_id) if edge.enabled]
    if "operation" not in node.attributes and "subgraph" not in node.attributes:
        return _ordinary(graph, node, edges, state, values)
    ports: dict[str, Value] = {}
    for port in dict.fromkeys(edge.attributes.get("port", "input") for edge in edges):
        group = [edge for edge in edges if edge.attributes.get("port", "input") == port]
        ports[port] = _merged(graph, node, group, state, [_source(values, edge) for edge in group])
    if "subgraph" in node.attributes:
        tensor, layout = _repeated(graph, node, state, ports, training)
    else:
        tensor, layout = _operated(node, state, ports, training)
    if node.attributes.get("edge_weight"):
        tensor = tensor + state[f"bias_{node.node_id}"]
    return activate(node.activation_function, tensor, CHANNEL_AXIS[layout]), layout


def _merged(graph: ComputationGraph, node: Node, edges: list[Edge], state: State, values: list[Value]) -> Value:
    merge, align = node.attributes.get("aggregation", "sum"), node.attributes.get("align")
    if merge == "concat" and len(edges) > 1:
        return _concatenated(graph, node, edges, state, values)
    layouts = [layout for _, layout in values]
    if align is None:
        layout = next((each for each in layouts if each is not Layout.VECTOR), Layout.VECTOR)
        dims = max(tensor.dim() for tensor, _ in values)
        tensors = [_lifted(tensor, own_layout, layout, dims) for tensor, own_layout in values]
    else:
        layout = Layout.VECTOR if Layout.VECTOR in layouts else layouts[0]
        positions = [_positions(tensor, own_layout) for tensor, own_layout in values]
        smallest = tuple(map(min, *positions)) if len(positions) > 1 else positions[0]
        tensors = [_pooled(tensor, own_layout, layout, smallest) for tensor, own_layout in values]
        tensors = _with_equal_channels(graph, node, edges, state, tensors, CHANNEL_AXIS[layout])
    tensors = _weighted(graph, node, edges, state, tensors)
    stack = torch.stack(torch.broadcast_tensors(*tensors))
    functions = {"sum": stack.sum, "mean": stack.mean, "max": stack.amax, "min": stack.amin, "product": stack.prod}
    return (functions[merge](0) if len(edges) > 1 else tensors[0]), layout


def _concatenated(graph: ComputationGraph, node: Node, edges: list[Edge], state: State, values: list[Value]) -> Value:
    layouts = [layout for _, layout in values]
    layout = Layout.VECTOR if Layout.VECTOR in layouts else layouts[0]
    axis, positions = CHANNEL_AXIS[layout], [_positions(tensor, own_layout) for tensor, own_layout in values]
    smallest = tuple(map(min, *positions))
    name = node.attributes.get("axis", "channels")
    if name == "channels":
        tensors = [_pooled(tensor, own_layout, layout, smallest) for tensor, own_layout in values]
    else:
        place = 0 if name == "positions" else len(smallest) + {"depth": -3, "height": -2, "width": -1}[name]
        counts = [(*smallest[:place], own[place], *smallest[place + 1 :]) for own in positions]
        tensors = [
            _pooled(tensor, own_layout, layout, own) for (tensor, own_layout), own in zip(values, counts, strict=True)
        ]
        tensors = _with_equal_channels(graph, node, edges, state, tensors, axis)
        axis = 1 if layout is Layout.SEQUENCE else 2 + place
    return torch.cat(_weighted(graph, node, edges, state, tensors), dim=axis), layout


def _positions(tensor: Tensor, layout: Layout) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(tensor.shape) if i not in (0, CHANNEL_AXIS[layout]))


def _lifted(tensor: Tensor, own_layout: Layout, layout: Layout, dims: int) -> Tensor:
    """Return a vector [B, C] with axes of size 1 in place of the positions of another layout."""
    if own_layout is layout:
        return tensor
    sizes = [len(tensor), *[1] * (dims - 1)]
    sizes[CHANNEL_AXIS[layout]] = tensor.shape[1]
    return tensor.reshape(sizes)


def _edge_name(graph: ComputationGraph, edge: Edge) -> str:
    return str(edge.edge_id) if graph.config["multigraph"] else f"{edge.source}_{edge.target}"


def _with_equal_channels(
    graph: ComputationGraph, node: Node, edges: list[Edge], state: State, tensors: list[Tensor], axis: int
) -> list[Tensor]:
    """Project the channels to the largest number, or append zeros."""
    channels = max(tensor.shape[axis] for tensor in tensors)
    results = []
    for edge, tensor in zip(edges, tensors, strict=True):
        if tensor.shape[axis] != channels and node.attributes["align"] in ("auto", "project"):
            weight = state[f"adapt_{_edge_name(graph, edge)}.weight"]
            tensor = (tensor.movedim(axis, -1) @ weight.flatten(1).T).movedim(-1, axis)
        elif tensor.shape[axis] != channels:
            assert node.attributes["align"] == "pad"
            sizes = list(tensor.shape)
            sizes[axis] = channels - sizes[axis]
            tensor = torch.cat([tensor, torch.zeros(sizes, dtype=tensor.dtype)], dim=axis)
        results.append(tensor)
    return results


def _weighted(
    graph: ComputationGraph, node: Node, edges: list[Edge], state: State, tensors: list[Tensor]
) -> list[Tensor]:
    if not node.attributes.get("edge_weight"):
        return tensors
    weights = [state[f"weight_{_edge_name(graph, edge)}"] for edge in edges]
    return [tensor * weight for tensor, weight in zip(tensors, weights, strict=True)]


def _pooled(tensor: Tensor, own_layout: Layout, layout: Layout, positions: tuple[int, ...]) -> Tensor:
    """Average the positions: all of them, or in windows from floor(i L / n) to ceil((i + 1) L / n)."""
    axes = [axis for axis in range(1, tensor.dim()) if axis != CHANNEL_AXIS[own_layout]]
    if layout is Layout.VECTOR:
        return tensor.mean(dim=axes) if axes else tensor
    for axis, count in zip(axes, positions, strict=True):
        length = tensor.shape[axis]
        windows = [(index * length // count, math.ceil((index + 1) * length / count)) for index in range(count)]
        tensor = torch.stack([tensor.narrow(axis, a, b - a).mean(dim=axis) for a, b in windows], dim=axis)
    return tensor


def _operated(node: Node, state: State, ports: dict[str, Value], training: bool) -> Value:
    applied = read_operation(node.attributes["operation"])
    prefix = f"{applied.name.rpartition(':')[2]}_{node.node_id}."
    shapes = {port: Shape(tuple(tensor.shape[1:]), layout) for port, (tensor, layout) in ports.items()}
    output = applied.row.infer_shape(shapes, applied.settings)
    if issubclass(applied.row, Composite):
        inner = ComputationGraph.from_dict(applied.row.graph(shapes, applied.settings))
        (value,) = _inner_values(inner, _under(state, prefix), ports, training)
    else:
        module = applied.row.build(shapes, applied.settings)
        if module is not None:
            _set_state(module.train(training), _under(state, prefix))
        names: dict[str, Any] = {port: tensor for port, (tensor, _) in ports.items()}
        code = applied.row.call(shapes, applied.settings).format(module="module", **{port: port for port in ports})
        value = eval(code, {"torch": torch, "F": F, "nn": nn, "module": module, **names}), output.layout
    assert tuple(value[0].shape[1:]) == output.sizes
    return value


def _set_state(module: nn.Module, state: State) -> None:
    """Replace the parameters and buffers by tensors, so that gradients flow into them."""
    names = {*module.state_dict()}
    assert names == state.keys()
    for name, tensor in state.items():
        owner, _, leaf = name.rpartition(".")
        holder = module.get_submodule(owner)
        holder._parameters.pop(leaf, None)
        holder._buffers.pop(leaf, None)
        # Train mode updates running statistics in place.
        setattr(holder, leaf, tensor if tensor.requires_grad else tensor.clone())


def _repeated(graph: ComputationGraph, node: Node, state: State, ports: dict[str, Value], training: bool) -> Value:
    name, repeat = node.attributes["subgraph"], node.attributes.get("repeat", 1)
    value, owner, shares = ports["input"], node.node_id, node.attributes.get("share", False)
    if shares:
        sharing = [
            node_id
            for node_id, each in graph.nodes.items()
            if each.attributes.get("subgraph") == name and each.attributes.get("share", False)
        ]
        (owner,) = (node_id for node_id in sharing if any(key.startswith(f"{name}_{node_id}.") for key in state))
    for repetition in range(repeat):
        prefix = f"{name}_{owner}." if repeat == 1 or shares else f"{name}_{owner}.{repetition}."
        inner = graph.subgraph(name)
        (value,) = _inner_values(inner, _under(state, prefix), {**ports, "input": value}, training)
    return value


def _inner_values(inner: ComputationGraph, state: State, ports: Mapping[str, Value], training: bool) -> list[Value]:
    values = {node_id: ports[inner.nodes[node_id].attributes.get("port", "input")] for node_id in inner.input_node_ids}
    return _outputs(inner, state, values, training)


def _ordinary(graph: ComputationGraph, node: Node, edges: list[Edge], state: State, values: dict[int, Value]) -> Value:
    """act(post(aggregate of w P x) + b) over the features of vectors, or of every position of sequences."""
    sources = [_source(values, edge) for edge in edges]
    layout = Layout.VECTOR if any(own_layout is Layout.VECTOR for _, own_layout in sources) else sources[0][1]
    length = () if layout is Layout.VECTOR else (min(tensor.shape[1] for tensor, _ in sources),)
    messages, gates = [], []
    for edge, (tensor, own_layout) in zip(edges, sources, strict=True):
        name = str(edge.edge_id) if graph.config["multigraph"] else f"{edge.source}_{edge.target}"
        tensor = _pooled(tensor, own_layout, layout, length)
        if f"proj_{name}.weight" in state:
            tensor = tensor @ state[f"proj_{name}.weight"].T
        messages.append(tensor * state[f"weight_{name}"])
        gates.append(state.get(f"gate_{name}", torch.zeros(())))
    stack = torch.stack(messages, dim=-2)  # [B, ..., J, d]
    match node.aggregation:
        case "attention":
            query = state[f"q_{node.node_id}"]
            total = (torch.softmax(stack @ query / math.sqrt(len(query)), dim=-1).unsqueeze(-1) * stack).sum(-2)
        case "gated_sum":
            total = (torch.sigmoid(torch.stack(gates)).unsqueeze(-1) * stack).sum(-2)
        case "concat":
            total = torch.cat(messages, dim=-1)
        case "max":
            total = stack.amax(-2)
        case "mean":
            total = stack.mean(-2)
        case _:
            total = stack.sum(-2)
    if f"post_{node.node_id}.weight" in state:
        total = total @ state[f"post_{node.node_id}.weight"].T
    z = total + state[f"bias_{node.node_id}"]
    return activate(node.activation_function, z, z.dim() - 1), layout


def activate(name: str, z: Tensor, axis: int) -> Tensor:
    """Return the activation; softmax over `axis`."""
    match name:
        case "relu":
            return z * (z > 0)
        case "relu6":
            return torch.where(z < 0, 0 * z, torch.where(z > 6, 0 * z + 6, z))
        case "tanh":
            return (z.exp() - (-z).exp()) / (z.exp() + (-z).exp())
        case "gelu":
            return z * (1 + torch.erf(z / math.sqrt(2))) / 2
        case "gelu_tanh":
            return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        case "softmax":
            return z.exp() / z.exp().sum(dim=axis, keepdim=True)
        case _:
            assert name == "linear"
            return z


def _under(state: State, prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in state.items() if name.startswith(prefix)}
