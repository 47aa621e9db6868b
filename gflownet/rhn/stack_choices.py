"""Stacks from choices by place, the candidates of `env.name=recurrent_stack` (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.rhn.config import GATED_CELLS, StackConfig, StackLayer, stack_words

NOTHING = "none"  # value of a place that the stack does not have


def read_stack(choices: Mapping[str, Any], *, width: int = 1, bottleneck: int = 16) -> StackConfig:
    """Return a finished stack.

    Args:
        choices: values by place: width, rank, ratio, cell[1], projections[1], beta[1], residual[1], units[1], cell[2].
            "none" or a missing place: not a choice of this stack.
        width: of a stack without a choice of its width.
        bottleneck: of RHN layers.

    Raises:
        ValueError: an invalid or unfinished stack.
    """
    values = {name: str(value) for name, value in choices.items() if value != NOTHING}
    layers = []
    while f"cell[{len(layers) + 1}]" in values:
        layers.append(_layer(values, f"[{len(layers) + 1}]"))
    return StackConfig(tuple(layers), width=int(values.get("width", width)), bottleneck=bottleneck)


def _layer(values: Mapping[str, str], place: str) -> StackLayer:
    cell = values["cell" + place]
    if cell in GATED_CELLS:
        units = values.get("units" + place, "width")
        return StackLayer(
            cell, residual=values.get("residual" + place, "on") == "on", units=None if units == "width" else int(units)
        )
    if cell != "rhn":
        return StackLayer(cell)
    missing = [name for name in ("rank", "ratio", "projections" + place, "beta" + place) if name not in values]
    if missing:
        raise ValueError(f"cell{place}: expected {', '.join(missing)} of an rhn layer, got none")
    return StackLayer(
        cell,
        rank=int(values["rank"]),
        projections=tuple(values["projections" + place].split("+")),
        beta=values["beta" + place] == "on",
        ratio=float(values["ratio"]),
    )


def choices_in_words(graph: Mapping[str, Any], *, width: float | None) -> str:
    """Return the node-link data of a stack in words, see `stack_words`; empty for other data.

    Args:
        graph: node-link data of a candidate.
        width: of its model, if known; without it and without a choice the words have no sizes.
    """
    nodes = graph.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) and "name" in node for node in nodes):
        return ""
    choices = {str(node["name"]): node.get("value") for node in nodes}
    if "cell[1]" not in choices:
        return ""
    try:
        words = stack_words(read_stack(choices, width=int(width or 1)))
    except (ValueError, TypeError):
        return ""
    is_sized = width or choices.get("width", NOTHING) != NOTHING
    return words if is_sized else words.replace(" 1 ", " ").replace(" 1", "")
