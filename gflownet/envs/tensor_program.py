"""Tensor programs as typed graphs: programs equal up to index names are isomorphic graphs.

Nodes are tensors (inputs by name, operations) and indices (the axes of inputs, and of operations what is kept, summed
over or new). Edges lead from an operand to its operation, from a tensor to its indices, and from an axis to its
index. The rank of an operand distinguishes the two sides of a difference; nothing else is ordered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gflownet.autodiff.evaluation import topological_order
from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import ElementwiseNode, LeafNode, LinearNode, Node, NonlinearNode, TransformNode
from gflownet.autodiff.text import format as text_of
from gflownet.graphs.canonical import CanonicalForm, ColouredGraph, EqualUpToIsomorphism

TRANSFORM, ADD, SUBTRACT, MULTIPLY = "transform", "+", "-", "*"
OPERATIONS = (TRANSFORM, ADD, SUBTRACT, MULTIPLY)
BINARY = (ADD, SUBTRACT, MULTIPLY)
ORDERED = SUBTRACT  # the operation whose operands cannot be exchanged
KEEP, SUM, NEW = "keep", "sum", "new"

_INPUT = re.compile(r"([A-Za-z_]\w*)\[([\d,\s]*)\]", re.ASCII)
_AXIS = re.compile(r"(\w+)\.(\d+):(\d+)", re.ASCII)


def read_inputs(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of inputs written as `A[3,4]`.

    Raises:
        ValueError: another form, or a duplicate name.
    """
    inputs: dict[str, tuple[int, ...]] = {}
    for text in texts:
        match = _INPUT.fullmatch(text.strip())
        shape = tuple(int(extent) for extent in match[2].replace(",", " ").split()) if match else (0,)
        if match is None or min(shape, default=1) < 1:
            raise ValueError(f"inputs: expected a name and a shape as in A[3,4], got {text!r}")
        if match[1] in inputs or match[1] in (*OPERATIONS, KEEP, SUM, NEW):
            raise ValueError(f"inputs: expected distinct names, got {match[1]!r}")
        inputs[match[1]] = shape
    return inputs


def axis_name(name: str, axis: int, extent: int) -> str:
    """Return the node type of an input's axis."""
    return f"{name}.{axis}:{extent}"


