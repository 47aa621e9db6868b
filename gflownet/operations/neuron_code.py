"""Straight-line Python for neurons, and the names of generated code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from gflownet.operations.activations import Cell, CodeActivation
from gflownet.operations.neuron import EdgePlan, NeuronPlan
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import Activation, Aggregation


@dataclass(frozen=True)
class Dialect:
    """How generated code reads parameters and runs recurrent cells."""

    parameter: Callable[[str], str]  # 0-d parameter or query
    module: Callable[[str], str]
    is_sequence: bool = False  # rows are all time steps, one after the other
    scaled: Mapping[str, str] = field(default_factory=dict)  # by edge label: variables that hold weight times matrix
    # Whether means over positions are taken over the first axes, so that their gradients are in channels_last.
    moves_channels: bool = False
    num_copies: int = 1  # of one model, whose channels are next to each other in each value
    is_padded: bool = False  # `mask` [B, 1, T] is 1 where the input, a signal, has values
    calls_layers: bool = True  # False: `project` scales the weight of an untouched linear layer

    def weight(self, name: str) -> str:
        """The weight matrix of a submodule."""
        return f"{self.module(name)}.weight"

    def projected(self, name: str, x: str, total: str, factor: str = "", *, scales_input: bool = False) -> str:
        """The expression of total + factor * layer(x), see `project`; `total` and `factor` may be empty."""
        layer = self.module(name)
        if not self.calls_layers:
            options = {"total": total, "factor": factor, "scales_input": scales_input}
            return f"project({', '.join([layer, x, *(f'{key}={value}' for key, value in options.items() if value)])})"
        y = f"{layer}({x})"
        if not factor:
            return f"{total} + {y}" if total else y
        return f"torch.addcmul({total}, {y}, {factor})" if total else f"{y} * {factor}"


FAST = Dialect(
    # Straight from the dicts of nn.Module: its __getattr__ costs as much as a small kernel.
    parameter=lambda name: f'p["{name}"]',
    module=lambda name: f'm["{name}"]',
    moves_channels=True,
    calls_layers=False,
)
SEQUENCE = replace(FAST, is_sequence=True)


@lru_cache(maxsize=2**12)
def identifier(name: str) -> str:
    """A parameter's name as a Python identifier (ids may be negative)."""
    return name.replace("-", "m")


def _attribute(name: str) -> str:
    return f"self.{identifier(name)}"


PLAIN = Dialect(parameter=_attribute, module=_attribute)


@lru_cache(maxsize=2**12)
def variable(node_id: int) -> str:
    """The variable that holds a node's output [B, size]."""
    return identifier(f"x{node_id}")


def slot_name(kind: str, node_id: int) -> str:
    """The variable that holds a slot's tensor of the previous step [B, size]."""
    return identifier(f"{kind}{node_id}")


def read_value(node_id: int, *, is_late: bool) -> str:
    """The variable with a node's output of this time step, or of the one before."""
    return slot_name("output", node_id) if is_late else variable(node_id)


def outside_name(name: str) -> str:
    """The identifier of a user's class `module:Class` in generated code, different for different names."""
    return "user_" + name.replace("_", "_u").replace(".", "_d").replace(":", "_c")


def outside_classes(neurons: Iterable[NeuronPlan]) -> dict[str, Any]:
    """The user's classes `module:Class` that the code of neurons calls, by their identifier in it."""
    classes = [
        each
        for n in neurons
        for each in ((n.activation, outside_value(n.activation_class)), (n.aggregation, n.aggregation_class))
    ]
    return {outside_name(name): each for name, each in classes if ":" in name}


def outside_value(kind: type[Activation]) -> Any:
    """What the identifier of an activation by name stands for: its class, or the function or module itself."""
    return kind.forward if kind.is_function else kind


def outside_activation(name: str, kind: type[Activation], z: str) -> str:
    """The expression of the output of an activation by name."""
    return f"{outside_name(name)}{'' if kind.is_function else '.forward'}({z})"


