"""to_source: the model as one readable Python file with a class per subgraph."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from keyword import iskeyword

from torch import nn

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.typed import TypedGraph, TypedNode
from gflownet.operations import layers
from gflownet.operations.activations import Cell
from gflownet.operations.code import PLAIN, Dialect, identifier, outside_name, outside_value
from gflownet.operations.operation import is_inherited
from gflownet.operations.parameters import QUERY_STD, Initial, ParameterPlan
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import activation
from gflownet.translation.code import ClassWriter, class_name, method_text, shape_text
from gflownet.translation.planning import checked

_USED_NAMES = ("torch", "F", "nn", "Tensor", "super", "tuple", "tensor")
_HEADER = '''"""A network: {inputs} to {outputs}. Written by gflownet; needs only {needs}."""

import torch
import torch.nn.functional as F
from torch import {types}
{imports}'''
_STATEFUL_FORWARD = '''
    def forward(self, {arguments}, reset_states=False):
        """One time step; the state of the previous call is kept, detached, until reset_states."""
        if reset_states or self.state is None:
            self.state = tuple({first}.new_zeros({first}.shape[0], *shape{dtype}) for shape in {shapes})
        y, state = self.step({arguments}, self.state)
        self.state = tuple(tensor.detach() for tensor in state)
        return y
'''
_WORD = re.compile(r"\w+")


def to_source(graph: ComputationGraph, *, name: str = "Model", projection: str | None = None) -> str:
    """Return the source of a module with one class `name`: same parameters, first values and outputs as the model.

    `projection` overrides the setting of the graph. The state_dict has the names of the translated model (a minus sign
    in a node id becomes m). A user's activations, aggregations and operations are imported.

    Raises: ValueError for an invalid graph, one with an rhn node, or a name that a class cannot have.
    """
    if not name.isidentifier():
        raise ValueError(f"name: expected a Python identifier, got {name!r}")
    if iskeyword(name) or name in _USED_NAMES or name in vars(layers):
        raise ValueError(f"name: expected a name that the source does not use, got {name!r}")
    config = {"projection": projection}
    plan, options = checked(graph, config)
    dtype = options.dtype
    plans = list(_bodies_first(plan))
    for neuron in (neuron for each in plans for neuron in each.neurons):
        kind = activation(got := neuron.node.activation_function)
        if issubclass(kind, Cell) and not kind.module.startswith("torch."):
            raise ValueError(f"node {neuron.node_id}: expected a cell of torch in a stand-alone source, got {got}")
    names = _class_names(plans, name)
    values = [each.values if each is not plan else plan.values_of(graph) for each in plans]
    first_values = [
        dict(zip((p.name for p in each.scalars), numbers, strict=True))
        for each, numbers in zip(plans, values, strict=True)
    ]
    dialect = replace(PLAIN, is_padded=plan.is_padded)
    classes = [
        _class_source(each, names, numbers, dtype, dialect) for each, numbers in zip(plans, first_values, strict=True)
    ]
    text = "\n\n".join(classes)
    imports = list(dict.fromkeys(line for each in plans for line in _imports(each)))
    modules = [line.split()[1] for line in imports if line.startswith("from ") and "torch." not in line]
    layer_sources = _layer_sources(text)
    header = _HEADER.format(
        types="Tensor, nn" if layer_sources else "nn",
        inputs=" and ".join(shape_text(shape) for _, shape in plan.arguments),
        outputs=" and ".join(shape_text(shape) for _, shape in plan.outputs),
        needs=", ".join(dict.fromkeys(["torch", *modules])),
        imports="".join(f"{line}\n" for line in imports),
    )
    return "\n\n".join([header, *layer_sources, text])


@dataclass(frozen=True)
class _FileWriter(ClassWriter):
    """Code of a file: parameters with their first values; rows with their own `build` are called by their class."""

    first_values: Mapping[str, float] = field(default_factory=dict)
    option: str = ""  # keyword arguments of every parameter, after a comma

    def added(self, steps: Sequence[TypedNode]) -> list[str]:
        return [
            f"self.{identifier(parameter.module or parameter.name)} = {self._first(parameter)}"
            for step in steps
            for parameter in step.parameters
            if not parameter.name.endswith("weight_hh")  # in the cell of weight_ih
        ]

    def _first(self, parameter: ParameterPlan) -> str:
        """The expression of a parameter, or of the layer that holds it."""
        if not parameter.shape:
            return f"nn.Parameter(torch.tensor({self.first_values.get(parameter.name, 0.0)!r}{self.option}))"
        # Layers of a model with other operations are cast at the end, as in memory.
        option = self.option if self.plan.takes_columns else ""
        if parameter.initial is Initial.QUERY:
            return f"nn.Parameter({QUERY_STD} * torch.randn({', '.join(map(str, parameter.shape))}{option}))"
        rows, columns = parameter.shape
        kind = parameter.module.partition("_")[0]
        if kind in ("proj", "post"):
            return f"nn.Linear({columns}, {rows}, bias=False{option})"
        cell_class = activation(kind)
        assert issubclass(cell_class, Cell)
        return f"nn.{cell_class.module.partition(':')[2]}({columns}, {columns}, bias=False{option})"

    def own_build(self, step: TypedNode) -> str:
        assert step.operation is not None
        shapes = ", ".join(
            f'"{port}": Shape({shape.sizes}, Layout("{shape.layout.value}"))'
            for port, shape in step.input_shapes.items()
        )
        settings = {key: thawed(value) for key, value in step.operation.items}
        return f"{outside_name(step.operation.row_home)}.build({{{shapes}}}, {settings!r})"


def _bodies_first(plan: TypedGraph) -> Iterator[TypedGraph]:
    """Yield every different plan below a plan, then the plan itself."""
    plans: dict[str, TypedGraph] = {}

    def visit(each: TypedGraph) -> None:
        for body in each.bodies:
            visit(body)
        plans.setdefault(each.key, each)

    visit(plan)
    yield from plans.values()


def _class_names(plans: list[TypedGraph], name: str) -> dict[str, str]:
    """Return a different class name for every plan; the last one is the model."""
    *bodies, model = plans
    names, used = {model.key: name}, {name, "F", *vars(layers)}
    for body in bodies:
        base = candidate = class_name(body)
        number = 2
        while candidate in used:
            candidate, number = f"{base}{number}", number + 1
        names[body.key] = candidate
        used.add(candidate)
    return names


def _class_source(
    plan: TypedGraph, names: Mapping[str, str], first_values: Mapping[str, float], dtype: str | None, dialect: Dialect
) -> str:
    is_cast, is_model = dtype not in (None, "float32"), not plan.name
    option = f", dtype=torch.{dtype}" if is_cast else ""
    writer = _FileWriter(plan, dialect, names, first_values, option)
    initial = ["super().__init__()", *(["self.state = None"] if is_model and plan.slots else [])]
    initial += writer.initial_lines()
    if is_model and is_cast and not plan.takes_columns:
        initial.append(f"self.to(torch.{dtype})")
    if plan.memory_format == "channels_last":
        initial += [
            "for kernel in self.parameters():",
            "    if kernel.dim() == 4:  # of images",
            "        kernel.data = kernel.data.contiguous(memory_format=torch.channels_last)",
        ]
    methods = [method_text("__init__(self)", initial, "    "), *_forward_methods(plan, writer, dtype)]
    return f"class {names[plan.key]}(nn.Module):\n" + "\n".join(methods)


def _forward_methods(plan: TypedGraph, writer: ClassWriter, dtype: str | None) -> list[str]:
    shapes = " and ".join(shape_text(shape) for _, shape in plan.outputs)
    body = writer.body_lines()
    arguments = ", ".join(writer.arguments())
    if not plan.slots:
        return [method_text(f"forward(self, {arguments})", [f'"""Return {shapes}."""', *body, "return y"], "    ")]
    name, lines = "forward" if plan.name else "step", [*body, "return y, state"]
    method = method_text(
        f"{name}(self, {arguments}, state)", [f'"""Return {shapes} and the new state."""', *lines], "    "
    )
    if plan.name:
        return [method]
    forward = _STATEFUL_FORWARD.format(
        arguments=arguments,
        first=writer.arguments()[0],
        dtype="" if plan.takes_columns else f", dtype=torch.{dtype or 'float32'}",
        shapes=tuple(slot.shape for slot in plan.slots),
    )
    return [method + forward]


def _imports(plan: TypedGraph) -> Iterator[str]:
    """Yield the imports of the user's classes."""
    for step in plan.live_steps:
        names = [step.node.activation_function]
        names += [step.node.aggregation] if step.is_neuron else []
        for name in names:
            if ":" in name:
                module, _, leaf = name.partition(":")
                yield f"from {module} import {leaf} as {outside_name(name)}"
                if name == names[0] and isinstance(outside_value(activation(name)), nn.Module):
                    yield f"{outside_name(name)} = {outside_name(name)}()"
        applied = step.operation
        if applied is None or step.is_neuron or step.bodies:
            continue
        homes = dict(applied.row.outside_homes(applied.settings))
        if not is_inherited(applied.row, "build"):
            yield "from gflownet.operations.tensor_shape import Layout, Shape"
            homes[outside_name(applied.row_home)] = applied.row_home
        for name, home in homes.items():
            module, _, leaf = home.partition(":")
            yield f"from {module} import {leaf} as {name}"


def _layer_sources(text: str) -> list[str]:
    """Return the source of the layers and functions that a text uses, and of those that these use."""
    every = vars(layers).items()
    classes = {name: kind for name, kind in every if getattr(kind, "__module__", "") == layers.__name__}
    needed: dict[str, str] = {}
    pending = [text]
    while pending:
        for word in dict.fromkeys(_WORD.findall(pending.pop())):
            if word in classes and word not in needed:
                needed[word] = inspect.getsource(classes[word])
                pending.append(needed[word])
    return [needed[name] for name in classes if name in needed]
