"""A graph that runs: values forward, gradients backward, kept on the nodes; access to nodes by id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from gflownet.autodiff import derivatives, serialisation
from gflownet.autodiff.custom_node import CustomNode
from gflownet.autodiff.derivatives import Mode
from gflownet.autodiff.evaluation import bound, device_of, evaluate, topological_order
from gflownet.autodiff.nodes import LeafKind, LeafNode, Node
from gflownet.autodiff.serialisation import Identifier, Indexing
from gflownet.autodiff.tensor_algebra import owned
from gflownet.autodiff.tokens import shortened


class Graph:
    """A node and all its direct and indirect inputs, in topological order."""

    def __init__(self, sink: Node | Sequence[Node], *, ids: Mapping[Identifier, Node] | None = None) -> None:
        """Collect the nodes.

        Args:
            sink: node to compute and differentiate; of several, the last is `sink`.
            ids: ids of nodes, also of nodes that no sink needs; the others are numbered in order.

        Raises:
            ValueError: there is no sink.
        """
        self.outputs = (sink,) if isinstance(sink, Node) else tuple(sink)
        if not self.outputs:
            raise ValueError("Graph: expected at least one sink, got none")
        self.sink = self.outputs[-1]
        named = dict(ids or {})
        self._nodes = tuple(topological_order([*named.values(), *self.outputs]))
        self.ids = self._numbered(named)
        self._by_id = {str(identifier): node for identifier, node in self.ids.items()}

    def _numbered(self, named: Mapping[Identifier, Node]) -> dict[Identifier, Node]:
        id_of = {node: identifier for identifier, node in named.items()}
        used = {str(identifier) for identifier in named}
        free = (number for number in range(len(self._nodes) + len(used)) if str(number) not in used)
        return {id_of[node] if node in id_of else next(free): node for node in self._nodes}

    @classmethod
    def from_dict(cls, data: Any, *, classes: Iterable[type[CustomNode]] = ()) -> Self:
        """Return the graph of JSON values, see gflownet/autodiff/serialisation.py; `classes` are of custom nodes.

        Raises:
            ValueError: the values describe no graph; the message names node, field and rule.
        """
        ids, outputs = serialisation.read(data, classes)
        return cls(outputs, ids=ids)

    def to_dict(self, *, indexing: Indexing = "signed") -> dict[str, Any]:
        """Return the graph as JSON values, which `from_dict` reads."""
        return serialisation.write(self.ids, self.outputs, indexing=indexing)

    def node(self, node: Node | Identifier) -> Node:
        """Return the node with an id, written as an integer or a string; raise ValueError for an unknown id."""
        if isinstance(node, Node):
            return node
        if str(node) not in self._by_id:
            raise ValueError(f"expected the id of a node of the graph, got {shortened(node)}")
        return self._by_id[str(node)]

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, each after its inputs, the sink last."""
        return self._nodes

    def value(self, node: Node | Identifier, leaves: Mapping[Any, Any] | None = None) -> Tensor:
        """Return a copy of a node's value.

        Args:
            node: the node or its id.
            leaves: values of leaves, by node or id; without them, the value of the last forward pass is returned.

        Raises:
            ValueError: unknown node, no forward pass, or a leaf without a value or with one that does not fit.
        """
        return self.node(node).value().clone() if leaves is None else self._evaluated(self.node(node), leaves)

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
        """Return the value of a Jacobian: `[wrt..., output...]`, in forward mode `[output..., wrt...]`.

        Nodes may be given by id; `leaves` are values by node or id, other leaves keep their own.

        Raises:
            ValueError: see `value`; or unknown mode.
        """
        return self._evaluated(derivatives.jacobian(self.node(output), self.node(wrt), mode), leaves)

    def hessian(
        self,
        output: Node | Identifier,
        first: Node | Identifier,
        second: Node | Identifier | None = None,
        leaves: Mapping[Any, Any] | None = None,
    ) -> Tensor:
        """Return the value of a Hessian, `[output..., first..., second...]`; arguments as for `jacobian`."""
        by = self.node(first)
        twice = derivatives.hessian(self.node(output), by, by if second is None else self.node(second))
        return self._evaluated(twice, leaves)

    def _evaluated(self, node: Node, leaves: Mapping[Any, Any] | None) -> Tensor:
        """Return the value of a node in new memory: neither a view of a leaf's value nor expanded."""
        bindings = {leaf: bound(leaf, value) for leaf, value in self._leaves(leaves).items()}
        (result,) = evaluate([node], bindings)
        stored = (leaf.given for leaf in topological_order([node]) if isinstance(leaf, LeafNode))
        return owned(result, [tensor for tensor in (*bindings.values(), *stored) if tensor is not None])

    def _leaves(self, leaves: Mapping[Any, Any] | None) -> dict[LeafNode, Any]:
        if not isinstance(leaves, Mapping | None):
            raise ValueError(f"leaves: expected values by leaf or id, got {shortened(leaves)}")
        values = {}
        for key, value in (leaves or {}).items():
            leaf = self.node(key)
            if not isinstance(leaf, LeafNode):
                raise ValueError(f"{leaf.label}: leaves: expected values of leaves only")
            values[leaf] = value
        return values

    def forward(self, leaves: Mapping[Any, Any] | None = None) -> None:
        """Compute the value of every node that has none.

        Args:
            leaves: values of leaves (tensors, arrays, nested lists), by node or id, which are copied; with any, all
                computed values are reset first.

        Raises:
            ValueError: a leaf has no value, or a value does not fit.
        """
        if leaves:
            self.reset_forwarded()
            for leaf, value in self._leaves(leaves).items():
                leaf.forwarded = bound(leaf, value).detach().clone()
        device = device_of(self._nodes, {node: node.forwarded for node in self._nodes if node.forwarded is not None})
        for node in self._nodes:
            if node.forwarded is None:
                node.forward()
            if isinstance(node, LeafNode) and node.kind == LeafKind.CONSTANT and device is not None:
                node.forwarded = node.value().to(device)

    def reset_forwarded(self) -> None:
        """Delete the values of all nodes but leaves."""
        for node in self._nodes:
            if not isinstance(node, LeafNode):
                node.forwarded = None

    def reset_grad(self) -> None:
        """Delete the gradients of all nodes."""
        for node in self._nodes:
            node.gradient = None

    @torch.no_grad()
    def backward(self, val: float | Tensor = 1.0) -> None:
        """Add to the gradient of the sink, then pass gradients back to all inputs.

        Gradients accumulate until `reset_grad`, also on inner nodes, so a second pass propagates those again.

        Args:
            val: added to the gradient of the sink: a number or a tensor of its shape; 0 if that was filled by hand.

        Raises:
            ValueError: the sink has no gradient, there was no forward pass, or `val` does not fit.
        """
        self.sink.grad().add_(self._cotangent(val))
        for node in reversed(self._nodes):
            node.backward()

    def _cotangent(self, val: float | Tensor) -> Tensor:
        expected = f"{self.sink.label}: backward: val: expected a number or a tensor of shape {list(self.sink.shape)}"
        try:
            tensor = torch.as_tensor(val)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{expected}, got {shortened(val)}") from error
        if tuple(tensor.shape) not in ((), self.sink.shape) or not torch.can_cast(tensor.dtype, self.sink.dtype):
            raise ValueError(f"{expected} that {self.sink.dtype} can hold, got {list(tensor.shape)} of {tensor.dtype}")
        return tensor
