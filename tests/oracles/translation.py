"""The outputs of a translated graph in numpy, from the formulas of docs/translation.md.

Reads node-link data and shares no code with the translator. All arithmetic also
works on complex arrays, so that a complex step (x + 1e-30j) gives exact directional derivatives.

Letters: B batch, T time steps, J enabled in-edges, d message width, H heads.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

Array = NDArray[Any]
Values = Mapping[str, Array]
ATTENTION = ("attention", "multi_head_attention", "attn_pool")


class GraphOracle:
    """A node-link graph and its outputs."""

    def __init__(self, data: Mapping[str, Any], *, projection: str = "auto") -> None:
        self.projection = projection
        self.multigraph = bool(data.get("multigraph", False))
        self.nodes: dict[int, dict[str, Any]] = {node["id"]: dict(node) for node in data["nodes"]}
        self.edges = sorted((dict(edge) for edge in data["edges"] if edge.get("enabled", True)), key=self._edge_order)
        self.inputs = sorted(i for i, node in self.nodes.items() if node["node_type"] == "input")
        self.outputs = sorted(i for i, node in self.nodes.items() if node["node_type"] == "output")
        self.order = self._topological_order()

    @staticmethod
    def _edge_order(edge: Mapping[str, Any]) -> tuple[float, int]:
        return edge.get("attributes", {}).get("order", edge["edge_id"]), edge["edge_id"]

    def attribute(self, node_id: int, name: str, default: Any) -> Any:
        return self.nodes[node_id].get("attributes", {}).get(name, default)

    def aggregation(self, node_id: int) -> str:
        """The aggregation's name, sum by default."""
        return self.attribute(node_id, "aggregation", "sum")

    def activation(self, node_id: int) -> str:
        """The activation's name, linear by default."""
        return self.nodes[node_id].get("activation_function", "linear")

    def size(self, node_id: int) -> int:
        """The node's output width."""
        return self.nodes[node_id]["output_size"]

    def in_edges(self, node_id: int) -> list[dict[str, Any]]:
        """Enabled in-edges in stable order."""
        return [edge for edge in self.edges if edge["target"] == node_id]

    def label(self, edge: Mapping[str, Any]) -> str:
        """The end of an edge's parameter names."""
        return str(edge["edge_id"]) if self.multigraph else f"{edge['source']}_{edge['target']}"

    def width(self, node_id: int) -> int:
        """d(t)."""
        size = self.size(node_id)
        return self.attribute(node_id, "head_dim", size) if self.aggregation(node_id) in ATTENTION else size

    def heads(self, node_id: int) -> int:
        """H."""
        kind = self.aggregation(node_id)
        if kind == "attn_pool":
            return self.attribute(node_id, "pool_heads", 1)
        return self.attribute(node_id, "num_heads", 1) if kind == "multi_head_attention" else 1

    def aggregated_size(self, node_id: int) -> int:
        """agg_size."""
        if self.aggregation(node_id) in ("concat", "matrix_product"):
            return len(self.in_edges(node_id)) * self.width(node_id)
        return self.heads(node_id) * self.width(node_id)

    def is_projected(self, edge: Mapping[str, Any]) -> bool:
        """Whether the edge has a linear layer."""
        return self.projection == "always" or self.size(edge["source"]) != self.width(edge["target"])

    def has_post(self, node_id: int) -> bool:
        """Whether a linear layer follows the aggregation; an unfed concatenation has nothing to project."""
        size = self.aggregated_size(node_id)
        forced = self.attribute(node_id, "post_projection", False)
        return size > 0 and (size != self.size(node_id) or forced)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter's name and shape."""
        shapes: dict[str, tuple[int, ...]] = {}
        for n in self.nodes:
            if n in self.inputs:
                continue
            shapes[f"bias_{n}"] = ()
            kind, d, size = self.aggregation(n), self.width(n), self.size(n)
            if kind == "attention":
                shapes[f"q_{n}"] = (d,)
            if kind in ("multi_head_attention", "attn_pool"):
                shapes[f"q_{n}"] = (self.heads(n), d)
            if self.has_post(n):
                shapes[f"post_{n}.weight"] = (size, self.aggregated_size(n))
            if self.activation(n) == "lstm":
                shapes[f"lstm_{n}.weight_ih"] = shapes[f"lstm_{n}.weight_hh"] = (4 * size, size)
            if self.activation(n) == "gru":
                shapes[f"gru_{n}.weight_ih"] = shapes[f"gru_{n}.weight_hh"] = (3 * size, size)
            if self.activation(n) == "rhn":
                shapes |= {f"rhn_{n}.{name}": shape for name, shape in rhn_shapes(size).items()}
            for edge in self.in_edges(n):
                label = self.label(edge)
                shapes[f"weight_{label}"] = ()
                if self.is_projected(edge):
                    shapes[f"proj_{label}.weight"] = (d, self.size(edge["source"]))
                if kind == "gated_sum":
                    shapes[f"gate_{label}"] = ()
                if kind == "moe":
                    shapes[f"router_{label}"] = ()
        return shapes

    def run(self, values: Values, xs: Array) -> Array:
        """Outputs [T, B, O] for inputs [T, B, F], from a state of zeros."""
        state: dict[Any, Array] = {}
        outputs = []
        for x in xs:
            y, state = self.step(values, x, state)
            outputs.append(y)
        return np.stack(outputs)

    def step(self, values: Values, x: Array, state: Mapping[Any, Array]) -> tuple[Array, dict[Any, Array]]:
        """The output [B, O] of one time step and the state after it."""
        new: dict[Any, Array] = {}
        start = 0
        for n in self.inputs:
            new[n] = x[:, start : start + self.size(n)]
            start += self.size(n)
        for n in self.order:
            if n not in self.inputs:
                self._compute(n, values, x.shape[0], state, new)
        return np.concatenate([new[n] for n in self.outputs], axis=1), new

    def _compute(self, n: int, values: Values, batch: int, state: Mapping[Any, Array], new: dict[Any, Array]) -> None:
        messages = []
        for edge in self.in_edges(n):
            s = edge["source"]
            if edge.get("attributes", {}).get("is_recurrent", False):
                source = state[s] if s in state else np.zeros((batch, self.size(s)))
            else:
                source = new[s]
            if self.is_projected(edge):
                source = source @ values[f"proj_{self.label(edge)}.weight"].T
            messages.append(values[f"weight_{self.label(edge)}"] * source)
        if messages:
            z = self._aggregate(n, np.stack(messages, axis=1), values)
            if self.has_post(n):
                z = z @ values[f"post_{n}.weight"].T
        else:
            z = np.zeros((batch, self.size(n)))
        z = z + values[f"bias_{n}"]
        size, name = self.size(n), self.activation(n)
        zeros = np.zeros((batch, size))
        if name == "lstm":
            hidden, cell = state.get(n, zeros), state.get(("cell", n), zeros)
            gates = z @ values[f"lstm_{n}.weight_ih"].T + hidden @ values[f"lstm_{n}.weight_hh"].T
            i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
            new["cell", n] = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            new[n] = sigmoid(o) * np.tanh(new["cell", n])
        elif name == "gru":
            hidden = state.get(n, zeros)
            a, b = z @ values[f"gru_{n}.weight_ih"].T, hidden @ values[f"gru_{n}.weight_hh"].T
            r = sigmoid(a[:, :size] + b[:, :size])
            u = sigmoid(a[:, size : 2 * size] + b[:, size : 2 * size])
            candidate = np.tanh(a[:, 2 * size :] + r * b[:, 2 * size :])
            new[n] = (1 - u) * candidate + u * hidden
        elif name == "rhn":
            weights = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"rhn_{n}.")}
            previous = state.get(n, [None] * batch)
            new[n] = np.stack([rhn_cell(weights, x, before) for x, before in zip(z, previous, strict=True)])
        else:
            new[n] = activate(name, z)

    def _aggregate(self, n: int, X: Array, values: Values) -> Array:  # noqa: N803
        """agg [B, agg_size] of the messages X [B, J, d]."""
        kind, d, count = self.aggregation(n), self.width(n), X.shape[1]
        if kind == "sum":
            return X.sum(1)
        if kind == "mean":
            return X.sum(1) / count
        if kind in ("max", "min"):
            best = np.real(X).argmax(1) if kind == "max" else np.real(X).argmin(1)
            return np.take_along_axis(X, best[:, None, :], axis=1)[:, 0]
        if kind in ("concat", "matrix_product"):
            return np.concatenate([X[:, j] for j in range(count)], axis=1)
        if kind in ATTENTION:
            temperature = self.attribute(n, "temperature", 1.0)
            queries = np.atleast_2d(values[f"q_{n}"])
            epsilon = self.attribute(n, "attn_eps", 0.0)
            parts = []
            for q in queries:
                p = softmax((X @ q) / (np.sqrt(d) * temperature), epsilon)
                parts.append((p[:, :, None] * X).sum(1))
            return np.concatenate(parts, axis=1)
        labels = [self.label(edge) for edge in self.in_edges(n)]
        if kind == "gated_sum":
            gates = sigmoid(np.stack([values[f"gate_{label}"] for label in labels]))
            if self.attribute(n, "normalize", False):
                gates = gates / gates.sum()
            return (gates[None, :, None] * X).sum(1)
        if kind == "moe":
            routers = np.stack([values[f"router_{label}"] for label in labels])
            scores = np.tile(routers / self.attribute(n, "router_temperature", 1.0), (X.shape[0], 1))
            is_topk = self.attribute(n, "router_type", "softmax") == "topk"
            top_k = (self.attribute(n, "top_k", None) or 1) if is_topk else None
        else:
            scores = X.mean(2) / self.attribute(n, "temperature", 1.0)
            top_k = self.attribute(n, "top_k", None)
        weights = np.stack([top_softmax(row, top_k, self.attribute(n, "normalize", True)) for row in scores])
        return (weights[:, :, None] * X).sum(1)

    def _topological_order(self) -> list[int]:
        order: list[int] = []
        while len(order) < len(self.nodes):
            ready = [
                n
                for n in self.nodes
                if n not in order
                and all(
                    edge["source"] in order
                    for edge in self.in_edges(n)
                    if not edge.get("attributes", {}).get("is_recurrent", False)
                )
            ]
            assert ready, "the oracle wants every cycle marked"
            order += ready
        return order


