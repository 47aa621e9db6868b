"""Texts of a figure: short names of operations, adapters and subgraphs, tooltips."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gflownet.graphs.elements import DEFAULT_AGGREGATION, Node
from gflownet.graphs.operation import AppliedOperation, read_operation
from gflownet.graphs.operation_costs import OperationCost
from gflownet.graphs.outside_classes import is_imported
from gflownet.layered_drawing import shortened
from gflownet.operations.tensor_shape import Adapter, Layout
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import short_name

MAX_LABEL_LENGTH = 40
TIMES = "\N{MULTIPLICATION SIGN}"
_NUMBERED = ("1d", "2d")  # endings of names that the shape shows anyway


def operation_label(applied: AppliedOperation, layout: Layout | None = None) -> str:
    """Return a short name with the settings that a reader expects: conv 3×3, 16 /2."""
    name, settings = short_name(applied.name), applied.settings
    for ending in _NUMBERED:
        name = name.removesuffix(ending)
    words = name.replace("_", " ").strip()
    words = words.replace("self attention", "self-attention").replace("cross attention", "cross-attention")
    if (size := settings.get("kernel_size")) is not None:
        words += f" {size}{TIMES}{size}" if layout is Layout.IMAGE or applied.name.endswith("2d") else f" {size}"
    parts = [str(settings[key]) for key in ("features", "hidden_features") if isinstance(settings.get(key), int)][:1]
    parts += [f"{settings['heads']} heads"] if isinstance(settings.get("heads"), int) else []
    label = ", ".join([words, *parts])
    stride = settings.get("stride", 1)
    return label + (f" /{stride}" if stride != 1 and "pool" not in applied.name else "")


def applied_operation(node: Node) -> AppliedOperation | None:
    """Return the operation of a node, None without a valid one, and of a class that is not imported."""
    if "operation" not in node.attributes or not is_imported(_name(node)):
        return None
    try:
        return read_operation(node.attributes["operation"])
    except ValueError:
        return None


def unread_operation(node: Node) -> str:
    """Return the name of an operation that is invalid or not imported; a question mark without a name."""
    name = _name(node)
    return short_name(name) if isinstance(name, str) else "?"


def _name(node: Node) -> object:
    operation = node.attributes.get("operation")
    return operation.get("name") if isinstance(operation, Mapping) else None


def frame_title(node: Node) -> str:
    """Return name and repetitions of a subgraph."""
    repeat, share = node.attributes.get("repeat", 1), node.attributes.get("share", False)
    times = f" {TIMES} {repeat}" if repeat != 1 else ""
    return shortened(f"{node.attributes['subgraph']}{times}{', shared' if share is True else ''}", MAX_LABEL_LENGTH)


def adapter_text(adapter: Adapter, align: str | None) -> str:
    """Return the steps of an adapter; empty where the shapes agree or broadcast."""
    steps = []
    if adapter.pools_to_vector:
        steps.append("global average")
    elif adapter.pools_positions:
        steps.append(f"average to {TIMES.join(map(str, adapter.target.positions))}")
    if adapter.changes_channels:
        kind = f"1{TIMES}1 conv" if adapter.target.layout in (Layout.IMAGE, Layout.SIGNAL) else "linear"
        steps.append(f"{'pad' if align == 'pad' else kind}, {adapter.target.channels}")
    return " · ".join(steps)


def node_tooltip(node: Node, cost: OperationCost | None = None) -> str:
    """Return everything about a node in one line."""
    text = f"node {node.node_id}: {node.activation_function}"
    text += f", aggregation {thawed(node.aggregation)}" if node.aggregation != DEFAULT_AGGREGATION else ""
    text += f", {json.dumps(thawed(node.attributes))}" if node.attributes else ""
    return text + (f", {cost_text(cost)}" if cost is not None else "")


def cost_text(cost: OperationCost) -> str:
    """Return parameters and multiply-adds as text."""
    return f"{cost.num_parameters:,} parameters, {cost.multiply_adds:,} multiply-adds"
