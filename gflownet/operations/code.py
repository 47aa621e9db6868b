"""Python text of generated models: names, dialects, aligned values, and the statements of one node."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from gflownet.operations.activations import Cell, CodeActivation
from gflownet.operations.operation import INPUT_PORT, Category
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Adapter, Layout, Shape
from gflownet.operations.vocabulary import Activation, activation

_OVER_POSITIONS = re.compile(r"\{input\}(\.mT)?\.(mean|a(max))\(dim=\(\d,\)\)")


@dataclass(frozen=True)
class Dialect:
    """How generated code reads parameters and runs recurrent cells."""

    parameter: Callable[[str], str]  # 0-d parameter or query
    module: Callable[[str], str]
    is_sequence: bool = False  # rows are all time steps, one after the other
    scaled: Mapping[str, str] = field(default_factory=dict)  # by layer: variables that hold weight times matrix
    # Whether means over positions are taken over the first axes, so that their gradients are in channels_last.
    moves_channels: bool = False
    num_copies: int = 1  # of one model, whose channels are next to each other in each value
    is_padded: bool = False  # `mask` [B, 1, T] is 1 where the input, a signal, has values
    calls_layers: bool = True  # False: `project` scales the weight of an untouched linear layer
    argument: str = "x"  # the first one of forward

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


def group(expressions: list[str]) -> str:
    """The expressions as a tuple."""
    return f"({', '.join(expressions)},)" if len(expressions) == 1 else f"({', '.join(expressions)})"


def outside_name(name: str) -> str:
    """The identifier of a user's class `module:Class` in generated code, different for different names."""
    return "user_" + name.replace("_", "_u").replace(".", "_d").replace(":", "_c")


def outside_value(kind: type[Activation]) -> Any:
    """What the identifier of an activation by name stands for: its class, or the function or module itself."""
    return kind.forward if kind.is_function else kind


class NodeCode:
    """The statements of one node, from the values at its ports to its variable."""

    def __init__(self, node: Any, values: Mapping[str, str], dialect: Dialect) -> None:
        self.node = node  # of a typed graph
        self.values, self.dialect = values, dialect  # expressions by port
        self.result = variable(node.node_id)

    def name(self, word: str) -> str:
        """The name of a variable of this node."""
        return identifier(f"{word}{self.node.node_id}")

    def called(self) -> list[str]:
        """The statements with the `call` of an operation."""
        node, call = self.node, self.node.what.at.call
        shape = node.input_shapes.get(INPUT_PORT)
        has_mask = self.dialect.is_padded and node.operation.row.category is not Category.NORMALISATION
        if has_mask and shape is not None and len(shape.positions) == 1:
            call = _masked_call(call, shape)
        elif self.dialect.moves_channels and shape is not None and "{input}.mean(" in call:
            call = call.replace(f"{{input}}{_mean(shape)}", f"{{input}}{_mean(shape, moves_channels=True)}")
        state = {slot.kind: self.name(slot.kind) for slot in node.slots}
        expression = call.format(module=self.dialect.module(node.label), **self.values, **state)
        if not (state or node.has_edge_weights):
            return self.activated(expression)
        results = ", ".join([self.result, *(self.name(f"new_{kind}") for kind in state)])
        return [f"{results} = {expression}", *self.finished()]

    def finished(self) -> list[str]:
        """The statement that adds the bias of a node with edge weights and applies the activation; none for neither."""
        has_bias = self.node.has_edge_weights
        return self.activated(f"{self.result} + {self.bias}" if has_bias else self.result)

    @property
    def bias(self) -> str:
        """The expression of the learned bias."""
        return self.dialect.parameter(self.node.named("bias"))

    def activated(self, z: str) -> list[str]:
        """The statement from the value before the activation to the node's variable, and its new state."""
        name = self.node.node.activation_function
        kind = activation(name)
        if issubclass(kind, Cell):
            template = kind.sequence if self.dialect.is_sequence else kind.step
            state = {slot: self.name(slot) for slot in kind.slots}
            layer = self.dialect.module(self.node.named(name))
            return [template.format(y=self.result, z=z, layer=layer, new_cell=self.name("new_cell"), **state)]
        if issubclass(kind, CodeActivation):
            is_channels_first = self.node.output.layout in CHANNELS_FIRST
            code = (kind.channels_first_code if is_channels_first else "") or kind.code
            value = code.format(z=z)
        else:
            value = f"{outside_name(name)}{'' if kind.is_function else '.forward'}({z})"
        return [f"{self.result} = {value}"] if value != self.result else []


def aligned(value: str, adapter: Adapter, dialect: Dialect) -> str:
    """The expression of a value with its positions changed to those of the target, or with axes of size 1."""
    source, target = adapter.source, adapter.target
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


def padded(value: str, adapter: Adapter, dialect: Dialect) -> str:
    """The expression of a value with zeros for the missing channels."""
    axes_after = len(adapter.target.sizes) - 1 - adapter.target.channel_axis
    missing = adapter.target.channels - adapter.source.channels
    if dialect.num_copies > 1:
        return f"pad_copies({dialect.num_copies}, {value}, {missing})"
    return f"F.pad({value}, {(*(0, 0) * axes_after, 0, missing)})"


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
