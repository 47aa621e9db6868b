"""Operation graphs to modules: one generated class per structure, straight-line code, also for its subgraphs."""

from __future__ import annotations

import linecache
import re
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from keyword import iskeyword
from typing import Any, ClassVar, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.graphs.tensor_shape import Layout
from gflownet.graphs.vocabulary import activation, aggregation
from gflownet.operations import layers
from gflownet.translation.cache import CACHE
from gflownet.translation.emit import FAST, outside_name, variable
from gflownet.translation.generated_model import GeneratedModel
from gflownet.translation.operation_code import ClassWriter, has_own_build, own_build_name, shape_text
from gflownet.translation.operation_plan import OperationPlan


class OperationModel(GeneratedModel):
    """Base of the generated classes of operation graphs and of their subgraphs.

    forward takes one tensor [B, *shape] per INPUT node, by ascending id, and returns the value of the OUTPUT node;
    values of several are concatenated if all are vectors, else a tuple.
    """

    plan: ClassVar[OperationPlan]
    reference: Tensor

    def forward(self, *inputs: Tensor) -> Any:
        """Return the output for a batch of every input; generated for every structure.

        Raises:
            ValueError: an input of another shape or dtype, or tokens that are not integers.
        """
        raise NotImplementedError(f"{type(self).__name__} is an abstract base class: call to_pytorch_model")

    def zeros(self, batch_size: int) -> tuple[Tensor, ...]:
        kinds = ((shape, torch.int64 if shape.layout is Layout.TOKENS else None) for _, _, shape in self.plan.inputs)
        return tuple(self.reference.new_zeros(batch_size, *shape.sizes, dtype=dtype) for shape, dtype in kinds)

    def first_step(self, *inputs: Tensor) -> Any:
        return self(*inputs)

    def pure_module(self) -> nn.Module:
        return self

    def pure_arguments(self, batch_size: int) -> tuple[Tensor, ...]:
        return self.zeros(batch_size)

    def pure_names(self) -> tuple[list[str], list[str]]:
        plan = self.plan
        several = len(plan.outputs) > 1 and not plan.is_concatenated
        outputs = [f"y{node_id}" for node_id, _ in plan.outputs] if several else ["y"]
        inputs = [variable(node_id) for _, node_id, _ in plan.inputs]
        return inputs if len(inputs) > 1 else ["x"], outputs

    def _refuse(self, position: int, x: Tensor) -> NoReturn:
        _, node_id, shape = self.plan.inputs[position]
        is_other = x.is_floating_point() and x.dtype != self.reference.dtype
        kind = f"{self.reference.dtype} numbers" if is_other else "floating numbers"
        kind = "integers" if shape.layout is Layout.TOKENS else kind
        expected = f"{kind} of shape {shape_text(shape)}"
        raise ValueError(f"input {node_id}: expected {expected}, got {list(x.shape)} of dtype {x.dtype}")

    def __reduce__(self) -> tuple[Any, ...]:
        # The generated class cannot be imported by name: pickle the plan instead.
        return _empty_model, (self.plan,), self.__dict__


def generate_operation_class(plan: OperationPlan) -> type[OperationModel]:
    """Return a subclass of OperationModel with straight-line code for `plan`."""
    class_names = {body.key: f"{class_name(body)}_{index}" for index, body in enumerate(plan.bodies)}
    bodies = {class_names[body.key]: operation_model_class(body) for body in plan.bodies}
    source = _source(plan, ClassWriter(plan, FAST, class_names))
    name = f"{class_name(plan)}_{plan.key[:12]}"
    filename = f"<gflownet {name}>"
    public = {key: value for key, value in vars(layers).items() if isinstance(value, type)}
    namespace: dict[str, Any] = {**public, "torch": torch, "F": F, "nn": nn, "Tensor": Tensor, "Base": OperationModel}
    namespace |= {**bodies, **dict(_outside_functions(plan))}
    exec(compile(source, filename, "exec"), namespace)
    methods = {method: namespace[method] for method in ("__init__", "forward")}
    generated = type(name, (OperationModel,), {"plan": plan, "__module__": __name__, **methods})
    # Source lines for tracebacks, debuggers and torch.compile while the class exists.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    weakref.finalize(generated, linecache.cache.pop, filename, None)
    return generated


