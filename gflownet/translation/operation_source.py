"""to_source of operation graphs: one readable file with a class per subgraph."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gflownet.graphs.elements import thawed
from gflownet.graphs.tensor_shape import Shape
from gflownet.operations import layers
from gflownet.translation.emit import PLAIN, outside_name
from gflownet.translation.operation_code import ClassWriter, has_own_build, shape_text
from gflownet.translation.operation_model import autocast_lines, class_name, memory_format_lines
from gflownet.translation.operation_plan import OperationPlan, StepPlan

_HEADER = '''"""A network: {inputs} to {outputs}. Written by gflownet; needs only {needs}."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
{imports}'''
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class _FileWriter(ClassWriter):
    """Code of a file: rows with their own `build` are called by their class."""

    def own_build(self, step: StepPlan) -> str:
        assert step.shapes.operation is not None
        shapes = ", ".join(f'"{port}": {_shape_code(shape)}' for port, shape in step.input_shapes.items())
        settings = {key: thawed(value) for key, value in step.shapes.operation.items}
        return f"{outside_name(step.shapes.operation.row_home)}.build({{{shapes}}}, {settings!r})"


def operation_source(plan: OperationPlan, name: str, dtype: str | None) -> str:
    """Return the source of a module `name` with the names, first values and outputs of the model of a plan."""
    if name in vars(layers):
        raise ValueError(f"name: expected a name that the source does not use, got {name!r}")
    plans = list(_bodies_first(plan))
    names = _class_names(plans, name)
    classes = [_class_source(each, names, dtype, is_model=each is plan) for each in plans]
    text = "\n\n".join(classes)
    imports = list(dict.fromkeys(line for each in plans for line in _imports(each)))
    modules = [line.split()[1] for line in imports]
    header = _HEADER.format(
        inputs=" and ".join(shape_text(shape) for _, _, shape in plan.inputs),
        outputs=" and ".join(shape_text(shape) for _, shape in plan.outputs),
        needs=", ".join(dict.fromkeys(["torch", *modules])),
        imports="".join(f"{line}\n" for line in imports),
    )
    return "\n\n".join([header, *_layer_sources(text), text])


def _bodies_first(plan: OperationPlan) -> Iterator[OperationPlan]:
    """Yield every different plan below a plan, then the plan itself."""
    seen: dict[str, OperationPlan] = {}

    def visit(each: OperationPlan) -> None:
        for body in each.bodies:
            visit(body)
        seen.setdefault(each.key, each)

    visit(plan)
    yield from seen.values()


def _class_names(plans: list[OperationPlan], name: str) -> dict[str, str]:
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


def _class_source(plan: OperationPlan, names: dict[str, str], dtype: str | None, *, is_model: bool) -> str:
    is_cast = dtype not in (None, "float32")
    writer = _FileWriter(plan, PLAIN, names, f", dtype=torch.{dtype}" if is_cast else "")
    initial = ["super().__init__()", *writer.initial_lines()]
    if is_model and is_cast:
        initial.append(f"self.to(torch.{dtype})")
    if plan.channels_last:
        initial.append("self.to(memory_format=torch.channels_last)")
    shapes = " and ".join(shape_text(shape) for _, shape in plan.outputs)
    lines = [f'"""Return {shapes}."""', *memory_format_lines(plan, writer.arguments())]
    body = writer.forward_lines()
    lines += autocast_lines(plan, body, writer.arguments()[0]) if plan.autocast else body
    arguments = ", ".join(f"{name}: Tensor" for name in writer.arguments())
    methods = [_method("__init__(self) -> None", initial), _method(f"forward(self, {arguments})", lines)]
    return f"class {names[plan.key]}(nn.Module):\n" + "\n".join(methods)


def _method(signature: str, lines: list[str]) -> str:
    return f"    def {signature}:\n" + "".join(f"        {line}\n" for line in lines)


def _imports(plan: OperationPlan) -> Iterator[str]:
    """Yield the imports of the user's classes."""
    for step in plan.steps:
        names = [step.shapes.node.activation_function]
        names += [step.ordinary.aggregation] if step.ordinary is not None else []
        for name in names:
            if ":" in name:
                module, _, leaf = name.partition(":")
                yield f"from {module} import {leaf} as {outside_name(name)}"
        applied = step.shapes.operation
        if applied is not None and not step.bodies and has_own_build(applied.row):
            module, _, leaf = applied.row_home.partition(":")
            yield "from gflownet.graphs.tensor_shape import Layout, Shape"
            yield f"from {module} import {leaf} as {outside_name(applied.row_home)}"


def _shape_code(shape: Shape) -> str:
    return f'Shape({shape.sizes}, Layout("{shape.layout.value}"))'


def _layer_sources(text: str) -> list[str]:
    """Return the source of the layers that a text uses, and of the layers that these use."""
    classes = {name: value for name, value in vars(layers).items() if _is_layer(value)}
    needed: dict[str, str] = {}
    pending = [text]
    while pending:
        for word in dict.fromkeys(_WORD.findall(pending.pop())):
            if word in classes and word not in needed:
                needed[word] = inspect.getsource(classes[word])
                pending.append(needed[word])
    return [needed[name] for name in classes if name in needed]


def _is_layer(value: object) -> bool:
    return isinstance(value, type) and value.__module__ == layers.__name__
