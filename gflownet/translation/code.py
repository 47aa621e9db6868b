"""Straight-line code of a plan: constructors in __init__, and statements of one time step or a whole sequence."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from keyword import iskeyword

from gflownet.graphs.merges import MergePlan
from gflownet.graphs.typed import Apply, StateSlot, TypedGraph, TypedNode
from gflownet.operations.code import Dialect, NodeCode, aligned, group, padded, slot_name, variable
from gflownet.operations.operation import INPUT_PORT, WEIGHT_PORT, is_inherited
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Adapter, Layout, Shape

_ELEMENTWISE = {"sum": "{a} + {b}", "mean": "{a} + {b}", "product": "{a} * {b}"}
_ELEMENTWISE |= {"max": "torch.maximum({a}, {b})", "min": "torch.minimum({a}, {b})"}


def class_name(plan: TypedGraph) -> str:
    """Return a class name for a plan: of its subgraph or composite in camel case."""
    words = re.findall(r"[A-Za-z0-9]+", plan.name)
    name = "".join(word[0].upper() + word[1:] for word in words) or "TranslatedModel"
    return name if name.isidentifier() and not iskeyword(name) else f"Block{name}"


@dataclass(frozen=True)
class ClassWriter:
    """The source of the class of one plan."""

    plan: TypedGraph
    dialect: Dialect
    class_names: Mapping[str, str] = field(default_factory=dict)  # by the key of a body

    def initial_lines(self) -> list[str]:
        """The statements of __init__ after super().__init__(): modules and parameters in the order of computation."""
        if self.plan.takes_columns:
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
        images = [
            name
            for name, shape in plan.arguments
            if plan.memory_format == "channels_last" and shape.layout is Layout.IMAGE
        ]
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
        return replace(self, dialect=replace(self.dialect, is_sequence=True)).step_lines()

    def _computed_lines(self) -> list[str]:
        """The statements from the arguments to `y`."""
        groups = self.stacked_matrices()
        scaled = {
            layer: f"M{place}_{index}" for place, each in enumerate(groups) for index, (layer, _) in enumerate(each)
        }
        writer = replace(self, dialect=replace(self.dialect, scaled=scaled, argument=self.arguments()[0]))
        lines = [*(self._column_lines() if self.plan.takes_columns else ())]
        lines += [f"mask = {self.arguments()[0]}[:, -1:]"] if self.dialect.is_padded and not self.plan.name else []
        lines += [self._stacked_line(place, each) for place, each in enumerate(groups)]
        lines += [line for step in self.plan.live_steps for line in writer._computed(step)]
        outputs = [variable(node_id) for node_id, _ in self.plan.outputs]
        if len(outputs) == 1:
            return [*lines, f"y = {outputs[0]}"]
        joined = f"({', '.join(outputs)})"
        return [*lines, f"y = torch.cat({joined}, dim=-1)" if self.plan.is_concatenated else f"y = {joined}"]

    def stacked_matrices(self) -> list[list[tuple[str, str]]]:
        """Return layer and weight of edges whose matrices, of one size, are scaled by their weights in one product."""
        return []

    def _stacked_line(self, place: int, pairs: Sequence[tuple[str, str]]) -> str:
        """The statement that scales the matrices of a group."""
        names = ", ".join(f"M{place}_{index}" for index in range(len(pairs)))
        layers = ", ".join(self.dialect.module(layer) for layer, _ in pairs)
        weights = ", ".join(self.dialect.parameter(weight) for _, weight in pairs)
        return f"{names} = scaled_matrices(({layers}), ({weights}))"

    def _column_lines(self) -> list[str]:
        """The statements that take the inputs out of `x` [B, F]."""
        plans = [plan for step in self.plan.live_steps for plan in step.inputs.values()]
        read = {edge.source for plan in plans for edge in plan.edges}  # a recurrent edge reads it later
        read.update(node_id for node_id, _ in self.plan.outputs)
        texts = columns("x[..., {}]", [(node_id, shape) for _, node_id, shape in self.plan.inputs])
        return [f"{variable(node_id)} = {text}" for node_id, text in texts.items() if node_id in read]

    def _new_state(self, slot: StateSlot) -> str:
        """The expression of a slot after a time step."""
        if slot.kind == "token":
            return f"torch.ones_like({slot_name('token', slot.node_id)})"
        is_neuron = self.plan.nodes[slot.node_id].is_neuron
        if slot.kind != "output" and not (slot.kind == "hidden" and is_neuron):
            return slot_name(f"new_{slot.kind}", slot.node_id)
        # The caller may overwrite its input or the output: the state must not share their memory.
        if self.dialect.is_sequence:
            return f"torch.clone({variable(slot.node_id)}[-batch:])"
        outputs, inputs = [node for node, _ in self.plan.outputs], [node for _, node, _ in self.plan.inputs]
        is_shared = not self.plan.takes_columns or [slot.node_id] == outputs or slot.node_id in inputs
        return f"{variable(slot.node_id)}.clone()" if is_shared else variable(slot.node_id)

    def arguments(self) -> list[str]:
        """The variables that forward takes."""
        names = [name for name, _ in self.plan.arguments]
        return [*names, "mask"] if self.dialect.is_padded and self.plan.name else names

    def own_build(self, step: TypedNode) -> str:
        """The expression that makes the module of a row with its own `build`."""
        return f"self.plan.nodes[{step.node_id}].what.at.build()"

    def _initial(self, step: TypedNode) -> list[str]:
        lines = []
        for merge in step.inputs.values():
            for edge, adapter in zip(merge.edges, merge.adapters, strict=True):
                if adapter.changes_channels and merge.is_learned:
                    lines.append(f"self.{step.named('adapt', edge)} = {_projection(adapter)}")
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
        if not is_inherited(step.what.operation.row, "build"):
            return [f"self.{step.label} = {self.own_build(step)}"]
        expression = step.what.at.constructor
        return [f"self.{step.label} = {expression}"] if expression else []

    def _computed(self, step: TypedNode) -> list[str]:
        lines: list[str] = []
        values = {}
        for port, merge in step.inputs.items():
            if port == WEIGHT_PORT and step.tied_to:
                values[port] = f"{self.dialect.module(step.tied_to)}.weight"
            else:
                more, values[port] = self._merged(step, port, merge)
                lines += more
        code = NodeCode(step, values, self.dialect)
        if isinstance(step.what, Apply) and not step.bodies:
            return [*lines, *step.what.operation.row.statements(code)]
        return [*lines, *self._repeated(step, values), *code.finished()]

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

    def _merged(self, step: TypedNode, port: str, merge: MergePlan) -> tuple[list[str], str]:
        """Return the statements before the merged value of a port, and a name for it."""
        values = [self._message(step, merge, place) for place in range(len(merge.edges))]
        if len(values) == 1 and values[0].isidentifier():
            return [], values[0]
        name = slot_name("z" if port == INPUT_PORT else f"z{port}_", step.node_id)
        if len(values) == 1:
            return [f"{name} = {values[0]}"], name
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

    def _message(self, step: TypedNode, merge: MergePlan, place: int) -> str:
        """The aligned and weighted value of one in-edge."""
        edge, adapter = merge.edges[place], merge.adapters[place]
        value = slot_name("output", edge.source) if edge.edge_id in merge.late else variable(edge.source)
        if adapter.source is not adapter.target:
            value = aligned(value, adapter, self.dialect)
            if adapter.changes_channels and merge.is_learned:
                value = f"{self.dialect.module(step.named('adapt', edge))}({value})"
            elif adapter.changes_channels:
                value = padded(value, adapter, self.dialect)
        # The port `weight` carries a tied weight, which has none of its own.
        is_weighted = step.has_edge_weights and edge.port != WEIGHT_PORT
        return f"{value} * {self.dialect.parameter(step.named('weight', edge))}" if is_weighted else value


def _projection(adapter: Adapter) -> str:
    source, target = adapter.source.channels, adapter.target.channels
    if adapter.target.layout in CHANNELS_FIRST:
        return f"nn.Conv{len(adapter.target.positions)}d({source}, {target}, 1, bias=False)"
    return f"nn.Linear({source}, {target}, bias=False)"


def columns(template: str, ends: Sequence[tuple[int, Shape]]) -> dict[int, str]:
    """Return the expression of the features of each INPUT or OUTPUT node, by id, side by side in one tensor."""
    stops = [*accumulate((shape.channels for _, shape in ends), initial=0)]
    if len(ends) == 1:
        return {ends[0][0]: template.partition("[")[0]}
    ranges = (f"{start}:{stop}" for start, stop in pairwise(stops))
    return {node_id: template.format(each) for (node_id, _), each in zip(ends, ranges, strict=True)}


def shape_text(shape: Shape) -> str:
    """The sizes of a shape with the batch, for messages: [B, 3, 8, 8]."""
    return f"[{', '.join(['B', *map(str, shape.sizes)])}]"


def method_text(signature: str, lines: Sequence[str], indent: str = "") -> str:
    """The source of a function."""
    return f"{indent}def {signature}:\n" + textwrap.indent("\n".join([*lines, ""]), f"{indent}    ")
