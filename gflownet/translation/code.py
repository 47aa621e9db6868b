"""Straight-line code of a plan: constructors in __init__, and statements of one time step or a whole sequence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from keyword import iskeyword

from gflownet.graphs.operation_shapes import MergePlan
from gflownet.graphs.typed import Apply, StateSlot, TypedGraph, TypedNode
from gflownet.operations.activations import CodeActivation
from gflownet.operations.neuron import EdgePlan, NeuronPlan
from gflownet.operations.neuron_code import (
    Dialect,
    NodeEmitter,
    group,
    identifier,
    node_lines,
    outside_activation,
    read_value,
    slot_name,
    variable,
)
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT, Category, Operation
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Adapter, Layout, Shape
from gflownet.operations.vocabulary import activation

_OVER_POSITIONS = re.compile(r"\{input\}(\.mT)?\.(mean|a(max))\(dim=\(\d,\)\)")
_ELEMENTWISE = {"sum": "{a} + {b}", "mean": "{a} + {b}", "product": "{a} * {b}"}
_ELEMENTWISE |= {"max": "torch.maximum({a}, {b})", "min": "torch.minimum({a}, {b})"}


def has_own_build(row: type[Operation]) -> bool:
    """Return whether a row makes its module by a method, not by an expression."""
    return getattr(row.build, "__func__", None) is not Operation.build.__func__


def class_name(plan: TypedGraph) -> str:
    """Return a class name for a plan: of its subgraph or composite in camel case."""
    words = re.findall(r"[A-Za-z0-9]+", plan.name)
    name = "".join(word[0].upper() + word[1:] for word in words) or "TranslatedModel"
    return name if name.isidentifier() and not iskeyword(name) else f"Block{name}"


def own_build_name(step: TypedNode) -> str:
    """The function that makes the module of a row with its own `build`, in generated code."""
    return f"build_{step.label}"


@dataclass(frozen=True)
class ClassWriter:
    """The source of the class of one plan."""

    plan: TypedGraph
    dialect: Dialect
    class_names: Mapping[str, str] = field(default_factory=dict)  # by the key of a body

    def initial_lines(self) -> list[str]:
        """The statements of __init__ after super().__init__(): modules and parameters in the order of computation."""
        if self.plan.is_dense:
            return self.added(self.plan.steps)
        return [line for step in self.plan.steps for line in self._initial(step)]

    def added(self, steps: Sequence[TypedNode]) -> list[str]:
        """The statements that add the parameters of the next steps, besides those of modules."""
        raise NotImplementedError

    def step_lines(self) -> list[str]:
        """The statements of one time step, from the arguments and the variables of slots to `y` and `state`."""
        state = [self._new_state(slot) for slot in self.plan.slots]
        return [*self._computed_lines(), f"state = {group(state)}"] if state else self._computed_lines()

    def body_lines(self) -> list[str]:
        """The statements of a time step from the arguments and `state`, with memory format and autocast of a plan."""
        plan, arguments, lines = self.plan, self.arguments(), self.step_lines()
        images = [name for name, shape in plan.arguments if plan.channels_last and shape.layout is Layout.IMAGE]
        head = [f"{name} = {name}.contiguous(memory_format=torch.channels_last)" for name in images]
        if plan.autocast:  # `y` is float32
            is_float = [shape.layout is not Layout.TOKENS for _, shape in plan.outputs]
            is_tuple = len(is_float) > 1 and not plan.is_concatenated
            names = [f"y[{place}]" for place in range(len(is_float))] if is_tuple else ["y"]
            casts = [f"{name}.float()" if each else name for name, each in zip(names, is_float, strict=False)]
            head.append(f"with torch.autocast({arguments[0]}.device.type, dtype=torch.{plan.autocast}):")
            lines = [*(f"    {line}" for line in lines), f"y = ({', '.join(casts)})" if is_tuple else f"y = {casts[0]}"]
        return [*self.unpacked(), *head, *lines]

    def unpacked(self) -> list[str]:
        """The statement that takes the variables of slots out of `state`; none without state."""
        names = [slot_name(slot.kind, slot.node_id) for slot in self.plan.slots]
        return [f"{group(names)} = state"] if names else []

    def sequence_lines(self) -> list[str]:
        """The statements from `x` [T B, F], time by time, `batch` and the variables of slots to `y` [T B, O] and state.

        For plans without recurrent edges: each node computes all time steps before the next node.
        """
        lines = replace(self, dialect=replace(self.dialect, is_sequence=True))._computed_lines()
        return [*lines, f"state = {group([_last_state(slot) for slot in self.plan.slots])}"]

    def _computed_lines(self) -> list[str]:
        """The statements from the arguments to `y`."""
        groups = self.stacked_matrices()
        scaled = {
            label: f"M{place}_{index}" for place, labels in enumerate(groups) for index, label in enumerate(labels)
        }
        writer = replace(self, dialect=replace(self.dialect, scaled=scaled)) if scaled else self
        lines = [*(self._column_lines() if self.plan.is_dense else ())]
        lines += [f"mask = {self.arguments()[0]}[:, -1:]"] if self.dialect.is_padded and not self.plan.name else []
        lines += [self._stacked_line(place, labels) for place, labels in enumerate(groups)]
        lines += [line for step in self.plan.live_steps for line in writer._computed(step)]
        outputs = [variable(node_id) for node_id, _ in self.plan.outputs]
        if len(outputs) == 1:
            return [*lines, f"y = {outputs[0]}"]
        joined = f"({', '.join(outputs)})"
        return [*lines, f"y = torch.cat({joined}, dim=-1)" if self.plan.is_concatenated else f"y = {joined}"]

    def stacked_matrices(self) -> list[list[str]]:
        """Return the labels of edges whose matrices, of one size, are scaled by their weights in one product."""
        return []

    def _stacked_line(self, place: int, labels: Sequence[str]) -> str:
        """The statement that scales the matrices of a group."""
        names = ", ".join(f"M{place}_{index}" for index in range(len(labels)))
        layers = ", ".join(self.dialect.module(f"proj_{label}") for label in labels)
        weights = ", ".join(self.dialect.parameter(f"weight_{label}") for label in labels)
        return f"{names} = scaled_matrices(({layers}), ({weights}))"

    def _column_lines(self) -> list[str]:
        """The statements that take the inputs out of `x` [B, F]."""
        plans = [plan for step in self.plan.live_steps for plan in step.inputs.values()]
        read = {edge.source for plan in plans for edge in plan.edges}  # a recurrent edge reads it later
        read.update(node_id for node_id, _ in self.plan.outputs)
        if len(self.plan.inputs) == 1:
            (node_id,) = (node_id for _, node_id, _ in self.plan.inputs)
            return [f"{variable(node_id)} = x"] if node_id in read else []
        lines, start = [], 0
        for _, node_id, shape in self.plan.inputs:
            if node_id in read:
                lines.append(f"{variable(node_id)} = x[..., {start}:{start + shape.channels}]")
            start += shape.channels
        return lines

    def _new_state(self, slot: StateSlot) -> str:
        """The expression of a slot after a time step."""
        if slot.kind == "token":
            return f"torch.ones_like({slot_name('token', slot.node_id)})"
        is_neuron = any(neuron.node_id == slot.node_id for neuron in self.plan.live_neurons)
        if slot.kind != "output" and not (slot.kind == "hidden" and is_neuron):
            return slot_name(f"new_{slot.kind}", slot.node_id)
        # The caller may overwrite its input or the output: the state must not share their memory.
        outputs, inputs = [node for node, _ in self.plan.outputs], [node for _, node, _ in self.plan.inputs]
        is_shared = not self.plan.is_dense or [slot.node_id] == outputs or slot.node_id in inputs
        return f"{variable(slot.node_id)}.clone()" if is_shared else variable(slot.node_id)

    def arguments(self) -> list[str]:
        """The variables that forward takes."""
        names = [name for name, _ in self.plan.arguments]
        return [*names, "mask"] if self.dialect.is_padded and self.plan.name else names

    def own_build(self, step: TypedNode) -> str:
        """The expression that makes the module of a row with its own `build`."""
        return f"{own_build_name(step)}()"

    def _initial(self, step: TypedNode) -> list[str]:
        if step.neuron is not None:
            return self.added([step])
        lines = []
        for merge in step.inputs.values():
            for edge, adapter in zip(merge.edges, merge.adapters, strict=True):
                if adapter.changes_channels and merge.is_learned:
                    lines.append(f"self.adapt_{step.edge_labels[edge.edge_id]} = {_projection(adapter)}")
        return [*(self.added([step]) if step.parameters else ()), *lines, *self._module(step)]

    def _module(self, step: TypedNode) -> list[str]:
        if not step.is_first:
            return []
        if step.bodies:
            calls = [f"{self.class_names[body.key]}()" for body in step.bodies]
            if len(calls) == 1 or step.is_shared:
                return [f"self.{step.label} = {calls[0]}"]
            if len(set(calls)) == 1:
                return [f"self.{step.label} = nn.ModuleList([{calls[0]} for _ in range({len(calls)})])"]
            return [f"self.{step.label} = nn.ModuleList([{', '.join(calls)}])"]
        assert isinstance(step.what, Apply)
        if has_own_build(step.what.operation.row):
            return [f"self.{step.label} = {self.own_build(step)}"]
        expression = step.what.at.constructor
        return [f"self.{step.label} = {expression}"] if expression else []

    def _computed(self, step: TypedNode) -> list[str]:
        if step.neuron is not None:
            return self._neuron_lines(step, step.neuron)
        lines: list[str] = []
        values = {}
        for port, merge in step.inputs.items():
            if port == WEIGHT_PORT and step.tied_to:
                values[port] = self.dialect.weight(step.tied_to)
            else:
                more, values[port] = self._merged(step, port, merge)
                lines += more
        result = variable(step.node_id)
        if step.bodies:
            return [*lines, *self._repeated(step, values), *self._activated(step, result)]
        assert isinstance(step.what, Apply)
        call, shape = step.what.at.call, step.input_shapes.get(INPUT_PORT)
        has_mask = self.dialect.is_padded and step.what.operation.row.category is not Category.NORMALISATION
        if has_mask and shape is not None and len(shape.positions) == 1:
            call = _masked_call(call, shape)
        elif self.dialect.moves_channels and shape is not None and "{input}.mean(" in call:
            call = call.replace(f"{{input}}{_mean(shape)}", f"{{input}}{_mean(shape, moves_channels=True)}")
        state = {slot.kind: slot_name(slot.kind, step.node_id) for slot in step.slots}
        expression = call.format(module=self.dialect.module(step.label), **values, **state)
        if step.slots:
            new = [slot_name(f"new_{slot.kind}", step.node_id) for slot in step.slots]
            return [*lines, f"{', '.join([result, *new])} = {expression}", *self._activated(step, result)]
        if step.has_edge_weights:
            return [*lines, f"{result} = {expression}", *self._activated(step, result)]
        return [*lines, f"{result} = {_activation(step, expression)}"]

    def _activated(self, step: TypedNode, name: str) -> list[str]:
        """The statement that adds the bias to a variable and applies the activation; none for neither."""
        has_bias = step.has_edge_weights
        bias = self.dialect.parameter(identifier(f"bias_{step.node_id}")) if has_bias else ""
        value = _activation(step, f"{name} + {bias}" if bias else name)
        return [f"{name} = {value}"] if value != name else []

    def _repeated(self, step: TypedNode, values: Mapping[str, str]) -> list[str]:
        """The calls of a subgraph; each repetition reads the one before at its first port named `input`."""
        result, module = variable(step.node_id), self.dialect.module(step.label)
        mask = ["mask"] * self.dialect.is_padded
        first = ", ".join([*(values[port] for port in step.ports), *mask])
        if step.slots:
            return self._repeated_with_state(step, values)
        if len(step.bodies) == 1:
            return [f"{result} = {module}({first})"]
        arguments = ", ".join([*(result if port == INPUT_PORT else values[port] for port in step.ports), *mask])
        start = [f"{result} = {values[INPUT_PORT]}"] if INPUT_PORT in step.ports else []
        loop = f"for _ in range({len(step.bodies)}):" if step.is_shared else f"for block in {module}:"
        return [*start, loop, f"    {result} = {module if step.is_shared else 'block'}({arguments})"]

    def _repeated_with_state(self, step: TypedNode, values: Mapping[str, str]) -> list[str]:
        """The calls of a subgraph with state, one by one: every repetition has its own."""
        result, lines = variable(step.node_id), []
        for place, slots in enumerate(step.body_slots):
            is_single = len(step.bodies) == 1 or step.is_shared
            module = self.dialect.module(step.label) + ("" if is_single else f"[{place}]")
            sources = [result if place and port == INPUT_PORT else values[port] for port in step.ports]
            sources += ["mask"] * self.dialect.is_padded
            state = group([slot_name(slot.kind, step.node_id) for slot in slots])
            new = group([slot_name(f"new_{slot.kind}", step.node_id) for slot in slots])
            call = f"{module}({', '.join([*sources, state])})" if slots else f"{module}({', '.join(sources)})"
            lines.append(f"{result}, {new} = {call}" if slots else f"{result} = {call}")
        return lines

    def _neuron_lines(self, step: TypedNode, neuron: NeuronPlan) -> list[str]:
        emitter, shape = _NeuronEmitter(step, neuron, self.dialect), step.output
        lines = node_lines(emitter)
        if not self.plan.is_dense and (not neuron.edges or neuron.attributes.get("dropout_p")):
            rows = emitter.source(neuron.edges[0]) if neuron.edges else self.arguments()[0]
            lines = [f"x = {rows}", *lines]  # its rows are counted
        if shape.layout is Layout.SEQUENCE:
            name = variable(neuron.node_id)
            lines.append(f"{name} = {name}.unflatten(0, (-1, {shape.positions[0]}))")
        return lines

    def _merged(self, step: TypedNode, port: str, merge: MergePlan) -> tuple[list[str], str]:
        """Return the statements before the merged value of a port, and a name for it."""
        name = variable(step.node_id).replace("x", "z" if port == INPUT_PORT else f"{port}_", 1)
        weighted = step.is_weighted(port)
        values = [self._message(step, merge, position, is_weighted=weighted) for position in range(len(merge.edges))]
        if len(values) == 1:
            return ([], values[0]) if values[0].isidentifier() else ([f"{name} = {values[0]}"], name)
        if merge.merge == "concat" and self.dialect.num_copies > 1:
            return [f"{name} = concat_copies({self.dialect.num_copies}, {', '.join(values)})"], name
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

    def _message(self, step: TypedNode, merge: MergePlan, position: int, *, is_weighted: bool) -> str:
        """The aligned and weighted value of one in-edge."""
        edge, adapter = merge.edges[position], merge.adapters[position]
        value = pooled(read_value(edge.source, is_late=edge.edge_id in merge.late), adapter, self.dialect)
        if adapter.changes_channels and merge.is_learned:
            value = f"{self.dialect.module(f'adapt_{step.edge_labels[edge.edge_id]}')}({value})"
        elif adapter.changes_channels:
            value = _padded(value, adapter, self.dialect)
        if not is_weighted:
            return value
        return f"{value} * {self.dialect.parameter(f'weight_{step.edge_labels[edge.edge_id]}')}"


def pooled(value: str, adapter: Adapter, dialect: Dialect) -> str:
    """The expression of a value with its positions changed to those of the target, or with axes of size 1."""
    source, target = adapter.source, adapter.target
    if source is target:
        return value
    if adapter.is_broadcast and source.layout is not target.layout:
        axes = [":" if axis == target.channel_axis else "None" for axis in range(target.channel_axis + 1)]
        return f"{value}[:, {', '.join(axes + ['None'] * (len(target.sizes) - len(axes)))}]"
    if adapter.pools_to_vector and dialect.is_padded and len(source.positions) == 1:
        return _masked_call("{input}.mean(dim=(2,))", source).format(input=value)
    if adapter.pools_to_vector:
        return f"{value}{_mean(source, moves_channels=dialect.moves_channels)}"
    if not adapter.pools_positions:
        return value
    before, after = source.positions, target.positions
    sizes, function = after, f"adaptive_avg_pool{len(after)}d"
    if not adapter.averages_positions:
        function = "interpolate"
    elif not any(one % other for one, other in zip(before, after, strict=True)):
        sizes, function = (
            tuple(one // other for one, other in zip(before, after, strict=True)),
            f"avg_pool{len(after)}d",
        )
    argument = sizes[0] if len(set(sizes)) == 1 else sizes
    if source.layout is Layout.SEQUENCE:
        return f"F.{function}({value}.mT, {argument}).mT"
    return f"F.{function}({value}, {argument})"


def _masked_call(call: str, shape: Shape) -> str:
    """The call of an operation that leaves out the padding of signals [B, C, T] or sequences [B, T, D]."""
    value = "{input}" if shape.channel_axis == 0 else "{input}.mT"
    if shape.layout is Layout.TOKENS or call.count("{input}") != 1:
        return call
    if _OVER_POSITIONS.search(call):
        return _OVER_POSITIONS.sub(lambda match: f"masked_{match[3] or match[2]}({value}, mask)", call)
    return call.replace("{input}", "masked({input}, mask)" if value == "{input}" else "masked({input}.mT, mask).mT")


def _mean(shape: Shape, *, moves_channels: bool = False) -> str:
    """The call of the mean over all positions of a value."""
    axis = shape.channel_axis + 1
    if moves_channels and axis == 1 < len(shape.sizes):
        return f".movedim(1, -1).mean(dim={tuple(range(1, len(shape.sizes)))})"
    return f".mean(dim={tuple(each for each in range(1, len(shape.sizes) + 1) if each != axis)})"


def _padded(value: str, adapter: Adapter, dialect: Dialect) -> str:
    """The expression of a value with zeros for the missing channels."""
    axes_after = len(adapter.target.sizes) - 1 - adapter.target.channel_axis
    missing = adapter.target.channels - adapter.source.channels
    if dialect.num_copies > 1:
        return f"pad_copies({dialect.num_copies}, {value}, {missing})"
    return f"F.pad({value}, {(*(0, 0) * axes_after, 0, missing)})"


def _projection(adapter: Adapter) -> str:
    source, target = adapter.source.channels, adapter.target.channels
    if adapter.target.layout in CHANNELS_FIRST:
        return f"nn.Conv{len(adapter.target.positions)}d({source}, {target}, 1, bias=False)"
    return f"nn.Linear({source}, {target}, bias=False)"


def _activation(step: TypedNode, z: str) -> str:
    name, shape = step.node.activation_function, step.output
    kind = activation(name)
    if not issubclass(kind, CodeActivation):
        return outside_activation(name, kind, z)
    is_channels_first = shape.layout in CHANNELS_FIRST
    return (kind.channels_first_code if is_channels_first and kind.channels_first_code else kind.code).format(z=z)


class _NeuronEmitter(NodeEmitter):
    """Sequences are flattened to rows [B T, D]."""

    def __init__(self, step: TypedNode, neuron: NeuronPlan, dialect: Dialect) -> None:
        super().__init__(neuron, dialect)
        merge = step.inputs[INPUT_PORT]
        self.adapters = {edge.edge_id: adapter for edge, adapter in zip(merge.edges, merge.adapters, strict=True)}

    def source(self, edge: EdgePlan) -> str:
        adapter = self.adapters[edge.edge_id]
        value = pooled(super().source(edge), adapter, self.dialect)
        return f"{value}.flatten(0, 1)" if adapter.target.layout is Layout.SEQUENCE else value


def _last_state(slot: StateSlot) -> str:
    """The expression of a slot after a sequence; it shares no memory with the output."""
    if slot.kind == "token":
        return f"torch.ones_like({slot_name('token', slot.node_id)})"
    if slot.kind == "cell":
        return slot_name("new_cell", slot.node_id)
    return f"torch.clone({variable(slot.node_id)}[-batch:])"


def shape_text(shape: Shape) -> str:
    """The sizes of a shape with the batch, for messages: [B, 3, 8, 8]."""
    return f"[{', '.join(['B', *map(str, shape.sizes)])}]"


def method_text(signature: str, lines: Sequence[str], indent: str = "") -> str:
    """The source of a function."""
    return f"{indent}def {signature}:\n" + "".join(f"{indent}    {line}\n" for line in lines)
