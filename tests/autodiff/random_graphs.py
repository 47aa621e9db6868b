"""Seeded random small tensor graphs as JSON, of every node type, with values of their leaves."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tests.oracles import tensor_graphs as oracle

MAX_ENTRIES = 36
MAX_RANK = 4
_ANYWHERE = ("sin", "cos", "tanh", "sigmoid", "silu", "gelu", "softplus", "erf", "neg", "sin(tanh(x))", "softplus(sin)")
_OFF_ZERO = ("relu", "abs", "tanh(abs(x))")
_BOUNDED = ("exp", "square", "cube", "power(3)", "exp(sin(x))", "silu(cos(x))")
_POSITIVE = ("log", "sqrt", "reciprocal", "power(1.5)", "power(-2)", "log(sqrt(x))")


@dataclass
class RandomGraph:
    """A graph, values of its leaves, and values of its nodes from the oracle."""

    graph: dict[str, Any]
    leaves: dict[int, np.ndarray]
    values: dict[int, np.ndarray]

    @property
    def output(self) -> int:
        return self.graph["outputs"][0]


class _Builder:
    def __init__(self, rng: np.random.Generator, indexing: str) -> None:
        self.rng, self.indexing = rng, indexing
        self.nodes: list[dict[str, Any]] = []
        self.leaves: dict[int, np.ndarray] = {}
        self.values: dict[int, np.ndarray] = {}

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def add(self, **fields: Any) -> None:
        node = {"id": 3 * len(self.nodes) + 1, **fields}
        graph = {"indexing": self.indexing, "nodes": [*self.nodes, node]}
        fixed = {id: value[None] for id, value in self.values.items()}
        self.values[node["id"]] = oracle.all_values(graph, self.leaves, fixed)[node["id"]][0].real
        self.nodes.append(node)

    def add_leaf(self) -> None:
        shape = [int(n) for n in self.rng.integers(1, 4, size=self.rng.integers(0, 4))]
        kind = ["input", "parameter", "constant"][self.rng.integers(3)]
        self.leaves[3 * len(self.nodes) + 1] = self.rng.uniform(-1.5, 1.5, shape)
        self.add(type="leaf", kind=kind, shape=shape)

    def operand(self) -> int:
        """One of all nodes, more often one that nothing uses yet, so that most are part of the output."""
        ids = [node["id"] for node in self.nodes]
        used = {node.get(field) for node in self.nodes for field in ("src", "srcL", "srcR")}
        unused = [id for id in ids if id not in used]
        return int(self.rng.choice(unused if unused and self.chance(0.7) else ids))

    def shuffled(self, items: list) -> list:
        return [items[k] for k in self.rng.permutation(len(items))]

    def numbered(self, remaining: list, summed: list, new: list) -> dict:
        """Numbers for the indices: of both signs in the signed notation, where 2 and -2 are two indices."""
        if self.indexing == "positive":
            every = [*remaining, *summed, *new]
            return dict(zip(every, (int(n) for n in self.rng.permutation(12)[: len(every)] + 1), strict=True))
        result = {}
        for group, sign in ((remaining, 1), (summed, -1), (new, -1)):
            numbers = self.rng.permutation(9)[: len(group)] + 1
            result |= dict(zip(group, (sign * int(n) for n in numbers), strict=True))
        return result

    def add_transform(self, keep: float = 0.65) -> None:
        source = self.operand()
        axes = [("axis", k) for k in range(self.values[source].ndim)]
        remaining = [axis for axis in axes if self.chance(keep)]
        new = [("new", k) for k in range(self.rng.integers(0, 3))] if keep else []
        extents = {axis: self.values[source].shape[axis[1]] for axis in axes}
        extents |= {axis: int(self.rng.integers(1, 4)) for axis in new}
        while len(remaining) + len(new) > MAX_RANK or prod(extents[i] for i in [*remaining, *new]) > MAX_ENTRIES:
            (new or remaining).pop()
        dst = self.shuffled([*remaining, *new])
        names = self.numbered(remaining, [axis for axis in axes if axis not in remaining], new)
        alpha = float(self.rng.choice([1.0, -1.0, 0.5, 2.0, -0.3])) if np.abs(self.values[source]).max() < 4 else 0.2
        new_dims = [extents[i] for i in dst if i in new]
        arrays = {"indexDst": [names[i] for i in dst], "indexSrc": [names[i] for i in axes]}
        self.add(type="transform", src=source, alpha=alpha, newDims=new_dims, **arrays)

    def add_pair(self, type: str) -> None:
        left = self.operand()
        right = left if self.chance(0.1) else self.operand()
        own_indices, other = (
            [(side, k) for k in range(self.values[id].ndim)] for side, id in (("l", left), ("r", right))
        )
        extents = dict(zip([*own_indices, *other], [*self.values[left].shape, *self.values[right].shape], strict=True))
        free = self.shuffled(own_indices)
        for k, index in enumerate(other):
            same = next((i for i in free if extents[i] == extents[index]), None)
            if same is not None and self.chance(0.6):
                free.remove(same)
                other[k] = same
        every = list(dict.fromkeys([*own_indices, *other]))
        remaining = [index for index in every if self.chance(0.6)]
        while len(remaining) > MAX_RANK or prod(extents[i] for i in remaining) > MAX_ENTRIES:
            remaining.pop()
        names = self.numbered(remaining, [i for i in every if i not in remaining], [])
        dst = [names[i] for i in self.shuffled(remaining)]
        arrays = {"indexDst": dst, "indexSrcL": [names[i] for i in own_indices], "indexSrcR": [names[i] for i in other]}
        operation = {"op": str(self.rng.choice(["+", "-", "*"]))} if type == "elementwise" else {}
        self.add(type=type, srcL=left, srcR=right, **arrays, **operation)

    def add_nonlinear(self) -> None:
        source = self.operand()
        entries = self.values[source]
        names: list[str] = [*_ANYWHERE]
        if np.abs(entries).min() > 0.05:
            names += _OFF_ZERO
        if np.abs(entries).max() < 3:
            names += _BOUNDED
        if entries.min() > 0.3:
            names += 3 * _POSITIVE
        if np.abs(entries).max() > 8:
            names = ["tanh", "sin", "sigmoid"]
        self.add(type="nonlinear", src=source, function=str(self.rng.choice(names)))

    def add_any(self) -> None:
        kind = self.rng.choice(["transform", "elementwise", "linear", "nonlinear"], p=[0.25, 0.3, 0.2, 0.25])
        if kind == "transform":
            self.add_transform()
        elif kind == "nonlinear" or np.abs(self.values[self.nodes[-1]["id"]]).max() > 8:
            self.add_nonlinear()
        else:
            self.add_pair(str(kind))


def random_graph(seed: int, indexing: str = "signed") -> RandomGraph:
    """Return a graph of 1 to 4 leaves and 1 to 8 other nodes; the last node is the output, in a quarter a scalar.

    Args:
        seed: of everything that is random.
        indexing: the notation, signed or positive.
    """
    rng = np.random.default_rng(seed)
    builder = _Builder(rng, indexing)
    for _ in range(rng.integers(1, 5)):
        builder.add_leaf()
    for _ in range(rng.integers(1, 9)):
        builder.add_any()
    if builder.chance(0.25):
        builder.add_transform(keep=0.0)
    graph = {"indexing": indexing, "nodes": builder.nodes, "outputs": [builder.nodes[-1]["id"]]}
    return RandomGraph(graph, builder.leaves, builder.values)
