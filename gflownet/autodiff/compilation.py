"""From nodes to programs: values, gradients, Jacobians, Hessians, Hessian-vector products.

What is derived and written for a structure is kept: a graph of the same structure, with other leaf objects, gets its
program in the time that reading the structure takes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from gflownet.autodiff import cross_country, derivation
from gflownet.autodiff.derivatives import Mode
from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.nodes import CastNode, ElementwiseNode, LeafNode, LinearNode, Node, NonlinearNode, TransformNode
from gflownet.autodiff.program import Code, Program, code_of
from gflownet.autodiff.simplification import terms_of
from gflownet.autodiff.term_builder import Terms
from gflownet.autodiff.terms import Term

Nodes = Node | Sequence[Node]
Derive = Callable[[Terms, list[Term]], list[Term]]  # the terms of the nodes asked about to those of the outputs
_MAX_KEPT = 1024  # codes; beyond, the oldest goes
_kept: dict[Hashable, Code] = {}


def compile(outputs: Nodes, *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes nodes.

    Args:
        outputs: one node, whose tensor the program returns, or several, for a tuple.
        leaves: that a call gives, in this order; by default those that hold no value, in the order they are met.

    Raises:
        ValueError: a leaf that is not in `leaves` holds no value.
    """
    as_tuple = not isinstance(outputs, Node)
    return _program("value", _listed(outputs), [], lambda terms, found: found, leaves, as_tuple=as_tuple)


def compile_gradient(loss: Node, wrt: Nodes, *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes the gradient of a scalar.

    Args:
        loss: a scalar.
        wrt: a node, whose gradient the program returns, or several, for a tuple.
        leaves: as of `compile`.

    Raises:
        ValueError: the loss is not a scalar; or as `compile`.
    """
    _check_scalar("compile_gradient", loss)

    def derive(terms: Terms, found: list[Term]) -> list[Term]:
        return derivation.gradient(terms, found[0], found[1:])

    return _program("gradient", [loss], _listed(wrt), derive, leaves, as_tuple=not isinstance(wrt, Node))


def compile_value_and_gradient(loss: Node, wrt: Sequence[Node], *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes a scalar and then its gradient by every one of several nodes.

    Args:
        loss: a scalar.
        wrt: the nodes.
        leaves: as of `compile`.

    Raises:
        ValueError: the loss is not a scalar; or as `compile`.
    """
    _check_scalar("compile_value_and_gradient", loss)

    def derive(terms: Terms, found: list[Term]) -> list[Term]:
        return [found[0], *derivation.gradient(terms, found[0], found[1:])]

    return _program("value and gradient", [loss], _listed(wrt), derive, leaves, as_tuple=True)


def compile_jacobian(
    output: Node, wrt: Node, mode: Mode = "reverse", *, leaves: Sequence[LeafNode] | None = None
) -> Program:
    """Return the program that computes a Jacobian.

    Args:
        output: what is differentiated.
        wrt: by what.
        mode: from which end; the layout is `[wrt..., output...]` in reverse mode and `[output..., wrt...]` in forward
            mode.
        leaves: as of `compile`.

    Raises:
        ValueError: there is no such mode; or as `compile`.
    """
    if mode not in ("reverse", "forward"):
        raise ValueError(f"compile_jacobian: mode: expected 'reverse' or 'forward', got {mode!r}")
    jacobian = derivation.reverse_jacobian if mode == "reverse" else derivation.forward_jacobian
    return _program(
        f"{mode} jacobian", [output], [wrt], lambda terms, found: [jacobian(terms, *found)], leaves, as_tuple=False
    )


def compile_hessian(
    output: Node, first: Node, second: Node | None = None, *, leaves: Sequence[LeafNode] | None = None
) -> Program:
    """Return the program that computes a Hessian, `[output..., first..., second...]`.

    Args:
        output: what is differentiated.
        first: by what first.
        second: by what then; by default by the same.
        leaves: as of `compile`.

    Raises:
        ValueError: as `compile`.
    """
    wrt = [first, first if second is None else second]
    return _program(
        "hessian", [output], wrt, lambda terms, found: [cross_country.hessian(terms, *found)], leaves, as_tuple=False
    )


def compile_hvp(loss: Node, wrt: Nodes, vector: Nodes, *, leaves: Sequence[LeafNode] | None = None) -> Program:
    """Return the program that computes the product of a scalar's Hessian and a vector, without the Hessian.

    Args:
        loss: a scalar.
        wrt: a node, or several, for a tuple of products with the joint Hessian.
        vector: a node of the shape of `wrt`, as a rule a leaf, or one for each.
        leaves: as of `compile`.

    Raises:
        ValueError: the loss is not a scalar, the vectors do not fit, or a node is given twice; or as `compile`.
    """
    _check_scalar("compile_hvp", loss)
    nodes, vectors = _listed(wrt), _listed(vector)
    if len({*nodes}) < len(nodes):
        raise ValueError(f"compile_hvp: wrt: expected every node once, got {[node.label for node in nodes]}")
    if [(v.shape, v.dtype) for v in vectors] != [(n.shape, n.dtype) for n in nodes]:
        shapes = [list(node.shape) for node in nodes]
        message = f"expected one of shape and dtype of each node, {shapes}"
        raise ValueError(f"compile_hvp: vector: {message}, got {[list(v.shape) for v in vectors]}")

    def derive(terms: Terms, found: list[Term]) -> list[Term]:
        output, sources, directions = found[0], found[1 : len(nodes) + 1], found[len(nodes) + 1 :]
        gradients = derivation.gradient(terms, output, sources)
        return derivation.tangents(terms, gradients, dict(zip(sources, directions, strict=True)))

    return _program("hvp", [loss], nodes, derive, leaves, as_tuple=not isinstance(wrt, Node), others=vectors)


def clear_cache() -> None:
    """Forget all code that was written."""
    _kept.clear()


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
    others: Sequence[Node] = (),
) -> Program:
    """Return the program of nodes asked about: outputs, what they are differentiated by, and others."""
    asked = [*outputs, *wrt, *others]
    order = topological_order(asked)
    places = {node: place for place, node in enumerate(order)}
    rows = tuple([_structure(node, places) for node in order])
    key = (kind, as_tuple, tuple([places[node] for node in asked]), rows)
    code = _kept.get(key)
    if code is None:
        code = _code(order, asked, wrt, derive, as_tuple=as_tuple)
        while len(_kept) >= _MAX_KEPT:
            del _kept[next(iter(_kept))]
        _kept[key] = code
    given = [node for node in order if isinstance(node, LeafNode) and not node.is_described]
    chosen = [leaf for leaf in given if leaf.given is None] if leaves is None else leaves
    return Program(code, given, chosen)