RHN_RANK, RHN_BOTTLENECK, RHN_EPSILON = 4, 16, 1e-6


def rhn_shapes(size: int) -> dict[str, tuple[int, ...]]:
    """The parameters of an rhn node; its feed-forward network is twice as wide as the node."""
    wide, width = 2 * size, RHN_BOTTLENECK + 1
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (size,), "bhn.norm.weight": (size,), "bhn.beta": (width,)}
    shapes |= {"bhn.squeeze.weight": (RHN_BOTTLENECK, size), "bhn.squeeze.bias": (RHN_BOTTLENECK,)}
    for name, inner, outer in (("gate", size, wide), ("up", size, wide), ("down", wide, size)):
        shapes[f"ffn.plain.{name}_proj.weight"] = (outer, inner)
        shapes[f"bhn.{name}.a"] = (width, RHN_RANK, inner)
        shapes[f"bhn.{name}.b"] = (width, outer, RHN_RANK)
        shapes[f"bhn.{name}.delta"] = (width, outer)
    return shapes


def rhn_cell(values: Values, x: Array, previous: Array | None) -> Array:
    """x + the feed-forward network of norm(x), every adapted matrix made; one row, plain where nothing was before."""

    def norm(vector: Array, name: str) -> Array:
        return values[name] * vector / np.sqrt((vector * vector).mean() + RHN_EPSILON)

    matrices = {name: values[f"ffn.plain.{name}_proj.weight"] for name in ("gate", "up", "down")}
    beta: Any = 0.0
    if previous is not None:
        squeezed = values["bhn.squeeze.weight"] @ norm(previous, "bhn.norm.weight") + values["bhn.squeeze.bias"]
        features = np.concatenate([np.ones(1), squeezed * sigmoid(squeezed)])
        beta = features @ values["bhn.beta"]
        for name, plain in matrices.items():
            a, b, delta = (np.tensordot(features, values[f"bhn.{name}.{part}"], 1) for part in ("a", "b", "delta"))
            rows = plain + b @ a
            size = np.sqrt((plain * plain).sum(1))
            matrices[name] = rows * (size * (1 + delta) / np.sqrt((rows * rows).sum(1)))[:, None]
    normed = norm(x, "norm.weight")
    gate = matrices["gate"] @ normed + beta
    return x + matrices["down"] @ (gate * sigmoid(gate) * (matrices["up"] @ normed))