def operation_model_class(plan: OperationPlan) -> type[OperationModel]:
    """Return the class of a plan, from the cache if it is enabled."""
    if not CACHE.is_enabled:
        return generate_operation_class(plan)
    return CACHE.get(("operations", plan.key), lambda: generate_operation_class(plan))


def class_name(plan: OperationPlan) -> str:
    """Return a class name for a plan: of its subgraph or composite in camel case."""
    words = re.findall(r"[A-Za-z0-9]+", plan.name)
    name = "".join(word[0].upper() + word[1:] for word in words) or "OperationModel"
    return name if name.isidentifier() and not iskeyword(name) else f"Block{name}"


def _source(plan: OperationPlan, writer: ClassWriter) -> str:
    # An empty tensor that has the device and the dtype of the model, also of one without parameters.
    reference = [] if plan.name else ['self.register_buffer("reference", torch.empty(0), persistent=False)']
    initial = ["Base.__init__(self)", *reference, *writer.initial_lines()]
    checks = [] if plan.name else _checks(plan, writer.arguments())
    lines = ["p, m = self._parameters, self._modules", *checks, *memory_format_lines(plan, writer.arguments())]
    body = writer.forward_lines()
    lines += autocast_lines(plan, body, writer.arguments()[0]) if plan.autocast else body
    arguments = ", ".join(f"{name}: Tensor" for name in writer.arguments())
    return _function("__init__(self)", initial) + _function(f"forward(self, {arguments})", lines)


def _function(signature: str, lines: list[str]) -> str:
    return f"def {signature}:\n" + "".join(f"    {line}\n" for line in lines)


def _checks(plan: OperationPlan, arguments: list[str]) -> list[str]:
    lines = ['dtype = self._buffers["reference"].dtype']
    for position, (name, (_, _, shape)) in enumerate(zip(arguments, plan.inputs, strict=True)):
        is_wrong = f"{name}.dtype != dtype" if shape.layout is not Layout.TOKENS else f"{name}.is_floating_point()"
        lines.append(f"if {name}.shape[1:] != {shape.sizes} or {is_wrong}:")
        lines.append(f"    self._refuse({position}, {name})")
    return lines


def memory_format_lines(plan: OperationPlan, arguments: list[str]) -> list[str]:
    """The statements that give images the memory format of a plan."""
    images = [
        name
        for name, (_, _, shape) in zip(arguments, plan.inputs, strict=True)
        if plan.channels_last and shape.layout is Layout.IMAGE
    ]
    return [f"{name} = {name}.contiguous(memory_format=torch.channels_last)" for name in images]


def autocast_lines(plan: OperationPlan, lines: list[str], argument: str) -> list[str]:
    """Return the statements of a forward under torch.autocast; the outputs are float32."""
    *others, last = lines
    casts = [variable(n) + (".float()" if shape.layout is not Layout.TOKENS else "") for n, shape in plan.outputs]
    result = f"({', '.join(casts)})" if len(casts) > 1 else casts[0]
    if plan.is_concatenated:
        result = f"{last.removeprefix('return ')}.float()"
    head = f"with torch.autocast({argument}.device.type, dtype=torch.{plan.autocast}):"
    return [head, *(f"    {line}" for line in others), f"    return {result}"]


def _outside_functions(plan: OperationPlan) -> Iterator[tuple[str, Any]]:
    """Yield the user's classes and constructors by their names in generated code."""
    for step in plan.steps:
        node, applied = step.shapes.node, step.shapes.operation
        if ":" in node.activation_function:
            yield outside_name(node.activation_function), activation(node.activation_function)
        if step.ordinary is not None and ":" in step.ordinary.aggregation:
            yield outside_name(step.ordinary.aggregation), aggregation(step.ordinary.aggregation)
        if applied is not None and not step.bodies and has_own_build(applied.row):
            yield own_build_name(step), partial(_built, step.input_shapes, applied)


def _built(inputs: Mapping[str, Any], applied: Any) -> nn.Module:
    return applied.row.build(inputs, applied.settings)


def _empty_model(plan: OperationPlan) -> OperationModel:
    """Return an empty instance, filled by pickle and copy."""
    model_class = operation_model_class(plan)
    return model_class.__new__(model_class)
