"""Tables over all shapes that a search can reach: output shape and cost of every operation at every input shape.

Shapes are numbered so that a shape to which others are aligned has the larger number. Where one of several inputs has
the shape to which all are aligned, it is the one with the largest number.

Operations with several ports have a tuple of input shapes; tuples that one of them accepts are numbered after the
shapes.

Letters: P prefixes, S shapes, I shapes and tuples of shapes, C columns of SetNodeAttr, K minimal completions of a
prefix, D costs with a limit. The last row of P stands for nodes without an operation, the last one of S and I for
shapes not known yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.operation_choices import OperationChoices, Prefix
from gflownet.graphs.operation import AppliedOperation, read_operation
from gflownet.mdp.states import NO_LIMIT
from gflownet.operations.operation import INPUT_PORT
from gflownet.operations.probe import probe
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Layout, Shape, ShapeError

UNKNOWN = -1  # number of a shape that is not known
# Operations of an output: the linear layer over the average of all positions, or at each position.
OUTPUTS = {Layout.VECTOR: "head", Layout.SEQUENCE: "linear", Layout.SIGNAL: "conv1d", Layout.IMAGE: "conv2d"}
OUTPUTS |= {Layout.VOLUME: "torch.nn:Conv3d"}
_MAX_SHAPES = 2_000
_MAX_EVALUATIONS = 50_000  # of shapes by operations
_MAX_TUPLES = 2**24  # entries of the table of tuples of shapes
NEVER = 2**60  # cost of an impossible completion


def head_of(output: Shape) -> dict[str, Any]:
    """Return the operation of the output node: to a vector, or to the channels of each position."""
    window = {"kernel_size": 1} if output.layout in CHANNELS_FIRST else {}
    width = "out_channels" if output.layout is Layout.VOLUME else "features"
    return {"name": OUTPUTS[output.layout], width: output.channels, **window}


def is_within(costs: Sequence[int], caps: Sequence[int]) -> bool:
    """Return whether parameters and multiply-adds are at most the caps, NO_LIMIT for none."""
    return all(cost <= cap for cost, cap in zip(costs, caps, strict=True))


@dataclass(frozen=True)
class OperationTables:
    """Shapes and costs; a cost axis of 2 has parameters and multiply-adds."""

    shapes: tuple[Shape, ...]
    operands: tuple[tuple[Shape, ...], ...]  # I - 1, of each input: a shape, or one of each port
    number: Tensor  # [(S)^ports] int64, place in I of shapes at the ports, 0 for UNKNOWN and the places from 1 on
    inputs: Tensor  # [number of inputs] int64, their shapes
    child: Tensor  # [P, C] int64, prefix after a value, the last one for none
    after: tuple[Tensor, ...]  # [types + 1] prefix of a type, then per attribute [P, values + 1] after a value
    open: Tensor  # [P, 1 + C] bool, whether a setting is left to be set, and to which values
    output: Tensor  # [P, I] int64, shape after a complete prefix, or UNKNOWN
    cost: Tensor  # [P, I, 2] int64, of a complete prefix
    module: Tensor  # [P] int64, one number of the prefixes with equal operations and settings
    has_weights: Tensor  # [P, I] bool, of a complete prefix
    head: Tensor  # [S, 2] int64, cost of the output node at a source of this shape
    adapter: Tensor  # [S, S, 2] int64, cost of the learned projection of a source (first) to a shape
    fits: Tensor  # [S, S] bool, the first shape can be aligned to the second
    dims: tuple[int, ...]  # D, places of the costs with a limit; the first if there is none
    # [P, I, K, 2 D] int64, the cheapest completions by each limited cost: of the node, then of the output layer;
    # UNKNOWN comes first in I
    completions: Tensor

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The numbers of channels and of positions of each input [I], the first of several; 1 and 1 of none yet."""
        first = (operand[0] for operand in self.operands)
        return [*((_channels(shape), shape.num_elements // _channels(shape)) for shape in first), (1, 1)]

    def unfit_operations(self, choices: OperationChoices) -> dict[str, list[str]]:
        """Return the operations that no reachable shape fits within the limits, by the reason at the first input."""
        fits = (self.output[:-1] != UNKNOWN).any(1).tolist()
        used = {prefix.operation for prefix, fit in zip(choices.prefixes, fits, strict=True) if fit}
        complete = (prefix for prefix in choices.prefixes if choices.next_attribute(prefix) is None)
        examples = {prefix.operation: prefix for prefix in complete if prefix.operation not in used}
        unfit: dict[str, list[str]] = {}
        for position, prefix in sorted(examples.items()):
            applied, reason = choices.applied(prefix), "above the limits"
            try:
                first = self.shapes[int(self.inputs[0])]
                applied.row.infer_shape(dict.fromkeys(applied.required_ports, first), applied.settings)
            except ShapeError as error:
                reason = str(error).partition(", got")[0]
            unfit.setdefault(reason, []).append(choices.operations[position].name)
        return unfit

    def prefixes(self, node_type: Tensor, node_attr: Tensor) -> Tensor:
        """Return the prefix of every node, [B, N], P - 1 for nodes without an operation."""
        prefix = self.after[0][node_type.long()]
        for after, value in zip(self.after[1:], node_attr.long().unbind(-1), strict=False):  # without the module
            prefix = after[prefix, value]
        return prefix


def rows_at(table: Tensor, *index: Tensor) -> Tensor:
    """Return `table[index]` for an index >= 0; rows are read many times as fast by a single index."""
    place = index[0]
    for size, each in zip(table.shape[1:], index[1:], strict=False):
        place = place * size + each
    rows = table.flatten(0, len(index) - 1)
    return rows.index_select(0, place.flatten()).view(*place.shape, *rows.shape[1:])


def with_others(completions: Tensor, others: Tensor) -> Tensor:
    """Return completions [..., K, 2 D] of both, which broadcast but for K."""
    size = torch.broadcast_shapes(completions.shape[:-2], others.shape[:-2])
    return torch.cat([each.expand(*size, -1, -1) for each in (completions, others)], -2)


@dataclass(frozen=True)
class ShapeInference:
    """Shapes of all nodes of graphs with one output, by tables that are read at one index.

    UNKNOWN, -1, comes first in their rows.
    """

    num_shapes: int  # S, with UNKNOWN
    num_columns: int  # I, with UNKNOWN
    row_offset: Tensor  # [N] int64, added to the rows of prefixes: each input has a row
    output: Tensor  # [rows * I] int64, shape of the output of a row and an input
    number: Tensor  # [S^ports] int64, input of shapes at the ports
    fits_target: Tensor  # [S * (S + 1)] bool, whether a shape fits another; all but tokens fit the output
    inputs: Tensor  # [N] int64, shapes of the inputs, else UNKNOWN
    is_output: Tensor  # [N] bool

    @staticmethod
    def of(tables: OperationTables, *, max_nodes: int) -> ShapeInference:
        """Return the inference by some tables for graphs of up to `max_nodes` nodes."""
        num_inputs, num_shapes, num_columns = len(tables.inputs), len(tables.shapes) + 1, tables.output.shape[1]
        of_inputs = tables.inputs[:, None].expand(num_inputs, num_columns)
        row_offset = torch.arange(1, max_nodes + 1).where(torch.arange(max_nodes) < num_inputs, 0) * num_columns
        accepted = [shape.layout is not Layout.TOKENS for shape in tables.shapes]
        fits = torch.cat([tables.fits, torch.tensor([*accepted, True])[:, None]], 1).roll(1, 0)
        fits[:, :-1] = fits[:, :-1].roll(1, 1)
        inputs = torch.full((max_nodes,), UNKNOWN)
        inputs[:num_inputs] = tables.inputs
        return ShapeInference(
            num_shapes=num_shapes,
            num_columns=num_columns,
            row_offset=row_offset,
            output=torch.cat([tables.output, of_inputs]).roll(1, 1).flatten(),
            number=tables.number,
            fits_target=fits.flatten().roll(-num_shapes - 2),
            inputs=inputs,
            is_output=torch.arange(max_nodes) == num_inputs,
        )

    def __call__(
        self, feeds: Sequence[Tensor], prefix: Tensor, guess: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return the merged shapes at each port and the inputs that they make, and the shapes of all outputs, [B, N].

        Every round finds the shapes of the nodes behind those that are known. No graph has a cycle: the result, which
        a round does not change, is the same from any start.

        Args:
            feeds: [B, N, N] bool of each port, the edges into it.
            prefix: [B, N] int64, of the nodes.
            guess: outputs of similar graphs, from which few rounds are needed.
        """
        row = torch.add(self.row_offset, prefix, alpha=self.num_columns)
        output = self.inputs.expand_as(prefix) if guess is None else guess
        weights = [edge.mT.contiguous().long() for edge in feeds]
        received, column = [output], output
        for _ in range(prefix.shape[1]):  # no path is longer
            # 0 stands for UNKNOWN in the products.
            known = (output + 1)[:, None]
            received = [(each * known).amax(2) for each in weights]
            column = self.column(received)
            following = self.output.take(row + column)
            if output.device.type == "cpu" and torch.equal(following, output):  # waits for a device
                break
            output = following
        return [each - 1 for each in received], column - 1, output

    def column(self, received: Sequence[Tensor]) -> Tensor:
        """Return the input of shapes at the ports; 0 stands for UNKNOWN in both."""
        if len(received) == 1:
            return received[0]
        place = received[0]
        for each in received[1:]:
            place = place * self.num_shapes + each
        return self.number.take(place)

    def fits(self, output: Tensor, merged: Tensor) -> Tensor:
        """Return which outputs [B, N] fit the merged inputs [B, N] of other nodes, [B, N, N] bool."""
        target = merged.masked_fill(self.is_output, self.num_shapes - 1)
        return self.fits_target.take((output * (self.num_shapes + 1))[:, :, None] + target[:, None, :])


_Result = tuple[Shape, tuple[int, int, int]]  # output, parameters, multiply-adds, and 1 if it has parameters


class _Evaluator:
    """Output shapes and costs of operations."""

    def __init__(self, output: Shape, caps: Sequence[int], *, finds_weights: bool) -> None:
        self._output, self._applied = output, read_operation(head_of(output))
        self._caps, self._finds_weights, self._num = caps, finds_weights, 0

    def head(self, shape: Shape) -> tuple[int, int]:
        """Return the cost of the output node for inputs of this shape."""
        if shape.layout is Layout.TOKENS:
            return 0, 0
        aligned = self._output.with_channels(shape.channels) if self._output.positions else shape
        return self._applied.at({INPUT_PORT: aligned}).cost

    def __call__(self, applied: AppliedOperation, shapes: tuple[Shape, ...]) -> _Result | None:
        """Return output and cost, None if the operation does not fit the shapes at its ports or the caps."""
        settings, row, self._num = applied.settings, applied.row, self._num + 1
        if self._num > _MAX_EVALUATIONS:
            raise ValueError(_too_many(f"{_MAX_EVALUATIONS:,} pairs of an operation and a shape"))
        inputs = dict(zip(applied.required_ports, shapes, strict=True))
        try:
            result = row.infer_shape(inputs, settings)
        except ShapeError:
            return None
        if result.layout is Layout.TOKENS or (self._output.positions and result.layout is not self._output.layout):
            return None
        is_counted = [cap < NO_LIMIT for cap in self._caps]
        counted = probe(row, inputs, settings)
        num_parameters = counted.num_parameters if any(is_counted) or self._finds_weights else 0
        cost = num_parameters * is_counted[0], counted.multiply_adds if is_counted[1] else 0
        total = [a + b for a, b in zip(cost, self.head(result), strict=True)]
        return (result, (*cost, int(num_parameters > 0))) if is_within(total, self._caps) else None


def build_tables(
    choices: OperationChoices,
    inputs: Sequence[Shape],
    *,
    outputs: Shape,
    max_depth: int,
    caps: Sequence[int],
    finds_weights: bool = False,
) -> OperationTables:
    """Return the tables of all shapes that up to `max_depth` operations make out of the inputs.

    Args:
        choices: the operations.
        inputs: shapes of the inputs.
        outputs: shape of the output.
        max_depth: number of operations behind one another.
        caps: of parameters and multiply-adds.
        finds_weights: fill `has_weights` also without caps.

    Raises:
        ValueError: too many shapes.
    """
    evaluate = _Evaluator(outputs, caps, finds_weights=finds_weights)
    prefixes = choices.prefixes
    complete = [choices.next_attribute(prefix) is None for prefix in prefixes]
    applied = [choices.applied(p) if c else None for p, c in zip(prefixes, complete, strict=True)]
    distinct = list({id(a): a for a in applied if a is not None}.values())
    shapes, results = _reachable(evaluate, distinct, inputs, max_depth)
    operands, number = _operands(results, shapes, num_ports=choices.num_ports)
    number_of = {id(each): index for index, each in enumerate(distinct)}
    module = torch.tensor([*(number_of.get(id(a), -1) for a in applied), -1])
    output, cost = (each[module] for each in _of_operations(results, operands, shapes))
    cost, has_weights = cost[..., :2], cost[..., 2] > 0
    head = torch.tensor([*map(evaluate.head, shapes), (0, 0)])
    dims = tuple(dim for dim, cap in enumerate(caps) if cap < NO_LIMIT) or (0,)
    after = _after(choices, num_ends=len(inputs) + 1)
    child = torch.cat([torch.empty(len(prefixes) + 1, 0, dtype=torch.int64), *(each[:, :-1] for each in after[1:])], 1)
    return OperationTables(
        shapes=shapes,
        operands=operands,
        number=number,
        inputs=torch.tensor([shapes.index(shape) for shape in inputs]),
        child=child,
        after=after,
        open=torch.cat([~torch.tensor([*complete, True])[:, None], child < len(prefixes)], 1),
        output=output,
        cost=cost,
        module=module,
        has_weights=has_weights,
        head=head,
        adapter=_adapters(shapes),
        fits=_fits(shapes),
        dims=dims,
        completions=_completions(choices, output, torch.cat([cost[..., dims], head[output][..., dims]], -1)),
    )


_Results = list[dict[tuple[Shape, ...], _Result]]  # of each operation, by the shapes at its ports that it fits


def _reachable(
    evaluate: _Evaluator, operations: Sequence[AppliedOperation], inputs: Sequence[Shape], max_depth: int
) -> tuple[tuple[Shape, ...], _Results]:
    """Return all shapes of nodes, in ascending order of dominance, and the results of the operations that read them."""
    shapes, results = dict.fromkeys(inputs), _Results({} for _ in operations)
    new = frozenset(shapes)
    for _ in range(max_depth):
        for applied, fitting in zip(operations, results, strict=True):
            every = product(shapes, repeat=len(applied.required_ports))
            tried = {t: evaluate(applied, t) for t in every if not new.isdisjoint(t)}
            fitting |= {t: result for t, result in tried.items() if result is not None}
        outputs = dict.fromkeys(shape for fitting in results for shape, _ in fitting.values())
        new = outputs.keys() - shapes.keys()
        shapes |= outputs
        if len(shapes) > _MAX_SHAPES:
            raise ValueError(_too_many(f"{_MAX_SHAPES:,} shapes"))
    return tuple(sorted(shapes, key=_dominance)), results


def _operands(
    results: _Results, shapes: Sequence[Shape], *, num_ports: int
) -> tuple[tuple[tuple[Shape, ...], ...], Tensor]:
    """Return shapes and the tuples of shapes of results, and the table of their places."""
    single = tuple((shape,) for shape in shapes)
    if num_ports == 1:
        return single, torch.arange(len(shapes) + 1)
    if (len(shapes) + 1) ** num_ports > _MAX_TUPLES:
        raise ValueError(_too_many(f"{round(_MAX_TUPLES ** (1 / num_ports)):,} shapes, for {num_ports} inputs"))
    operands = tuple(dict.fromkeys((*single, *(operand for fitting in results for operand in fitting))))
    place = {shape: index for index, shape in enumerate(shapes, start=1)}
    number = torch.zeros((len(shapes) + 1,) * num_ports, dtype=torch.int64)
    for index, operand in enumerate(operands, start=1):
        number[(*(place[shape] for shape in operand), *(0,) * (num_ports - len(operand)))] = index
    return operands, number.flatten()


def _of_operations(
    results: _Results, operands: Sequence[tuple[Shape, ...]], shapes: Sequence[Shape]
) -> tuple[Tensor, Tensor]:
    """Return output shapes and costs of each operation, then of none, at each input, then at UNKNOWN."""
    number = {shape: index for index, shape in enumerate(shapes)}
    place = {operand: index for index, operand in enumerate(operands)}
    output = torch.full((len(results) + 1, len(operands) + 1), UNKNOWN)
    cost = torch.zeros(*output.shape, 3, dtype=torch.int64)
    for index, fitting in enumerate(results):
        places = torch.tensor([place[operand] for operand in fitting], dtype=torch.int64)
        output[index, places] = torch.tensor([number[shape] for shape, _ in fitting.values()], dtype=torch.int64)
        cost[index, places] = torch.tensor([each for _, each in fitting.values()], dtype=torch.int64).view(-1, 3)
    return output, cost


def _dominance(shape: Shape) -> tuple[bool, int, int]:
    """Return a key that is larger for a shape to which another can be aligned."""
    return shape.layout is Layout.VECTOR, -prod(shape.positions), _channels(shape)


def _channels(shape: Shape) -> int:
    """Return the number of channels, 1 of tokens."""
    return 1 if shape.layout is Layout.TOKENS else shape.channels


def _too_many(limit: str) -> str:
    return f"env.operation_graph: expected operations that reach at most {limit}; offer fewer values in choices"


def _after(choices: OperationChoices, *, num_ends: int) -> tuple[Tensor, ...]:
    """Return the prefix of each node type, then per attribute the one after each value; the last entry is for -1."""
    position = {prefix: index for index, prefix in enumerate(choices.prefixes)}
    none = len(position)
    itself = torch.arange(none + 1)[:, None]
    sizes = {attribute.name: len(attribute.values) for attribute in choices.attributes}
    after = {name: torch.cat([torch.full((none + 1, size), none), itself], 1) for name, size in sizes.items()}
    values = {attribute.name: attribute.values for attribute in choices.attributes}
    for prefix, index in position.items():
        if prefix.values:
            name, value = prefix.values[-1]
            parent = position[Prefix(prefix.operation, prefix.values[:-1])]
            after[name][parent, values[name].index(value)] = index
    return torch.tensor([*[none] * num_ends, *range(len(choices.operations)), none]), *after.values()


def _fits(shapes: Sequence[Shape]) -> Tensor:
    """Return which shapes can be aligned to which without a change of the second, [S, S] bool."""
    is_vector, is_tokens = (
        torch.tensor([shape.layout is layout for shape in shapes]) for layout in (Layout.VECTOR, Layout.TOKENS)
    )
    layout = torch.tensor([list(Layout).index(shape.layout) for shape in shapes])
    channels = torch.tensor([_channels(shape) for shape in shapes])
    num_axes = max(len(shape.positions) for shape in shapes)
    positions = torch.tensor([[*shape.positions, *[0] * (num_axes - len(shape.positions))] for shape in shapes])
    positions = positions.reshape(len(shapes), num_axes)
    smaller = (positions[None, :] <= positions[:, None]).all(-1) & (layout[None, :] == layout[:, None])
    fits = (is_vector[None, :] & ~is_tokens[:, None] | smaller) & (channels[:, None] <= channels[None, :])
    return torch.nn.functional.pad(fits, (0, 1, 0, 1))


def _adapters(shapes: Sequence[Shape]) -> Tensor:
    """Return the cost of the projection of the channels of one shape to another, [S, S, 2]."""
    channels = torch.tensor([_channels(shape) for shape in shapes])
    num_positions = torch.tensor([prod(shape.positions) for shape in shapes])
    changes = channels[:, None] != channels[None, :]
    parameters = channels[:, None] * channels[None, :] * changes
    cost = torch.stack([parameters, parameters * num_positions], -1)
    return torch.nn.functional.pad(cost, (0, 0, 0, 1, 0, 1))


def _completions(choices: OperationChoices, output: Tensor, cost: Tensor) -> Tensor:
    """Return the completions of each prefix that no other one undercuts; an impossible one exceeds every cap.

    Args:
        choices: the operations.
        output: [P, I] shape after a complete prefix.
        cost: [P, I, 2 D] limited costs of a complete prefix and of the output layer.
    """
    outputs, costs, prefixes = output.tolist(), cost.tolist(), choices.prefixes
    position = {prefix: index for index, prefix in enumerate(prefixes)}
    completions: list[list[set[tuple[int, ...]]]] = [[set() for _ in row] for row in outputs]
    for index, prefix in reversed(list(enumerate(prefixes))):  # longer prefixes are later
        parent = position.get(Prefix(prefix.operation, prefix.values[:-1])) if prefix.values else None
        for shape, number in enumerate(outputs[index]):
            if number != UNKNOWN:
                completions[index][shape].add(tuple(costs[index][shape]))
            completions[index][shape] = _pareto(completions[index][shape])
            if parent is not None:
                completions[parent][shape] |= completions[index][shape]
    width = max(1, *(len(points) for row in completions for points in row))
    never = (NEVER,) * cost.shape[-1]
    return torch.tensor([[[*p, *[never] * (width - len(p))] for p in row] for row in completions]).roll(1, 1)


def _pareto(points: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return the points without those that another one undercuts in every cost."""
    return {
        point
        for point in points
        if not any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)
    }