def sigmoid(z: Array) -> Array:
    """1 / (1 + exp(-z)), in the form that does not overflow."""
    return (1 + np.tanh(z / 2)) / 2


def softmax(scores: Array, epsilon: float = 0.0) -> Array:
    """Softmax over axis 1, with epsilon added to the sum of exp(s - max s)."""
    best = np.take_along_axis(scores, np.real(scores).argmax(1)[:, None], axis=1)
    e = np.exp(scores - best)
    return e / (e.sum(1, keepdims=True) + epsilon)


def top_softmax(scores: Array, top_k: int | None, normalize: bool) -> Array:
    """Mixing weights [J] of one row: softmax over the top_k scores (ties to the earlier), zero elsewhere."""
    count = len(scores)
    k = count if top_k is None else max(1, min(top_k, count))
    top = sorted(range(count), key=lambda j: (-np.real(scores[j]), j))[:k]
    e = np.exp(scores - np.real(scores).max())
    weights = np.zeros_like(e)
    weights[top] = e[top] / (e[top].sum() if normalize else e.sum())
    return weights


def activate(name: str, z: Array) -> Array:
    """The stateless activations on [B, size]."""
    positive = np.real(z) > 0
    if name == "relu":
        return np.where(positive, z, 0)
    if name == "leaky_relu":
        return np.where(positive, z, 0.01 * z)
    if name == "elu":
        return np.where(positive, z, np.exp(np.where(positive, 0, z)) - 1)
    if name == "gelu":
        return z * (1 + erf(z / np.sqrt(2))) / 2
    if name == "gelu_tanh":
        return z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))) / 2
    if name == "relu6":
        return np.where(positive, np.where(np.real(z) < 6, z, 6), 0)
    if name in ("hard_sigmoid", "hard_swish"):
        gate = activate("relu6", z + 3) / 6
        return gate if name == "hard_sigmoid" else z * gate
    if name == "softmax":
        return softmax(z)
    if name in ("linear", "identity"):
        return z
    if name == "relu6":
        return np.clip(z, 0, 6)
    if name == "gelu_tanh":
        return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    return {"sigmoid": sigmoid, "tanh": np.tanh, "silu": lambda v: v * sigmoid(v)}[name](z)
