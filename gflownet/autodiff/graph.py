"""The running graph (seed 004): values forward, gradients backward, kept on the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gflownet.autodiff.evaluation import bound, compute, held, pull_back, topological_order
from gflownet.autodiff.nodes import LeafNode, Node


class Graph:
    """All that a node depends on, in the order in which it is computed."""

    def __init__(self, sink: Node) -> None:
        """Collect the nodes.

        Args:
            sink: what is computed and differentiated.
        """
        self.sink = sink
        self._nodes = tuple(topological_order([sink]))

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes, each after its inputs, the sink last."""
        return self._nodes

    @torch.no_grad()
    def forward(self, leaves: Mapping[LeafNode, Any] | None = None) -> None:
        """Compute the value of every node that has none yet.

        Args:
            leaves: what leaves hold from now on (tensors, arrays, nested lists); where there are any, all other nodes
                are computed anew.

        Raises:
            ValueError: a leaf holds nothing, or what it is to hold does not fit.
        """
        if leaves:
            self.reset_forwarded()
            for leaf, value in leaves.items():
                leaf.forwarded = bound(leaf, value).detach()
        device = next((node.forwarded.device for node in self._nodes if node.forwarded is not None), None)
        for node in self._nodes:
            if node.forwarded is None:
                is_leaf = isinstance(node, LeafNode)
                node.forwarded = held(node, device) if is_leaf else compute(node, [n.value() for n in node.inputs])

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
            val: what is added to the sink's gradient; 0 where that was filled by hand.

        Raises:
            ValueError: the sink has no gradient, or there was no forward pass.
        """
        self.sink.grad().add_(val)
        for node in reversed(self._nodes):
            if node.gradient is None or not node.inputs:
                continue
            passed = pull_back(node, [source.value() for source in node.inputs], node.gradient)
            for source, gradient in zip(node.inputs, passed, strict=True):
                if gradient is not None and source.has_grad():
                    source.grad().add_(gradient)
