"""Straight-line code of operation graphs: constructors in __init__ and statements in forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gflownet.graphs.operation import INPUT_PORT, WEIGHT_PORT, Operation
from gflownet.graphs.operation_shapes import MergePlan
from gflownet.graphs.tensor_shape import Adapter, Layout, Shape
from gflownet.graphs.vocabulary import activation
from gflownet.translation.activations import CodeActivation
from gflownet.translation.emit import Dialect, NodeEmitter, identifier, node_lines, outside_name, variable
from gflownet.translation.initial_code import initial_code
from gflownet.translation.operation_plan import OperationPlan, StepPlan
from gflownet.translation.plan import EdgePlan

_ELEMENTWISE = {"sum": "{a} + {b}", "mean": "{a} + {b}", "product": "{a} * {b}"}
_ELEMENTWISE |= {"max": "torch.maximum({a}, {b})", "min": "torch.minimum({a}, {b})"}


def has_own_build(row: type[Operation]) -> bool:
    """Return whether a row makes its module by a method, not by an expression."""
    return getattr(row.build, "__func__", None) is not Operation.build.__func__


def own_build_name(step: StepPlan) -> str:
    """The function that makes the module of a row with its own `build`, in generated code."""
    return f"build_{step.label}"


@dataclass(frozen=True)
class ClassWriter:
    """The source of the class of one plan."""

    plan: OperationPlan
    dialect: Dialect
    class_names: Mapping[str, str] = field(default_factory=dict)  # by the key of a body
    # Keywords of 0-d tensors. The dtype of the model is set at the end: float64 until then keeps numbers exact.
    scalar_option: str = ", dtype=torch.float64"

    def initial_lines(self) -> list[str]:
        """The statements of __init__ after super().__init__(): modules and parameters in the order of computation."""
        return [line for step in self.plan.steps for line in self._initial(step)]

    def forward_lines(self) -> list[str]:
        """The statements from the arguments to `return`."""
        lines = [line for step in self.plan.steps for line in self._computed(step)]
        outputs = [variable(node_id) for node_id, _ in self.plan.outputs]
        if len(outputs) == 1:
            return [*lines, f"return {outputs[0]}"]
        joined = f"({', '.join(outputs)})"
        return [*lines, f"return torch.cat({joined}, dim=1)" if self.plan.is_concatenated else f"return {joined}"]

    def arguments(self) -> list[str]:
        """The variables that forward takes."""
        return [variable(node_id) for _, node_id, _ in self.plan.inputs]

    def own_build(self, step: StepPlan) -> str:
        """The expression that makes the module of a row with its own `build`."""
        return f"{own_build_name(step)}()"

    def _initial(self, step: StepPlan) -> list[str]:
        if step.ordinary is not None:
            return _ordinary_parameters(step, self.scalar_option)
        lines = []
        for port, merge in step.shapes.inputs.items():
            for edge, adapter in zip(merge.edges, merge.adapters, strict=True):
                if adapter.changes_channels and merge.is_learned:
                    lines.append(f"self.adapt_{step.edge_labels[edge.edge_id]} = {_projection(adapter)}")
                if step.shapes.is_weighted(port):
                    lines.append(self._scalar(f"weight_{step.edge_labels[edge.edge_id]}", edge.weight))
        lines += self._module(step)
        if step.shapes.has_edge_weights:
            lines.append(self._scalar(identifier(f"bias_{step.node_id}"), step.shapes.node.bias))
        return lines

    def _scalar(self, name: str, value: float) -> str:
        """The statement that makes a 0-d parameter."""
        return f"self.{name} = nn.Parameter(torch.tensor({value!r}{self.scalar_option}))"

    def _module(self, step: StepPlan) -> list[str]:
        if not step.is_first:
            return []
        if step.bodies:
            calls = [f"{self.class_names[body.key]}()" for body in step.bodies]
            if len(calls) == 1 or step.is_shared:
                return [f"self.{step.label} = {calls[0]}"]
            if len(set(calls)) == 1:
                return [f"self.{step.label} = nn.ModuleList([{calls[0]} for _ in range({len(calls)})])"]
            return [f"self.{step.label} = nn.ModuleList([{', '.join(calls)}])"]
        assert step.shapes.operation is not None
        row, settings = step.shapes.operation.row, step.shapes.operation.settings
        if has_own_build(row):
            return [f"self.{step.label} = {self.own_build(step)}"]
        made = row.constructor(step.input_shapes, settings)
        return [f"self.{step.label} = {made}"] if made else []

    def _computed(self, step: StepPlan) -> list[str]:
        if step.ordinary is not None:
            return _ordinary_lines(step, self.dialect)
        lines: list[str] = []
        values = {}
        for port, merge in step.shapes.inputs.items():
            if port == WEIGHT_PORT and step.tied_to:
                values[port] = self.dialect.weight(step.tied_to)
            else:
                more, values[port] = self._merged(step, port, merge)
                lines += more
        result = variable(step.node_id)
        if step.bodies:
            return [*lines, *self._repeated(step, values), *self._activated(step, result)]
        assert step.shapes.operation is not None
        row, settings = step.shapes.operation.row, step.shapes.operation.settings
        call = row.call(step.input_shapes, settings)
        expression = call.format(module=self.dialect.module(step.label), **values)
        if step.shapes.has_edge_weights:
            return [*lines, f"{result} = {expression}", *self._activated(step, result)]
        return [*lines, f"{result} = {_activation(step, expression)}"]

    def _activated(self, step: StepPlan, name: str) -> list[str]:
        """The statement that adds the bias to a variable and applies the activation; none for neither."""
        has_bias = step.shapes.has_edge_weights
        bias = self.dialect.parameter(identifier(f"bias_{step.node_id}")) if has_bias else ""
        value = _activation(step, f"{name} + {bias}" if bias else name)
        return [f"{name} = {value}"] if value != name else []

    def _repeated(self, step: StepPlan, values: Mapping[str, str]) -> list[str]:
        """The calls of a subgraph; each repetition reads the one before at its first port named `input`."""
        result, module = variable(step.node_id), self.dialect.module(step.label)
        first = ", ".join(values[port] for port in step.ports)
        if len(step.bodies) == 1:
            return [f"{result} = {module}({first})"]
        again = ", ".join(result if port == INPUT_PORT else values[port] for port in step.ports)
        start = [f"{result} = {values[INPUT_PORT]}"] if INPUT_PORT in step.ports else []
        loop = f"for _ in range({len(step.bodies)}):" if step.is_shared else f"for block in {module}:"
        return [*start, loop, f"    {result} = {module if step.is_shared else 'block'}({again})"]

    def _merged(self, step: StepPlan, port: str, merge: MergePlan) -> tuple[list[str], str]:
        """Return the statements before the merged value of a port, and a name for it."""
        name = variable(step.node_id).replace("x", "z" if port == INPUT_PORT else f"{port}_", 1)
        weighted = step.shapes.is_weighted(port)
        values = [self._message(step, merge, position, is_weighted=weighted) for position in range(len(merge.edges))]
        if len(values) == 1:
            return ([], values[0]) if values[0].isidentifier() else ([f"{name} = {values[0]}"], name)
        if merge.merge == "concat":
            return [f"{name} = torch.cat(({', '.join(values)}), dim={merge.concat_axis + 1})"], name
        template, total, lines = _ELEMENTWISE[merge.merge], values[0], []
        # One statement per input: Python parses no more than some hundred nested calls.
        for value in values[1:]:
            lines.append(f"{name} = {template.format(a=total, b=value)}")
            total = name
        if merge.merge == "mean":
            lines.append(f"{name} = {name} / {len(values)}")
        return lines, name

    def _message(self, step: StepPlan, merge: MergePlan, position: int, *, is_weighted: bool) -> str:
        """The aligned and weighted value of one in-edge."""
        edge, adapter = merge.edges[position], merge.adapters[position]
        label = step.edge_labels[edge.edge_id]
        value = pooled(variable(edge.source), adapter)
        if adapter.changes_channels and merge.is_learned:
            value = f"{self.dialect.module(f'adapt_{label}')}({value})"
        elif adapter.changes_channels:
            value = _padded(value, adapter)
        return f"{value} * {self.dialect.parameter(f'weight_{label}')}" if is_weighted else value


def pooled(value: str, adapter: Adapter) -> str:
    """The expression of a value with its positions averaged to those of the target, or with axes of size 1."""
    source, target = adapter.source, adapter.target
    if adapter.is_broadcast and source.layout is not target.layout:
        axes = [":" if axis == target.channel_axis else "None" for axis in range(target.channel_axis + 1)]
        return f"{value}[:, {', '.join(axes + ['None'] * (len(target.sizes) - len(axes)))}]"
    if adapter.pools_to_vector:
        return f"{value}.mean(dim={tuple(a + 1 for a in range(len(source.sizes)) if a != source.channel_axis)})"
    if not adapter.pools_positions:
        return value
    before, after = source.positions, target.positions
    sizes, function = after, f"adaptive_avg_pool{len(after)}d"
    if not any(one % other for one, other in zip(before, after, strict=True)):
        sizes, function = (
            tuple(one // other for one, other in zip(before, after, strict=True)),
            f"avg_pool{len(after)}d",
        )
    argument = sizes[0] if len(set(sizes)) == 1 else sizes
    if source.layout is Layout.SEQUENCE:
        return f"F.{function}({value}.mT, {argument}).mT"
    return f"F.{function}({value}, {argument})"


def _padded(value: str, adapter: Adapter) -> str:
    """The expression of a value with zeros for the missing channels."""
    axes_after = len(adapter.target.sizes) - 1 - adapter.target.channel_axis
    missing = adapter.target.channels - adapter.source.channels
    return f"F.pad({value}, {(*(0, 0) * axes_after, 0, missing)})"


def _projection(adapter: Adapter) -> str:
    source, target = adapter.source.channels, adapter.target.channels
    match adapter.target.layout:
        case Layout.IMAGE:
            return f"nn.Conv2d({source}, {target}, 1, bias=False)"
        case Layout.SIGNAL:
            return f"nn.Conv1d({source}, {target}, 1, bias=False)"
        case _:
            return f"nn.Linear({source}, {target}, bias=False)"


def _activation(step: StepPlan, z: str) -> str:
    name, shape = step.shapes.node.activation_function, step.shapes.output
    kind = activation(name)
    if not issubclass(kind, CodeActivation):
        return f"{outside_name(name)}.forward({z})"
    is_channels_first = shape.layout in (Layout.SIGNAL, Layout.IMAGE)
    return (kind.channels_first_code if is_channels_first and kind.channels_first_code else kind.code).format(z=z)


class _OrdinaryEmitter(NodeEmitter):
    """A node without operation: sequences are flattened to rows [B T, D]."""

    def __init__(self, step: StepPlan, dialect: Dialect) -> None:
        assert step.ordinary is not None
        super().__init__(step.ordinary, dialect)
        (merge,) = step.shapes.inputs.values()
        self.adapters = dict(zip((edge.edge_id for edge in merge.edges), merge.adapters, strict=True))

    def source(self, edge: EdgePlan) -> str:
        adapter = self.adapters[edge.edge_id]
        value = pooled(variable(edge.source), adapter)
        return f"{value}.flatten(0, 1)" if adapter.target.layout is Layout.SEQUENCE else value


def _ordinary_lines(step: StepPlan, dialect: Dialect) -> list[str]:
    emitter, node, shape = _OrdinaryEmitter(step, dialect), step.ordinary, step.shapes.output
    assert node is not None
    lines = node_lines(emitter)
    if node.attributes.get("dropout_p"):
        lines = [f"x = {emitter.source(node.edges[0])}", *lines]  # its rows are counted
    if shape.layout is Layout.SEQUENCE:
        name = variable(node.node_id)
        lines.append(f"{name} = {name}.unflatten(0, (-1, {shape.positions[0]}))")
    return lines


def _ordinary_parameters(step: StepPlan, scalar_option: str) -> list[str]:
    assert step.ordinary is not None
    (merge,) = step.shapes.inputs.values()
    values = {f"weight_{step.edge_labels[edge.edge_id]}": edge.weight for edge in merge.edges}
    values[f"bias_{step.node_id}"] = step.shapes.node.bias
    lines = []
    for parameter in step.ordinary.parameters():
        option = "" if parameter.shape else scalar_option
        lines.append(f"self.{parameter.module or parameter.name} = {initial_code(parameter, values, option)}")
    return lines


def shape_text(shape: Shape) -> str:
    """The sizes of a shape with the batch, for messages: [B, 3, 8, 8]."""
    return f"[{', '.join(['B', *map(str, shape.sizes)])}]"
