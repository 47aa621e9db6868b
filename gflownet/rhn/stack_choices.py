"""Stacks from choices by place, the candidates of `env.name=recurrent_stack` (no torch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.rhn.config import GATED_CELLS, StackConfig, StackLayer

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
