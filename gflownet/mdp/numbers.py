"""Numbers that describe architectures to a surrogate: of a batch of states at once, equal for isomorphic ones.

Letters: B states, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from gflownet.mdp.states import UNSET, GraphStates, GraphVocabulary


class Group(IntEnum):
    """Numbers with one distance in a kernel."""

    SIZES = 0
    PATHS = 1
    SETTINGS = 2
    COUNTS = 3
    SHAPES = 4
    PLACES = 5
    ENDS = 6


Numbers = list[tuple[str, Group, Tensor]]  # name, group and values [B] of each number; NaN: unknown


def setting_numbers(vocabulary: GraphVocabulary, states: GraphStates) -> Numbers:
    """Return mean, extremes and sum over the nodes of attributes that are numbers, counts of the values of others."""
    columns, ends = Numbers(), nodes_at_ends(states.exists, states.has_edge)
    for position, attribute in enumerate(vocabulary.node_attributes):
        index = states.node_attr[:, :, position].long()
        is_set = index != UNSET
        numbers = ordered(attribute.values)
        if numbers is None:
            columns += [
                (f"nodes with {attribute.name}={value}", Group.COUNTS, (index == number).sum(1))
                for number, value in enumerate(attribute.values)
            ]
            continue
        value = numbers[index].masked_fill(~is_set, 0.0)
        columns += [
            (f"{kind} of {attribute.name}{place}", Group.SETTINGS, number)
            for place, at in ends.items()
            for kind, number in summaries(value, is_set & at).items()
        ]
        filled = value.masked_fill(~is_set, 1.0)
        products = torch.einsum("bs,bst,bt->b", filled, states.has_edge.double(), filled)
        columns.append((f"products of {attribute.name} along edges", Group.SIZES, products.abs().log1p()))
    return columns


def nodes_at_ends(exists: Tensor, edge: Tensor) -> dict[str, Tensor]:
    """Return all nodes [B, N], those that read a source, and those that a sink reads, for edges [B, N, N]."""
    first, last = (edge & ~edge.any(1)[:, :, None]).any(1), (edge & ~edge.any(2)[:, None, :]).any(2)
    return {"": exists, " at a source": first, " at a sink": last}


def summaries(values: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return sum, mean, largest and least value [B] of values [B, N] under a mask; NaN but the sum for an empty one."""
    is_any, total = mask.any(1), (values * mask).sum(1)
    columns = {
        "mean": total / mask.sum(1),
        "largest": values.masked_fill(~mask, -torch.inf).amax(1),
        "least": values.masked_fill(~mask, torch.inf).amin(1),
    }
    return {"sum": total, **{name: x.masked_fill(~is_any, torch.nan) for name, x in columns.items()}}


def ordered(values: Sequence[Any]) -> Tensor | None:
    """Return values that are all numbers, at least two, as float64; None for others."""
    if len(values) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return None
    return torch.tensor(values, dtype=torch.float64)
