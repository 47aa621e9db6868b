"""Programs for values, gradients, Jacobians, Hessians and Hessian-vector products of nodes.

Code is cached by structure: a graph with other leaves but the same operations gets its program without derivation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from gflownet.autodiff import cross_country, derivation
from gflownet.autodiff.derivatives import Mode, check_mode
from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.nodes import LeafNode, Node
from gflownet.autodiff.program import Code, Program, code_of
from gflownet.autodiff.simplification import terms_of
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Term

Nodes = Node | Sequence[Node]
Derive = Callable[[Terms, list[Term]], list[Term]]  # maps the terms of the requested nodes to the outputs
_MAX_CACHED = 1024  # codes; beyond, the oldest is dropped
_cache: dict[Hashable, Code] = {}


def compile(outputs: Nodes, *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes nodes.

    Args:
        outputs: one node, for a program that returns a tensor, or several, for a tuple.
        leaves: arguments of the program, in this order; by default the leaves without a value, in topological order.

    Raises:
        ValueError: a leaf that is not in `leaves` has no value.
    """
    as_tuple = not isinstance(outputs, Node)
    return _program("value", _listed(outputs), [], lambda terms, requested: requested, leaves, as_tuple=as_tuple)


def compile_gradient(loss: Node, wrt: Nodes, *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes the gradient of a scalar.

    Args:
        loss: a scalar.
        wrt: one node, for a program that returns a tensor, or several, for a tuple.
        leaves: as in `compile`.

    Raises:
        ValueError: the loss is not a scalar; or as in `compile`.
    """
    _check_scalar("compile_gradient", loss)

    def derive(terms: Terms, requested: list[Term]) -> list[Term]:
        return derivation.gradient(terms, requested[0], requested[1:])

    return _program("gradient", [loss], _listed(wrt), derive, leaves, as_tuple=not isinstance(wrt, Node))


def compile_value_and_gradient(loss: Node, wrt: Sequence[Node], *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes a scalar and its gradient by several nodes; as `compile_gradient`."""
    _check_scalar("compile_value_and_gradient", loss)

    def derive(terms: Terms, requested: list[Term]) -> list[Term]:
        return [requested[0], *derivation.gradient(terms, requested[0], requested[1:])]

    return _program("value and gradient", [loss], _listed(wrt), derive, leaves, as_tuple=True)


def compile_jacobian(
    output: Node, wrt: Node, mode: Mode = "reverse", *, leaves: Sequence[LeafNode] | None = None
) -> Program:
    """Return the program that computes a Jacobian: `[wrt..., output...]`, in forward mode `[output..., wrt...]`.

    Args:
        output: node to differentiate.
        wrt: node to differentiate by.
        mode: reverse or forward.
        leaves: as in `compile`.

    Raises:
        ValueError: unknown mode; or as in `compile`.
    """
    check_mode("compile_jacobian", mode)
    jacobian = derivation.reverse_jacobian if mode == "reverse" else derivation.forward_jacobian

    def derive(terms: Terms, requested: list[Term]) -> list[Term]:
        return [jacobian(terms, *requested)]

    return _program(f"{mode} jacobian", [output], [wrt], derive, leaves, as_tuple=False)


def compile_hessian(
    output: Node, first: Node, second: Node | None = None, *, leaves: Sequence[LeafNode] | None = None
) -> Program:
    """Return the program that computes a Hessian, `[output..., first..., second...]`.

    Args:
        output: node to differentiate.
        first: node of the first derivative.
        second: node of the second derivative, by default the same.
        leaves: as in `compile`.

    Raises:
        ValueError: as in `compile`.
    """

    def derive(terms: Terms, requested: list[Term]) -> list[Term]:
        return [cross_country.hessian(terms, *requested)]

    return _program("hessian", [output], [first, second or first], derive, leaves, as_tuple=False)


def compile_hvp(loss: Node, wrt: Nodes, vector: Nodes, *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes the product of a scalar's Hessian and a vector, without the Hessian.

    Args:
        loss: a scalar.
        wrt: one node, or several, for a tuple of products with the joint Hessian.
        vector: a node of the shape of `wrt`, usually a leaf, or one for each.
        leaves: as in `compile`.

    Raises:
        ValueError: the loss is not a scalar, shape or dtype of a vector differs, or a node occurs twice; or as in
            `compile`.
    """
    _check_scalar("compile_hvp", loss)
    nodes, vectors = _listed(wrt), _listed(vector)
    if len({*nodes}) < len(nodes):
        raise ValueError(f"compile_hvp: wrt: expected every node once, got {[node.label for node in nodes]}")
    if [(v.shape, v.dtype) for v in vectors] != [(n.shape, n.dtype) for n in nodes]:
        message = f"expected one of shape and dtype of each node, {[list(node.shape) for node in nodes]}"
        raise ValueError(f"compile_hvp: vector: {message}, got {[list(v.shape) for v in vectors]}")

    def derive(terms: Terms, requested: list[Term]) -> list[Term]:
        output, sources, directions = requested[0], requested[1 : len(nodes) + 1], requested[len(nodes) + 1 :]
        gradients = derivation.gradient(terms, output, sources)
        return derivation.tangents(terms, gradients, dict(zip(sources, directions, strict=True)))

    return _program("hvp", [loss], nodes, derive, leaves, as_tuple=not isinstance(wrt, Node), vectors=vectors)


def clear_cache() -> None:
    """Drop all cached code."""
    _cache.clear()


def _listed(nodes: Nodes) -> list[Node]:
    return [nodes] if isinstance(nodes, Node) else list(nodes)


def _check_scalar(name: str, loss: Node) -> None:
    if loss.rank:
        raise ValueError(f"{name}: {loss.label}: expected a scalar (shape []), got shape {list(loss.shape)}")


def _program(
    kind: str,
    outputs: list[Node],
    wrt: list[Node],
    derive: Derive,
    leaves: Sequence[LeafNode] | None,
    *,
    as_tuple: bool,
    vectors: Sequence[Node] = (),
) -> Program:
    """Return the program of derived outputs; `derive` gets the terms of outputs, `wrt` and vectors."""
    requested = [*outputs, *wrt, *vectors]
    order = topological_order(requested)
    places = {node: place for place, node in enumerate(order)}
    rows = tuple([_structure(node, places) for node in order])
    key = (kind, as_tuple, tuple([places[node] for node in requested]), rows)
    code = _cache.get(key)
    if code is None:
        code = _code(order, requested, wrt, derive, as_tuple=as_tuple)
        while len(_cache) >= _MAX_CACHED:
            del _cache[next(iter(_cache))]
        _cache[key] = code
    stored = [node for node in order if isinstance(node, LeafNode) and not node.is_described]
    return Program(code, stored, [leaf for leaf in stored if leaf.given is None] if leaves is None else leaves)


def _code(order: list[Node], requested: list[Node], wrt: list[Node], derive: Derive, *, as_tuple: bool) -> Code:
    terms = Terms()
    opaque = {node for node in wrt if not isinstance(node, LeafNode) or node.is_described}
    term_of, leaves = terms_of(terms, order, opaque=opaque)
    outputs = derive(terms, [term_of[node] for node in requested])
    if opaque:
        outputs = cross_country.without_aliases(terms, outputs)
    return code_of(outputs, [(leaf.shape, leaf.dtype) for leaf in leaves], as_tuple=as_tuple)


def _structure(node: Node, places: dict[Node, int]) -> tuple[Hashable, ...]:
    """Return a key of a node's operation, without names of leaves and of indices; inputs are given by their places."""
    if isinstance(node, LeafNode):
        return None, node.shape, node.dtype, node.fill, node.is_identity
    numbers: dict[int, int] = {}
    pattern = tuple([tuple([numbers.setdefault(index, len(numbers)) for index in array]) for array in node.arrays()])
    return type(node), tuple([places[source] for source in node.inputs]), pattern, node.argument, node.shape
