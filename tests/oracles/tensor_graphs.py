"""Values, Jacobians and Hessians of a tensor graph in its JSON form, from the definition: transpose, broadcast, sum.

Numpy only, and nothing of the package: an independent reading of the format. Jacobians are complex steps, exact to
rounding as every function is analytic piece by piece; Hessians are central differences of those, of fourth order. Many
points are computed at once, along a first axis that no index names.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Leaves = Mapping[int, Array]

_COMPLEX_STEP = 1e-30
_REAL_STEP = 2e-5


def _erf(z: Array) -> Array:
    real = np.vectorize(math.erf, otypes=[float])(np.real(z))
    # to first order in the imaginary part, which is a complex step
    return real + 1j * np.imag(z) * np.exp(-(np.real(z) ** 2)) * 2 / math.sqrt(math.pi)


class _Named:
    """A function that can be called on numbers and on other functions."""

    def __init__(self, function: Callable[[Array], Array]) -> None:
        self.function = function

    def __call__(self, inner: Any) -> Any:
        return _Named(lambda z: self.function(inner(z))) if isinstance(inner, _Named) else self.function(inner)


FUNCTIONS = {
    name: _Named(function)
    for name, function in {
        "exp": np.exp,
        "log": np.log,
        "sin": np.sin,
        "cos": np.cos,
        "tanh": np.tanh,
        "sqrt": np.sqrt,
        "neg": lambda z: -z,
        "reciprocal": lambda z: 1 / z,
        "square": lambda z: z * z,
        "cube": lambda z: z * z * z,
        "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
        "relu": lambda z: np.where(np.real(z) > 0, z, 0 * z),
        "gelu": lambda z: z * (1 + _erf(z / math.sqrt(2))) / 2,
        "softplus": lambda z: np.log(1 + np.exp(z)),
        "silu": lambda z: z / (1 + np.exp(-z)),
        "abs": lambda z: np.where(np.real(z) < 0, -z, z),
        "erf": _erf,
    }.items()
}


def apply(function: str, z: Array) -> Array:
    """Return the function of every entry."""
    actual = eval(function, {**FUNCTIONS, "power": lambda c: _Named(lambda z: z**c), "x": _Named(lambda z: z)})
    return actual(z)


def _aligned(tensor: Array, indices: list, every: list) -> Array:
    """Return the tensor with one axis per index of `every`, of extent 1 where it has not that index."""
    order = [i for i in every if i in indices]
    tensor = tensor.transpose([0, *(1 + indices.index(i) for i in order)])
    return tensor.reshape([len(tensor), *(tensor.shape[1 + order.index(i)] if i in order else 1 for i in every)])


def _combined(operands: list[tuple[Array, list]], dst: list, extents: dict, operation: Callable[..., Array]) -> Array:
    """Return `dst[...] = sum of operation(operands)`: all operands broadcast to all indices first."""
    every = list(extents)
    full = [
        np.broadcast_to(_aligned(t, own_indices, every), [len(t), *(extents[i] for i in every)])
        for t, own_indices in operands
    ]
    result = operation(*full).sum(axis=tuple(1 + k for k, i in enumerate(every) if i not in dst))
    left = [i for i in every if i in dst]
    return result.transpose([0, *(1 + left.index(i) for i in dst)])


def _transform(node: dict, source: Array, indexing: str) -> Array:
    # negative indices of the two sides have nothing to do with each other
    scope = {"signed": lambda i, side: (i, side) if i < 0 else i, "positive": lambda i, side: i}[indexing]
    src = [scope(i, "src") for i in node["indexSrc"]]
    dst = [scope(i, "dst") for i in node["indexDst"]]
    extents = dict(zip(src, source.shape[1:], strict=True))
    new = [i for i in dst if i not in src]
    extents |= dict(zip(new, node.get("newDims", []), strict=True))
    return node.get("alpha", 1.0) * _combined([(source, src)], dst, extents, lambda a: a)


def _pair(node: dict, left: Array, right: Array) -> Array:
    l, r = list(node["indexSrcL"]), list(node["indexSrcR"])  # noqa: E741
    extents = dict(zip([*l, *r], [*left.shape[1:], *right.shape[1:]], strict=True))
    operation = {"+": np.add, "-": np.subtract, "*": np.multiply}[node.get("op", "*")]
    return _combined([(left, l), (right, r)], list(node["indexDst"]), extents, operation)


def all_values(graph: dict, leaves: Leaves, fixed: Leaves | None = None) -> dict[int, Array]:
    """Return the value of every node, each with a first axis of points.

    Args:
        graph: in the JSON form.
        leaves: of each leaf, `[*shape]`.
        fixed: of nodes that are not to be computed, `[points, *shape]`.
    """
    values = dict(fixed or {})
    num_points = max([1, *(len(value) for value in values.values())])
    for node in graph["nodes"]:
        if node["id"] in values:
            continue
        if node["type"] == "leaf":
            leaf_values = np.asarray(leaves[node["id"]], complex)
            value = np.broadcast_to(leaf_values, (num_points, *leaf_values.shape))
        elif node["type"] == "transform":
            value = _transform(node, values[node["src"]], graph["indexing"])
        elif node["type"] == "nonlinear":
            value = apply(node["function"], values[node["src"]])
        else:
            value = _pair(node, values[node["srcL"]], values[node["srcR"]])
        values[node["id"]] = value
    return values


def value(graph: dict, node: int, leaves: Leaves) -> Array:
    return np.real(all_values(graph, leaves)[node][0])


def jacobian(graph: dict, output: int, wrt: int, leaves: Leaves, mode: str = "reverse") -> Array:
    """Return the derivative of a node by a node, `[wrt, output]` in reverse mode, else `[output, wrt]`."""
    point = all_values(graph, leaves)[wrt]
    actual = _jacobians(graph, output, wrt, leaves, {wrt: point})[0]
    num_axes = point.ndim - 1
    return actual if mode == "forward" else np.moveaxis(actual, range(-num_axes, 0), range(num_axes))


def hessian(graph: dict, output: int, first: int, second: int, leaves: Leaves) -> Array:
    """Return the derivative of a node by two others, `[output, first, second]`.

    Args:
        graph: in the JSON form.
        output: node to differentiate.
        first: by what.
        second: node of the second derivative; independent of `first`, or the same.
        leaves: of each leaf.
    """
    base = all_values(graph, leaves)
    point = np.real(base[second][0])
    steps = _REAL_STEP * np.eye(point.size).reshape(point.size, *point.shape)
    moved = {second: np.concatenate([point + k * steps for k in (1, -1, 2, -2)])}
    if first != second:
        moved[first] = all_values(graph, leaves, moved)[first]
    lower, back, upper, far_back = np.split(_jacobians(graph, output, first, leaves, moved), 4)
    actual = (8 * (lower - back) - (upper - far_back)) / (12 * _REAL_STEP)  # [second, output, first]
    return np.moveaxis(actual, 0, -1).reshape((*actual.shape[1:], *point.shape))


def _jacobians(graph: dict, output: int, wrt: int, leaves: Leaves, points: Leaves) -> Array:
    """Return `[points, output, wrt]`, the complex steps of every entry of `wrt` at every point."""
    at = np.asarray(points[wrt], complex)
    num_points, shape = len(at), at.shape[1:]
    size = math.prod(shape)
    steps = 1j * _COMPLEX_STEP * np.eye(size).reshape(1, size, *shape)
    moved = {node: np.repeat(np.asarray(value, complex), size, axis=0) for node, value in points.items()}
    moved[wrt] = (at[:, None] + steps).reshape(num_points * size, *shape)
    actual = np.imag(all_values(graph, leaves, moved)[output]) / _COMPLEX_STEP
    actual = np.moveaxis(actual.reshape(num_points, size, *actual.shape[1:]), 1, -1)
    return actual.reshape((*actual.shape[:-1], *shape))
