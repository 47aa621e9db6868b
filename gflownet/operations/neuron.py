"""A neuron: act(post(aggregate(messages)) + bias), with a projection and a scalar weight per in-edge. No torch.

It is the operation of a node that names none. Its ports are the places of its in-edges: "0", "1", ... Letters: B batch,
J in-edges, d message width, D output width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from gflownet.operations.activations import Cell
from gflownet.operations.code import Dialect, NodeCode, group, outside_name
from gflownet.operations.operation import Operation
from gflownet.operations.parameters import Initial, ParameterPlan, linear_parameter
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError, join
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import Activation, Aggregation, activation, aggregation

USUAL_BATCH = 64


@dataclass(frozen=True)
class NeuronSizes:
    """The classes of a neuron and the widths around its aggregation."""

    activation: type[Activation]
    aggregation: type[Aggregation]
    message: int  # d, the width of every message
    query: tuple[int, ...]  # the shape of the learned query, empty for none
    aggregated: int  # before post
    has_post: bool  # whether a linear layer follows the aggregation; an unfed concat has nothing to project
    sources: tuple[int, ...]  # widths, by in-edge
    projected: tuple[bool, ...]  # whether a linear layer maps the source to the message, by in-edge
    elementwise_flops: int  # besides matrix products: 1 per element, activations included


class Neuron(Operation):
    """Settings: features, activation, aggregation and projection, and `options` of the aggregation."""

    @classmethod
    def sizes(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> NeuronSizes:
        kind, features, options = aggregation(settings["aggregation"]), settings["features"], settings["options"]
        width, always = kind.message_size(options, features), settings["projection"] == "always"
        sources = tuple(shape.channels for shape in inputs.values())
        aggregated = kind.aggregated_size(options, width, len(sources))
        has_post = aggregated > 0 and (aggregated != features or bool(options.get("post_projection")))
        projected = tuple(always or size != width for size in sources)
        query, act = kind.query_shape(options, width), activation(settings["activation"])
        flops = len(sources) * width + features  # weights of the edges, bias
        flops += kind.elementwise_flops(options, width, len(sources)) + act.elementwise_flops(features)
        flops *= _num_rows(inputs)
        return NeuronSizes(act, kind, width, query, aggregated, has_post, sources, projected, flops)

    @classmethod
    def infer_shape(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Shape:
        target, name = join([*inputs.values()]) if inputs else Shape((1,), Layout.VECTOR), settings["activation"]
        if target.layout not in (Layout.VECTOR, Layout.SEQUENCE):
            raise ShapeError(f"expected an operation or a subgraph for a {target.layout}, got none")
        if target.layout is Layout.SEQUENCE and activation(name).max_parameters(1):
            raise ShapeError(f"expected an activation without state of a node that maps tensors, got {name}")
        return target.with_channels(settings["features"])

    @classmethod
    def state(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Mapping[str, tuple[int, ...]]:
        kind = activation(settings["activation"])
        kinds = kind.slots if issubclass(kind, Cell) else ()
        return {name: (1 if name == "token" else settings["features"],) for name in kinds}

    @classmethod
    def parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> Iterator[ParameterPlan]:
        sizes, features = cls.sizes(inputs, settings), settings["features"]
        yield ParameterPlan("bias", (), Initial.BIAS)
        for place, size in enumerate(sizes.sources):
            yield ParameterPlan("weight", (), Initial.WEIGHT, owner=place)
            if word := sizes.aggregation.edge_parameter:
                yield ParameterPlan(word, (), Initial.ZERO, owner=place)
            if sizes.projected[place]:
                yield linear_parameter("proj", size, sizes.message, owner=place)
        if sizes.query:
            yield ParameterPlan("q", sizes.query, Initial.QUERY)
        if sizes.has_post:
            yield linear_parameter("post", sizes.aggregated, features)
        if issubclass(sizes.activation, Cell):
            yield from sizes.activation.parameters(settings["activation"], features)

    @classmethod
    def num_parameters(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        return sum(prod(each.shape) for each in cls.parameters(inputs, settings))

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        sizes, features = cls.sizes(inputs, settings), settings["features"]
        total = sum(size for size, is_projected in zip(sizes.sources, sizes.projected, strict=True) if is_projected)
        total = total * sizes.message + sizes.aggregation.multiply_adds(settings["options"], sizes.message, len(inputs))
        total += sizes.aggregated * features if sizes.has_post and inputs else 0
        return (total + sizes.activation.multiply_adds(features)) * _num_rows(inputs)

    @classmethod
    def statements(cls, code: NodeCode) -> list[str]:
        return NeuronCode(code.node, code.values, code.dialect).lines()


def _num_rows(inputs: Mapping[str, Shape]) -> int:
    """Return the number of positions."""
    return prod(next(iter(inputs.values())).positions) if inputs else 1


def scales_matrix(node: Any, place: int) -> bool:
    """Return whether the weight of a projected in-edge multiplies its matrix, not its source.

    The cheaper factor at a usual batch. From an input it is always the matrix, because dL/dw would otherwise cost the
    input's gradient.
    """
    return node.inputs[f"{place}"].reads_input or node.sizes.message <= USUAL_BATCH


class NeuronCode(NodeCode):
    """The statements of a neuron; sequences are flattened to rows [B T, D]."""

    def __init__(self, node: Any, values: Mapping[str, str], dialect: Dialect) -> None:
        super().__init__(node, values, dialect)
        self.sizes: NeuronSizes = node.sizes
        self.settings: Mapping[str, Any] = node.operation.settings
        self.options: Mapping[str, Any] = self.settings["options"]  # of the aggregation
        is_sequence = node.output.layout is Layout.SEQUENCE
        self.sources = [f"{value}.flatten(0, 1)" if is_sequence else value for value in values.values()]
        self.rows = f"{self.sources[0] if values else dialect.argument}.shape[0]"  # B

    def lines(self) -> list[str]:
        """From the sources to the node's own variable: act(post(aggregate) + bias)."""
        positions = self.node.output.positions
        if not self.sources:  # an unfed node outputs act(bias)
            return self.activated(f"{self.bias}.expand({self.rows}, {self.settings['features']})")
        code = self.aggregated()
        z = code.result if code.has_bias else f"{code.result} + {self.bias}"
        if self.sizes.has_post:
            assert not code.has_bias, "the bias comes after post"
            z = self.dialect.projected(self.node.named("post"), code.result, self.bias)
        shaped = [f"{self.result} = {self.result}.unflatten(0, (-1, {size}))" for size in positions]
        return [*code.lines, *self.activated(z), *shaped]

    def per_edge(self, word: str) -> list[str]:
        """The expressions of one 0-d parameter per in-edge: weight, gate or router."""
        return [self.dialect.parameter(self.node.named(word, edge)) for edge in self.node.edges]

    def messages(self) -> list[str]:
        """One expression [B, d] per in-edge: w * (P x)."""
        return [self.added(place, weight, "") for place, weight in enumerate(self.per_edge("weight"))]

    def stacked(self) -> str:
        """The statement that stacks the messages to [B, J, d] under the name `messages`."""
        return f"{self.name('messages')} = torch.stack({group(self.messages())}, dim=1)"

    def weighted_sum(self, factors: Sequence[str], start: str) -> tuple[list[str], str]:
        """Statements and expression of start + sum_j factor_j * (P_j x_j); `start` may be empty."""
        total, name, lines = start, self.name("sum"), []
        # Projected edges first: their first product takes the bias at no cost.
        for position, place in enumerate(sorted(range(len(factors)), key=lambda each: not self.sizes.projected[each])):
            lines.append(f"{name} = {self.added(place, factors[place], total, is_matrix=position > 0)}")
            total = name
        # The last line is the expression itself.
        return lines[:-1], lines[-1].partition(" = ")[2]

    def added(self, place: int, factor: str, total: str, *, is_matrix: bool = False) -> str:
        """The expression of total + factor * (P x); `is_matrix`: `total` is [B, d], not a 0-d bias."""
        x, edge = self.sources[place], self.node.edges[place]
        if not self.sizes.projected[place]:
            return f"torch.addcmul({total}, {x}, {factor})" if total else f"{x} * {factor}"
        layer, scales_input = self.node.named("proj", edge), not scales_matrix(self.node, place)
        general = self.dialect.projected(layer, x, total, factor, scales_input=scales_input)
        matrix = self.dialect.scaled.get(layer)  # None in a model with a touched layer
        if matrix is None or factor != self.dialect.parameter(self.node.named("weight", edge)):
            return general
        if is_matrix and total:
            return f"({general} if {matrix} is None else torch.addmm({total}, {x}, {matrix}.t()))"
        return f"({general} if {matrix} is None else F.linear({', '.join(filter(None, (x, matrix, total)))}))"

    def aggregated(self) -> Aggregate:
        """The code from the sources' variables to the aggregate."""
        kind = self.sizes.aggregation
        if issubclass(kind, CodeAggregation):
            return kind.emit(self)
        keywords = {key: repr(thawed(value)) for key, value in self.options.items() if key != "post_projection"}
        if kind.edge_parameter:
            keywords[kind.edge_parameter] = f"torch.stack({group(self.per_edge(kind.edge_parameter))})"
        if self.sizes.query:
            keywords["query"] = self.dialect.parameter(self.node.named("q"))
        arguments = ", ".join([self.name("messages"), *(f"{key}={value}" for key, value in keywords.items())])
        return Aggregate([self.stacked()], f"{outside_name(self.settings['aggregation'])}.forward({arguments})")


@dataclass(frozen=True)
class Aggregate:
    """The code of one aggregation."""

    lines: list[str]
    result: str  # the expression of the aggregate [B, aggregated size]
    has_bias: bool = False  # whether the bias is added already


class CodeAggregation(Aggregation):
    """An aggregation as straight-line code."""

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        """The code of one node."""
        raise NotImplementedError
