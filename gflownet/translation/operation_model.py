"""Operation graphs to modules: one generated class per structure."""

from __future__ import annotations

import linecache
from hashlib import sha256
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.graphs.operation_shapes import MergePlan, NodeShapes
from gflownet.graphs.tensor_shape import Adapter, Layout
from gflownet.graphs.vocabulary import activation
from gflownet.translation.activations import CodeActivation
from gflownet.translation.emit import variable
from gflownet.translation.operation_plan import OperationPlan


class OperationModel(nn.Module):
    """Base of the generated classes of operation graphs; forward maps [B, *shape] of every input to the output."""

    plan: ClassVar[OperationPlan]

    def __init__(self) -> None:
        super().__init__()
        for node in self.plan.nodes:
            for plan in node.inputs.values():
                for edge, adapter in zip(plan.edges, plan.adapters, strict=True):
                    if adapter.changes_channels and plan.align == "auto":
                        self.add_module(f"adapt_{edge.source}_{edge.target}", _projection(adapter))
            if node.operation is not None:
                inputs = {port: plan.shape for port, plan in node.inputs.items()}
                module = node.operation.row.build(inputs, node.operation.settings)
                if module is not None:
                    self.add_module(f"node_{node.node.node_id}", module)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the output for a batch of every input; generated for every structure."""
        raise NotImplementedError(f"{type(self).__name__} is an abstract base class: call to_pytorch_model")


def generate_operation_class(plan: OperationPlan) -> type[OperationModel]:
    """Return a subclass of OperationModel whose forward is straight-line code for `plan`."""
    name = f"OperationModel_{sha256(repr(plan.key).encode()).hexdigest()[:12]}"
    filename = f"<gflownet {name}>"
    source = _forward_source(plan)
    namespace: dict[str, Any] = {"torch": torch, "F": F, "nn": nn, "Tensor": Tensor}
    exec(compile(source, filename, "exec"), namespace)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return type(name, (OperationModel,), {"plan": plan, "__module__": __name__, "forward": namespace["forward"]})


def _forward_source(plan: OperationPlan) -> str:
    arguments = ", ".join(f"{variable(node_id)}: Tensor" for node_id, _ in plan.inputs)
    lines = [f"def forward(self, {arguments}) -> Tensor:"]
    lines += [f"    {variable(node.node.node_id)} = {_expression(node)}" for node in plan.nodes]
    outputs = [variable(node_id) for node_id in plan.outputs]
    joined = outputs[0] if len(outputs) == 1 else f"torch.cat(({', '.join(outputs)}), dim=1)"
    return "\n".join([*lines, f"    return {joined}", ""])


def _expression(node: NodeShapes) -> str:
    assert node.operation is not None
    row, settings = node.operation.row, node.operation.settings
    inputs = {port: plan.shape for port, plan in node.inputs.items()}
    values = {port: _merged(plan) for port, plan in node.inputs.items()}
    value = row.call(inputs, settings).format(module=f"self.node_{node.node.node_id}", **values)
    kind = activation(node.node.activation_function)
    assert issubclass(kind, CodeActivation)
    return kind.code.format(z=value) if node.node.activation_function != "linear" else value


def _merged(plan: MergePlan) -> str:
    values = [
        _aligned(f"{edge.source}_{edge.target}", variable(edge.source), adapter, plan.align)
        for edge, adapter in zip(plan.edges, plan.adapters, strict=True)
    ]
    if len(values) == 1:
        return values[0]
    assert plan.merge == "sum"
    return f"({' + '.join(values)})"


def _aligned(label: str, value: str, adapter: Adapter, align: str) -> str:
    source, target = adapter.source, adapter.target
    if adapter.pools_to_vector:
        value = f"{value}.mean(dim={tuple(a + 1 for a in range(len(source.sizes)) if a != source.channel_axis)})"
    elif adapter.pools_positions:
        assert source.layout is Layout.IMAGE
        value = f"F.adaptive_avg_pool2d({value}, {target.positions})"
    if adapter.changes_channels:
        missing = target.channels - source.channels
        after = (0, 0) * (len(target.sizes) - 1 - target.channel_axis)
        value = f"self.adapt_{label}({value})" if align == "auto" else f"F.pad({value}, {(*after, 0, missing)})"
    return value


def _projection(adapter: Adapter) -> nn.Module:
    source, target = adapter.source.channels, adapter.target.channels
    match adapter.target.layout:
        case Layout.IMAGE:
            return nn.Conv2d(source, target, 1, bias=False)
        case Layout.SIGNAL:
            return nn.Conv1d(source, target, 1, bias=False)
        case _:
            return nn.Linear(source, target, bias=False)