class NodeEmitter:
    """Statements that compute one node."""

    def __init__(self, node: NeuronPlan, dialect: Dialect) -> None:
        self.node = node
        self.dialect = dialect
        self.bias = dialect.parameter(f"bias_{node.label}")

    def name(self, word: str) -> str:
        """The name of a variable of this node."""
        return identifier(f"{word}{self.node.node_id}")

    def per_edge(self, word: str) -> list[str]:
        """The expressions of one 0-d parameter per in-edge: weight, gate or router."""
        return [self.dialect.parameter(f"{word}_{edge.label}") for edge in self.node.edges]

    def messages(self) -> list[str]:
        """One expression [B, d] per in-edge: w * (P x)."""
        weights = self.per_edge("weight")
        return [self.added(edge, weight, "") for edge, weight in zip(self.node.edges, weights, strict=True)]

    def stacked(self) -> str:
        """The statement that stacks the messages to [B, J, d] under the name `messages`."""
        return f"{self.name('messages')} = torch.stack({group(self.messages())}, dim=1)"

    def weighted_sum(self, factors: list[str], start: str) -> tuple[list[str], str]:
        """Statements and expression of start + sum_j factor_j * (P_j x_j); `start` may be empty."""
        total, name, lines = start, self.name("sum"), []
        # Projected edges first: their first product takes the bias at no cost.
        pairs = sorted(zip(self.node.edges, factors, strict=True), key=lambda pair: not pair[0].is_projected)
        for position, (edge, factor) in enumerate(pairs):
            lines.append(f"{name} = {self.added(edge, factor, total, is_matrix=position > 0)}")
            total = name
        # The last line is the expression itself.
        return lines[:-1], lines[-1].partition(" = ")[2]

    def added(self, edge: EdgePlan, factor: str, total: str, *, is_matrix: bool = False) -> str:
        """The expression of total + factor * (P x); `is_matrix`: `total` is [B, d], not a 0-d bias."""
        x = self.source(edge)
        if not edge.is_projected:
            return f"torch.addcmul({total}, {x}, {factor})" if total else f"{x} * {factor}"
        scales_input = not self.node.scales_matrix(edge)
        general = self.dialect.projected(f"proj_{edge.label}", x, total, factor, scales_input=scales_input)
        matrix = self.dialect.scaled.get(edge.label)  # None in a model with a touched layer
        if matrix is None or factor != self.dialect.parameter(f"weight_{edge.label}"):
            return general
        if is_matrix and total:
            return f"({general} if {matrix} is None else torch.addmm({total}, {x}, {matrix}.t()))"
        return f"({general} if {matrix} is None else F.linear({', '.join(filter(None, (x, matrix, total)))}))"

    def source(self, edge: EdgePlan) -> str:
        """The expression [B, size] of the source of an edge."""
        return read_value(edge.source, is_late=edge.is_recurrent)

    def activated(self, z: str) -> str:
        """The statement from the pre-activation `z` [B, size] to the node's variable, and its new state."""
        n, kind = self.node.node_id, self.node.activation_class
        if issubclass(kind, Cell):
            template = kind.sequence if self.dialect.is_sequence else kind.step
            state = {slot: slot_name(slot, n) for slot in kind.slots}
            layer = self.dialect.module(f"{self.node.activation}_{n}")
            return template.format(y=variable(n), z=z, layer=layer, new_cell=self.name("new_cell"), **state)
        if issubclass(kind, CodeActivation):
            return f"{variable(n)} = {kind.code.format(z=z)}"
        return f"{variable(n)} = {outside_activation(self.node.activation, kind, z)}"

    def aggregated(self) -> Aggregate:
        """The code from the sources' variables to the aggregate."""
        node, kind = self.node, self.node.aggregation_class
        if issubclass(kind, CodeAggregation):
            return kind.emit(self)
        keywords = {key: repr(thawed(value)) for key, value in node.settings if key != "post_projection"}
        if kind.edge_parameter:
            keywords[kind.edge_parameter] = f"torch.stack({group(self.per_edge(kind.edge_parameter))})"
        if node.query_shape:
            keywords["query"] = self.dialect.parameter(f"q_{node.label}")
        arguments = ", ".join([self.name("messages"), *(f"{key}={value}" for key, value in keywords.items())])
        return Aggregate([self.stacked()], f"{outside_name(node.aggregation)}.forward({arguments})")


@dataclass(frozen=True)
class Aggregate:
    """The code of one aggregation."""

    lines: list[str]
    result: str  # the expression of the aggregate [B, aggregated size]
    has_bias: bool = False  # whether the bias is added already


class CodeAggregation(Aggregation):
    """An aggregation as straight-line code."""

    @classmethod
    def emit(cls, emitter: NodeEmitter) -> Aggregate:
        """The code of one node."""
        raise NotImplementedError


def group(expressions: list[str]) -> str:
    """The expressions as a tuple."""
    return f"({', '.join(expressions)},)" if len(expressions) == 1 else f"({', '.join(expressions)})"


def node_lines(emitter: NodeEmitter) -> list[str]:
    """From the sources' variables to the node's own: act(post(aggregate) + bias)."""
    node, dialect = emitter.node, emitter.dialect
    if not node.edges:
        # An unfed node outputs act(bias).
        return [emitter.activated(f"{emitter.bias}.expand(x.shape[0], {node.output_size})")]
    code = emitter.aggregated()
    if node.has_post:
        assert not code.has_bias, "the bias comes after post"
        return [*code.lines, emitter.activated(dialect.projected(f"post_{node.label}", code.result, emitter.bias))]
    return [*code.lines, emitter.activated(code.result if code.has_bias else f"{code.result} + {emitter.bias}")]
