"""to_source: the model as a readable Python file that needs only torch."""

from keyword import iskeyword

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.graphs.operation_shapes import is_operation_graph
from gflownet.graphs.vocabulary import activation
from gflownet.translation.activations import Cell
from gflownet.translation.emit import PLAIN, identifier, outside_name, outside_names, slot_name, step_lines
from gflownet.translation.initial_code import initial_code
from gflownet.translation.model import parameter_values
from gflownet.translation.operation_plan import build_operation_plan, operation_key
from gflownet.translation.operation_source import operation_source
from gflownet.translation.plan import ModelPlan
from gflownet.translation.planning import checked_options, checked_plan

_USED_NAMES = ("torch", "F", "nn", "Tensor", "super", "tuple", "tensor")
_HEADER = '''"""A network of {nodes} nodes: [B, {inputs}] to [B, {outputs}]. Written by gflownet; needs only {needs}."""

import torch
import torch.nn.functional as F
from torch import nn
{imports}

class {name}(nn.Module):
'''
_STATEFUL_FORWARD = '''
    def forward(self, x, reset_states=False):
        """One time step; the state of the previous call is kept, detached, until reset_states."""
        if reset_states or self.state is None:
            self.state = tuple(x.new_zeros(x.shape[0], size) for size in ({sizes},))
        y, state = self.step(x, self.state)
        self.state = tuple(tensor.detach() for tensor in state)
        return y
'''


def to_source(graph: ComputationGraph, *, name: str = "Model", projection: str | None = None) -> str:
    """Return the source of a module with one class `name`: same parameters, first values and outputs as the model.

    `projection` overrides the setting of the graph. The state_dict has the names of the translated model (a minus sign
    in a node id becomes m). A user's activations and aggregations are imported.

    Raises: ValueError for an invalid graph, one with an rhn node, or a name that a class cannot have.
    """
    if not name.isidentifier():
        raise ValueError(f"name: expected a Python identifier, got {name!r}")
    if iskeyword(name) or name in _USED_NAMES:
        raise ValueError(f"name: expected a name that the source does not use, got {name!r}")
    config = {"projection": projection}
    if is_operation_graph(graph):
        options = checked_options(graph, config)
        plan = build_operation_plan(graph, options, operation_key(graph, options))
        return operation_source(plan, name, options.dtype)
    plan, dtype = checked_plan(graph, config), checked_options(graph, config).dtype
    _check_torch_is_enough(graph)
    values = dict(zip((p.name for p in plan.scalars), parameter_values(graph, plan), strict=True))
    outside = [(*each.split(":"), outside_name(each)) for each in outside_names(plan)]
    header = _HEADER.format(
        nodes=len(plan.nodes),
        inputs=plan.input_size,
        outputs=plan.output_size,
        name=name,
        needs=", ".join(dict.fromkeys(["torch", *(module for module, _, _ in outside)])),
        imports="".join(f"from {module} import {class_name} as {alias}\n" for module, class_name, alias in outside),
    )
    return header + _method("__init__(self)", _initial_lines(plan, values, dtype)) + "\n" + _methods(plan)


def _check_torch_is_enough(graph: ComputationGraph) -> None:
    """Raise ValueError for a cell that is not in torch."""
    for node in graph.nodes.values():
        kind = activation(node.activation_function)
        if issubclass(kind, Cell) and not kind.module.startswith("torch."):
            got = node.activation_function
            raise ValueError(f"node {node.node_id}: expected a cell of torch in a stand-alone source, got {got}")


def _methods(plan: ModelPlan) -> str:
    body = step_lines(plan, PLAIN)
    if not plan.slots:
        return _method("forward(self, x)", [*body, "return y"])
    slots = ", ".join(slot_name(slot.kind, slot.node_id) for slot in plan.slots)
    step = _method("step(self, x, state)", [f"{slots}, = state", *body, "return y, state"])
    return step + _STATEFUL_FORWARD.format(sizes=", ".join(str(slot.size) for slot in plan.slots))


def _initial_lines(plan: ModelPlan, values: dict[str, float], dtype: str | None) -> list[str]:
    option = f", dtype=torch.{dtype}" if dtype not in (None, "float32") else ""
    lines = ["super().__init__()"]
    if plan.slots:
        lines.append("self.state = None")
    for parameter in plan.parameters:
        if parameter.name.endswith("weight_hh"):
            continue  # in the cell of weight_ih
        lines.append(
            f"self.{identifier(parameter.module or parameter.name)} = {initial_code(parameter, values, option)}"
        )
    return lines


def _method(signature: str, lines: list[str]) -> str:
    return f"    def {signature}:\n" + "".join(f"        {line}\n" for line in lines)