@dataclass(frozen=True, eq=False)
class TensorProgram(EqualUpToIsomorphism):
    """A program; two are equal iff they differ only in index names and exchanged operands."""

    graph: ColouredGraph  # colours "type|function"; edges "edge||rank of the operand"

    def canonical_form(self) -> CanonicalForm:
        return self.graph.canonical_form()

    def to_dict(self) -> dict[str, Any]:
        """Return the graph in networkx's node-link form, with the program in index notation as attribute `program`."""
        return {**self.graph.to_dict(), "graph": {"program": str(self)}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorProgram:
        """Return the program that `to_dict` described."""
        return cls(ColouredGraph.from_dict(data))

    @cached_property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every input, used or not."""
        shapes: dict[str, dict[int, int]] = {
            kind: {} for kind in self._kinds if kind not in (*OPERATIONS, KEEP, SUM) and ":" not in kind
        }
        for match in filter(None, map(_AXIS.fullmatch, self._kinds)):
            shapes[match[1]][int(match[2])] = int(match[3])
        return {name: tuple(axes[axis] for axis in sorted(axes)) for name, axes in shapes.items()}

    def node(self, leaves: Mapping[str, Node] | None = None) -> Node:
        """Return the tensor that the program computes; its axes are in the order of the canonical form.

        Args:
            leaves: tensors for the inputs, by default leaves with their names. A leaf may have one more axis in front
                (examples); results then have it, too, and no operation sums over it.

        Raises:
            ValueError: there is not exactly one result.
        """
        leaves = {name: LeafNode(shape, name=name) for name, shape in self.inputs.items()} if leaves is None else leaves
        return _Decoder(self, leaves).result()

    def __str__(self) -> str:
        """Return the program in index notation, statements separated by semicolons."""
        lines = text_of(self.node()).splitlines()
        return "; ".join(line for line in lines if line and not line.startswith(("input ", "output ")))

    @cached_property
    def _kinds(self) -> list[str]:
        return [colour.partition("|")[0] for colour in self.graph.node_colours]

    @cached_property
    def _functions(self) -> list[str]:
        return [colour.partition("|")[2] for colour in self.graph.node_colours]


class _Decoder:
    """Builds the nodes of one program."""

    def __init__(self, program: TensorProgram, leaves: Mapping[str, Node]) -> None:
        self._kinds, self._functions, self._leaves = program._kinds, program._functions, leaves
        self._inputs = program.inputs
        order = program.graph.canonical_form().order
        self._place = {node: place for place, node in enumerate(order)}
        self._children: dict[int, list[int]] = {node: [] for node in order}
        self._parents: dict[int, list[int]] = {node: [] for node in order}
        self._rank = {ends: int(colour.split("|")[2]) for ends, colour in program.graph.edge_colours.items()}
        for source in order:  # so that lists are in canonical order
            for target in order:
                if (source, target) in self._rank:
                    self._children[source].append(target)
                    self._parents[target].append(source)
        self._done: dict[int, Node] = {}

    def result(self) -> Node:
        operations = [node for node in self._place if self._kinds[node] in OPERATIONS]
        results = [o for o in operations if not any(self._kinds[t] in OPERATIONS for t in self._children[o])]
        if len(results) != 1:
            raise ValueError(f"program: expected one unused operation, got {len(results)}")
        return self._tensor(results[0])

    def _tensor(self, node: int) -> Node:
        if node not in self._done:
            is_input = self._kinds[node] in self._inputs
            self._done[node] = self._leaves[self._kinds[node]] if is_input else self._operation(node)
        return self._done[node]

    def _axes(self, tensor: int) -> list[int]:
        if self._kinds[tensor] in self._inputs:
            axes = [child for child in self._children[tensor] if _AXIS.fullmatch(self._kinds[child])]
            return sorted(axes, key=lambda axis: self._kinds[axis])
        axes = [child for child in self._children[tensor] if self._kinds[child] not in (*OPERATIONS, SUM)]
        return sorted(axes, key=self._place.__getitem__)

    def _operation(self, node: int) -> Node:
        kind, indices = self._kinds[node], [i for i in self._children[node] if self._kinds[i] not in OPERATIONS]
        operands = [t for t in self._parents[node] if self._kinds[t] in (*OPERATIONS, *self._inputs)]
        operands.sort(key=lambda t: (self._rank[t, node], self._place[t]))
        number = {i: (place if self._kinds[i] == KEEP else -place) for place, i in enumerate(indices, start=2)}
        sources = [self._tensor(operand) for operand in operands]
        arrays, has_examples = [], False
        for operand, source in zip(operands, sources, strict=True):
            axes = self._axes(operand)
            examples = [1] if source.rank > len(axes) else []
            has_examples |= bool(examples)
            shared = (next(i for i in self._children[axis] if i in self._children[node]) for axis in axes)
            arrays.append([*examples, *(number[i] for i in shared)])
        target = [*([1] if has_examples else []), *(number[axis] for axis in self._axes(node))]
        result = _built(
            kind, sources, target, arrays, self._new_dims(node), sums=any(self._kinds[i] == SUM for i in indices)
        )
        function = self._functions[node]
        return NonlinearNode(result, Function.parse(function)) if function else result

    def _new_dims(self, node: int) -> list[int]:
        kinds = [self._kinds[axis] for axis in self._axes(node)]
        return [int(kind.partition(":")[2]) for kind in kinds if kind.startswith(NEW)]


def _built(
    kind: str, sources: list[Node], target: list[int], arrays: list[list[int]], new_dims: list[int], *, sums: bool
) -> Node:
    if kind == TRANSFORM:
        return TransformNode(sources[0], target, arrays[0], new_dims=new_dims)
    if kind == MULTIPLY and sums:
        return LinearNode(sources[0], sources[1], target, arrays[0], arrays[1])
    operation: Any = kind
    return ElementwiseNode(sources[0], sources[1], target, arrays[0], arrays[1], operation=operation)


def program_of(node: Node, inputs: Mapping[str, Sequence[int]]) -> TensorProgram:
    """Return the program that computes a node, up to the order of the result's axes.

    The function after an operation is part of the operation. An operand used twice by one operation is copied first.

    Args:
        node: the result.
        inputs: name and shape of the inputs of programs; the leaves of the node are some of them.

    Raises:
        ValueError: the node depends on an operation that programs do not have.
    """
    return _Encoder(node, inputs).program


class _Encoder:
    """Writes nodes as a graph."""

    def __init__(self, sink: Node, inputs: Mapping[str, Sequence[int]]) -> None:
        order = topological_order([sink])
        self._colours: list[str] = []
        self._edges: dict[tuple[int, int], str] = {}
        self._written: dict[Node, tuple[int, list[int]]] = {}  # a tensor and its axes
        self._num_uses = {node: sum(node in other.inputs for other in order) for node in order}
        leaves = {name: self._input(name, shape) for name, shape in inputs.items()}
        for node in order:
            if not isinstance(node, LeafNode):
                self._written[node] = self._write(node)
            elif node.name is not None and tuple(inputs.get(node.name, (0,))) == node.shape:
                self._written[node] = leaves[node.name]
            else:
                expected = ", ".join(f"{name}{list(shape)}" for name, shape in inputs.items())
                raise ValueError(f"{node.label}: expected a leaf out of {expected}, got shape {list(node.shape)}")
        self.program = TensorProgram(ColouredGraph(tuple(self._colours), self._edges))

    def _add(self, colour: str) -> int:
        self._colours.append(colour)
        return len(self._colours) - 1

    def _join(self, source: int, target: int, rank: int = 0) -> None:
        self._edges[source, target] = f"edge||{rank}"

    def _input(self, name: str, shape: Sequence[int]) -> tuple[int, list[int]]:
        tensor = self._add(f"{name}|")
        axes = [self._add(f"{axis_name(name, axis, extent)}|") for axis, extent in enumerate(shape)]
        for axis in axes:
            self._join(tensor, axis)
        return tensor, axes

    def _write(self, node: Node) -> tuple[int, list[int]]:
        if isinstance(node, NonlinearNode):
            tensor, axes = self._written[node.source]
            kind, _, function = self._colours[tensor].partition("|")
            if kind not in OPERATIONS or function or self._num_uses[node.source] > 1:
                tensor, axes = self._copy(tensor, axes)
                kind = TRANSFORM
            self._colours[tensor] = f"{kind}|{node.function}"
            return tensor, axes
        if isinstance(node, TransformNode) and node.alpha == 1:
            return self._operation(
                TRANSFORM, [self._written[node.source]], node.index_dst, [node.index_src], node.new_dims
            )
        if isinstance(node, ElementwiseNode | LinearNode):
            operands = [self._written[node.left], self._written[node.right]]
            if operands[0] == operands[1]:
                operands[1] = self._copy(*operands[1])
            return self._operation(node.operation, operands, node.index_dst, [node.index_src_l, node.index_src_r])
        raise ValueError(f"{node!r}: expected an operation of programs, without a factor")

    def _copy(self, tensor: int, axes: list[int]) -> tuple[int, list[int]]:
        indices = range(1, len(axes) + 1)
        return self._operation(TRANSFORM, [(tensor, axes)], indices, [indices])

    def _operation(
        self,
        kind: str,
        operands: Sequence[tuple[int, list[int]]],
        target: Sequence[int],
        arrays: Sequence[Sequence[int]],
        new_dims: Sequence[int] = (),
    ) -> tuple[int, list[int]]:
        operation = self._add(f"{kind}|")
        index_nodes: dict[int, int] = {}
        for place, ((tensor, axes), array) in enumerate(zip(operands, arrays, strict=True)):
            self._join(tensor, operation, place if kind == ORDERED else 0)
            for axis, index in zip(axes, array, strict=True):
                if index not in index_nodes:
                    index_nodes[index] = self._add(f"{KEEP if index > 0 else SUM}|")
                    self._join(operation, index_nodes[index])
                self._join(axis, index_nodes[index])
        extents, result = iter(new_dims), []
        for index in target:
            if index > 0:
                result.append(index_nodes[index])
            else:  # New: a negative of the source is another index
                result.append(self._add(f"{NEW}:{next(extents)}|"))
                self._join(operation, result[-1])
        return operation, result
