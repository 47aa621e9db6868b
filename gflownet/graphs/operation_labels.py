"""Texts of a figure: short names of operations, adapters and subgraphs, tooltips."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from gflownet.graphs.elements import DEFAULT_AGGREGATION, Node, NodeKind, is_imported
from gflownet.graphs.operation import OPERATIONS, AppliedOperation, operation
from gflownet.graphs.typed import OperationCost
from gflownet.operations.operation import Category, category_of
from gflownet.operations.tensor_shape import CHANNELS_FIRST, Adapter, Layout, Shape
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import short_name
from gflownet.pictures.figure import Colours, shortened

MAX_LABEL_LENGTH = 40
# One colour for all operations of a category, in every drawing.
CATEGORY_COLOURS: Mapping[Category, Colours] = {
    Category.CONVOLUTION: Colours("#dbeafe", "#2563eb"),
    Category.LINEAR: Colours("#e0e7ff", "#4f46e5"),
    Category.ATTENTION: Colours("#ffedd5", "#ea580c"),
    Category.RECURRENT: Colours("#fce7f3", "#db2777"),
    Category.POOLING: Colours("#dcfce7", "#16a34a"),
    Category.NORMALISATION: Colours("#f3e8ff", "#9333ea"),
    Category.TOKENS: Colours("#ccfbf1", "#0d9488"),
    Category.RESHAPING: Colours("#fef9c3", "#ca8a04"),
    Category.OTHER: Colours("#f1f5f9", "#64748b"),
}
_PLAIN_WORDS = ("skip", "identity", "none")  # in names of operations that are not in the vocabulary
_MERGE_SIGNS = {"sum": "+", "product": "\N{MULTIPLICATION SIGN}"}
TIMES = "\N{MULTIPLICATION SIGN}"
# Settings that are the width of the output.
_WIDTHS = ("features", "hidden_features", "out_channels", "out_features", "hidden_size", "embedding_dim")
_NUMBERED = ("1d", "2d", "3d")  # endings of names that the shape shows anyway


def colours_of(name: str) -> Colours:
    """Return the colours of an operation by its name, the same in every drawing."""
    if name in OPERATIONS.homes:
        return CATEGORY_COLOURS[operation(name).category]
    category = category_of(short_name(name))
    if category is not Category.OTHER or any(word in name.lower() for word in _PLAIN_WORDS):
        return CATEGORY_COLOURS[category]
    choices = [colours for category, colours in CATEGORY_COLOURS.items() if category is not Category.OTHER]
    return choices[crc32(name.encode("utf-8", "replace")) % len(choices)]


def node_text(node: Node, layout: Layout | None) -> str:
    """Return operation and activation of a node; empty for an identity without activation."""
    activation = short_name(node.activation_function)
    activation = "" if activation in ("linear", "identity") else activation
    applied = applied_operation(node)
    if applied is None:
        text = short_name(name) if isinstance(name := node.operation_name, str) else "?"  # invalid or not imported
    elif applied.name == "identity":
        text, activation = activation, ""
    else:
        text = operation_label(applied, layout)
    return shortened(f"{text} · {activation}" if activation else text, MAX_LABEL_LENGTH)


def merge_sign(node: Node) -> str:
    """Return the sign or name of an aggregation in a circle."""
    name = short_name(str(thawed(node.aggregation)))
    return _MERGE_SIGNS.get(name, shortened(name, MAX_LABEL_LENGTH))


def shape_text(shape: Shape) -> str:
    """Return the sizes of a shape."""
    return TIMES.join(map(str, shape.sizes))


def operation_label(applied: AppliedOperation, layout: Layout | None = None) -> str:
    """Return a short name with the settings that a reader expects: conv 3×3, 16 /2."""
    name, settings = short_name(applied.name), applied.settings
    for ending in _NUMBERED:
        name = name.removesuffix(ending)
    words = name.replace("_", " ").strip()
    words = words.replace("self attention", "self-attention").replace("cross attention", "cross-attention")
    if (size := settings.get("kernel_size")) is not None:
        num = 2 if layout is Layout.IMAGE or applied.name.endswith("2d") else 3 if applied.name.endswith("3d") else 1
        words += f" {_sizes_text((size,) * num if isinstance(size, int) else size)}"
    parts = [str(settings[key]) for key in _WIDTHS if isinstance(settings.get(key), int)][:1]
    parts += [f"{settings[key]} heads" for key in ("heads", "num_heads", "nhead") if isinstance(settings.get(key), int)]
    label = ", ".join([words, *parts])
    stride = settings.get("stride") or 1
    return label + (f" /{_sizes_text(stride)}" if stride != 1 and "pool" not in applied.name.lower() else "")


def _sizes_text(sizes: Any) -> str:
    """Return a size or one per axis: 3, 1×7."""
    return TIMES.join(map(str, sizes)) if isinstance(sizes, tuple) else str(sizes)


def applied_operation(node: Node) -> AppliedOperation | None:
    """Return the operation of a node, None without a valid one, and of a class that is not imported."""
    if node.kind not in (NodeKind.OPERATION, NodeKind.SUBGRAPH) or not is_imported(node.operation_name):
        return None
    try:
        return node.applied
    except ValueError:
        return None


def frame_title(node: Node) -> str:
    """Return name and repetitions of a subgraph."""
    times = f" {TIMES} {node.repeat}" if node.repeat != 1 else ""
    return shortened(f"{node.subgraph}{times}{', shared' if node.share is True else ''}", MAX_LABEL_LENGTH)


def adapter_text(adapter: Adapter, align: str | None) -> str:
    """Return the steps of an adapter; empty where the shapes agree or broadcast."""
    steps = []
    if adapter.pools_to_vector:
        steps.append("global average")
    elif adapter.pools_positions:
        kind = "average" if adapter.averages_positions else "repeat"
        steps.append(f"{kind} to {TIMES.join(map(str, adapter.target.positions))}")
    if adapter.changes_channels:
        kind = f"1{TIMES}1 conv" if adapter.target.layout in CHANNELS_FIRST else "linear"
        steps.append(f"{'pad' if align == 'pad' else kind}, {adapter.target.channels}")
    return " · ".join(steps)


def node_tooltip(node: Node, cost: OperationCost | None = None) -> str:
    """Return everything about a node in one line."""
    text = f"node {node.node_id}: {node.activation_function}"
    text += f", bias {node.bias:g}" if node.output_size is not None else ""
    text += f", aggregation {thawed(node.aggregation)}" if node.aggregation != DEFAULT_AGGREGATION else ""
    return text + attributes_text(node.attributes) + (f", {cost_text(cost)}" if cost is not None else "")


def attributes_text(attributes: Mapping[str, Any]) -> str:
    """Return attributes as JSON behind a comma, empty without any."""
    return f", {json.dumps(thawed(attributes))}" if attributes else ""


def cost_text(cost: OperationCost) -> str:
    """Return parameters and multiply-adds as text."""
    return f"{cost.num_parameters:,} parameters, {cost.multiply_adds:,} multiply-adds"
