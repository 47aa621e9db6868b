"""The running graph (seed 004): values forward, gradients backward, kept on the nodes; and nodes by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from gflownet.autodiff import derivatives, serialisation
from gflownet.autodiff.derivatives import Mode
from gflownet.autodiff.evaluation import bound, compute, device_of, evaluate, held, pull_back, topological_order
from gflownet.autodiff.nodes import LeafKind, LeafNode, Node
from gflownet.autodiff.quoting import shortened
from gflownet.autodiff.serialisation import Identifier, Indexing

# What torch says of tensors on the meta device, and `_address` of those without memory.
_NOWHERE = 0


class Graph:
    """All that a node depends on, in the order in which it is computed."""

    def __init__(self, sink: Node | Sequence[Node], *, ids: Mapping[Identifier, Node] | None = None) -> None:
        """Collect the nodes.

        Args:
            sink: what is computed and differentiated; of several, the last is `sink`.
            ids: what nodes are called, also such as no sink needs; the others are numbered in their order.

        Raises:
            ValueError: there is no sink.
        """
        self.outputs = (sink,) if isinstance(sink, Node) else tuple(sink)
        if not self.outputs:
            raise ValueError("Graph: expected at least one sink, got none")
        self.sink = self.outputs[-1]
        given = {} if ids is None else dict(ids)
        self._nodes = tuple(topological_order([*given.values(), *self.outputs]))
        self.ids = self._numbered(given)
        self._by_id = {str(identifier): node for identifier, node in self.ids.items()}

    def _numbered(self, given: Mapping[Identifier, Node]) -> dict[Identifier, Node]:
        known = {node: identifier for identifier, node in given.items()}
        taken = {str(identifier) for identifier in given}
        free = (number for number in range(len(self._nodes) + len(taken)) if str(number) not in taken)
        return {known[node] if node in known else next(free): node for node in self._nodes}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return the graph that JSON values describe, see gflownet/autodiff/serialisation.py.

        Raises:
            ValueError: they describe none; the message names the node, the field and the rule.
        """
        ids, outputs = serialisation.read(data)
        return cls(outputs, ids=ids)

    def to_dict(self, *, indexing: Indexing = "signed") -> dict[str, Any]:
        """Return the graph as JSON values, which `from_dict` reads back."""
        return serialisation.write(self.ids, self.outputs, indexing=indexing)

    def node(self, node: Node | Identifier) -> Node:
        """Return the node with an id, which may be written as an integer or a string.

        Raises:
            ValueError: there is none.
        """
        if isinstance(node, Node):
            return node
        if str(node) not in self._by_id:
            raise ValueError(f"expected the id of a node of the graph, got {shortened(node)}")
        return self._by_id[str(node)]

    def value(self, node: Node | Identifier, leaves: Mapping[Any, Any] | None = None) -> Tensor:
        """Return a node's value, in memory of its own (`Node.value` is what the node itself holds).

        Args:
            node: the node or its id.
            leaves: what leaves hold, by node or id; without them, the value is that of the last forward pass.

        Raises:
            ValueError: there is no such node, no forward pass, or a leaf holds nothing or what does not fit.
        """
        found = self.node(node)
        return found.value().clone() if leaves is None else self._evaluated(found, leaves)

    def grad(self, node: Node | Identifier) -> Tensor:
        """Return a node's gradient, see `Node.grad`."""
        return self.node(node).grad()

    def has_grad(self, node: Node | Identifier) -> bool:
        """Return whether a node has a gradient, see `Node.has_grad`."""
        return self.node(node).has_grad()

    def jacobian(
        self,
        output: Node | Identifier,
        wrt: Node | Identifier,
        leaves: Mapping[Any, Any] | None = None,
        mode: Mode = "reverse",
    ) -> Tensor:
        """Return the derivative of a node by another, evaluated.

        Args:
            output: the node or its id.
            wrt: the node or its id; it need not be a leaf.
            leaves: what leaves hold, by node or id; the others hold what they were given.
            mode: from which end.

        Returns:
            `[wrt..., output...]` in reverse mode, `[output..., wrt...]` in forward mode.

        Raises:
            ValueError: see `value`; or there is no such mode.
        """
        return self._evaluated(derivatives.jacobian(self.node(output), self.node(wrt), mode), leaves)

    def hessian(
        self,
        output: Node | Identifier,
        first: Node | Identifier,
        second: Node | Identifier | None = None,
        leaves: Mapping[Any, Any] | None = None,
    ) -> Tensor:
        """Return the derivative of a node by two others, evaluated; arguments as of `jacobian`.

        Returns:
            `[output..., first..., second...]`.
        """
        by = self.node(first)
        found = derivatives.hessian(self.node(output), by, by if second is None else self.node(second))
        return self._evaluated(found, leaves)

    def _evaluated(self, node: Node, leaves: Mapping[Any, Any] | None) -> Tensor:
        """Return the value of a node as the caller's own: not a view of what a leaf holds, nor an entry repeated."""
        bindings = {leaf: bound(leaf, value) for leaf, value in self._leaves(leaves).items()}
        (found,) = evaluate([node], bindings)
        given = (leaf.given for leaf in topological_order([node]) if isinstance(leaf, LeafNode))
        taken = {_NOWHERE, *(_address(tensor) for tensor in (*bindings.values(), *given) if tensor is not None)}
        is_repeated = any(step == 0 and n > 1 for step, n in zip(found.stride(), found.shape, strict=True))
        return found.clone() if is_repeated or _address(found) in taken else found

    def _leaves(self, leaves: Mapping[Any, Any] | None) -> dict[LeafNode, Any]:
        found = {}
        if not isinstance(leaves, Mapping | None):
            raise ValueError(f"leaves: expected values by leaf or id, got {shortened(leaves)}")
        for key, value in (leaves or {}).items():
            leaf = self.node(key)
            if not isinstance(leaf, LeafNode):
                raise ValueError(f"{leaf.label}: leaves: expected values of leaves only")
            found[leaf] = value
        return found

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, each after its inputs, the sink last."""
        return self._nodes

    def forward(self, leaves: Mapping[Any, Any] | None = None) -> None:
        """Compute the value of every node that has none yet.

        Args:
            leaves: what leaves hold from now on (a copy of tensors, arrays, nested lists), by node or id; where there
                are any, all other nodes are computed anew.

        Raises:
            ValueError: a leaf holds nothing, or what it is to hold does not fit.
        """
        if leaves:
            self.reset_forwarded()
            for leaf, value in self._leaves(leaves).items():
                leaf.forwarded = bound(leaf, value).detach().clone()
        device = device_of(self._nodes, {node: node.forwarded for node in self._nodes if node.forwarded is not None})
        for node in self._nodes:
            if node.forwarded is None:
                is_leaf = isinstance(node, LeafNode)
                node.forwarded = held(node, device) if is_leaf else compute(node, [n.value() for n in node.inputs])
            elif isinstance(node, LeafNode) and node.kind == LeafKind.CONSTANT and device is not None:
                node.forwarded = node.forwarded.to(device)

    def reset_forwarded(self) -> None:
        """Forget the values of all nodes but leaves: the next forward pass computes them anew."""
        for node in self._nodes:
            if not isinstance(node, LeafNode):
                node.forwarded = None

    def reset_grad(self) -> None:
        """Forget the gradients of all nodes."""
        for node in self._nodes:
            node.gradient = None

    @torch.no_grad()
    def backward(self, val: float | Tensor = 1.0) -> None:
        """Add to the sink's gradient, then to every node's what its consumers pass back.

        Gradients gather until `reset_grad`: those of inner nodes too, so a second pass passes them back again.

        Args:
            val: what is added to the sink's gradient, a number or a tensor of its shape; 0 where that was filled by
                hand.

        Raises:
            ValueError: the sink has no gradient, there was no forward pass, or `val` does not fit.
        """
        self.sink.grad().add_(self._cotangent(val))
        for node in reversed(self._nodes):
            if node.gradient is None or not node.inputs:
                continue
            passed = pull_back(node, [source.value() for source in node.inputs], node.gradient)
            for source, gradient in zip(node.inputs, passed, strict=True):
                if gradient is not None and source.has_grad():
                    source.grad().add_(gradient)

    def _cotangent(self, val: float | Tensor) -> Tensor:
        expected = f"{self.sink.label}: backward: val: expected a number or a tensor of shape {list(self.sink.shape)}"
        try:
            found = torch.as_tensor(val)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{expected}, got {shortened(val)}") from error
        if tuple(found.shape) not in ((), self.sink.shape) or not torch.can_cast(found.dtype, self.sink.dtype):
            raise ValueError(f"{expected} that {self.sink.dtype} can hold, got {list(found.shape)} of {found.dtype}")
        return found


def _address(tensor: Tensor) -> int:
    """Return where a tensor's memory begins."""
    try:
        return tensor.untyped_storage().data_ptr()
    except NotImplementedError:  # inside a transformation of torch.func
        return _NOWHERE