def _code(order: list[Node], asked: list[Node], wrt: list[Node], derive: Derive, *, as_tuple: bool) -> Code:
    terms = Terms()
    opaque = {node for node in wrt if not isinstance(node, LeafNode) or node.is_described}
    found, leaves = terms_of(terms, order, opaque=opaque)
    outputs = derive(terms, [found[node] for node in asked])
    if opaque:
        outputs = cross_country.without_aliases(terms, outputs)
    return code_of(outputs, [(leaf.shape, leaf.dtype) for leaf in leaves], as_tuple=as_tuple)


def _structure(node: Node, places: dict[Node, int]) -> tuple[Hashable, ...]:
    """Return a key of a node's operation, without names of leaves and of indices; inputs are given by their places."""
    match node:
        case LeafNode():
            return (0, node.shape, node.dtype, node.fill, node.is_identity)
        case TransformNode():
            dst = node.index_dst
            pattern = tuple([dst.index(index) if index > 0 else -1 for index in node.index_src])
            return (1, places[node.inputs[0]], pattern, node.alpha, node.shape)
        case ElementwiseNode() | LinearNode():
            number: dict[int, int] = {}
            indices = (*node.index_dst, *node.index_src_l, *node.index_src_r)
            pattern = tuple([number.setdefault(index, len(number)) for index in indices])
            left, right = node.inputs
            return (2, places[left], places[right], node.operation, len(node.index_dst), pattern)
        case NonlinearNode():
            return (3, places[node.inputs[0]], node.function)
        case CastNode():
            return (4, places[node.inputs[0]], node.dtype)
        case _:
            raise TypeError(f"{node.label}: expected one of the five kinds of nodes or a cast")
