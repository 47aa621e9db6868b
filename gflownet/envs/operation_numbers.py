"""Numbers of operation graphs for a surrogate: sizes, channels, positions, receptive field.

Letters: B states, P prefixes and I inputs of the tables, see operation_tables.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gflownet.envs.operation_choices import OperationChoices, Prefix
from gflownet.envs.operation_tables import OperationTables
from gflownet.mdp.states import Group, Numbers, summaries


class ShapeNumbers:
    """Numbers of operation graphs: sizes, channels, positions at which operations act, and the receptive field."""

    def __init__(self, tables: OperationTables, choices: OperationChoices) -> None:
        self._tables, self._choices = tables, choices
        self._costs = torch.full((*tables.cost.shape,), torch.nan, dtype=torch.float64)  # [P, I, 2]; NaN: not computed
        self._shape = torch.tensor(tables.sizes, dtype=torch.float64).log2()  # [I, 2] channels, positions
        extents = [_extent(choices, prefix) for prefix in choices.prefixes]
        self._extent = torch.tensor([*extents, 0.0], dtype=torch.float64)
        self._positions = self._shape[tables.inputs][:, 1].amax()

    def __call__(self, facts: Any, output: int) -> Numbers:
        """Return the numbers of a batch, from its OperationFacts and the place of the output node."""
        edge, is_hidden = facts.edge, facts.is_hidden
        is_last = edge[:, :, output] & is_hidden  # read by the output
        received, channels = self._shape[facts.input], self._shape[facts.output][..., 0]
        extent = self._extent[facts.prefix]
        step = (self._positions - received[..., 1]).clamp(min=0) * is_hidden  # logarithm of the strides before
        field, cost = torch.zeros_like(extent), self._cost(facts).log1p()
        for _ in range(edge.shape[1] - output):
            field = (field[:, :, None] * edge).amax(1) + extent * step.exp2()
        columns: Numbers = [
            ("log parameters", Group.SIZES, cost[:, 0]),
            ("log multiply-adds", Group.SIZES, cost[:, 1]),
            ("receptive field", Group.SHAPES, field.amax(1).log1p()),
            ("least receptive field", Group.SHAPES, field.masked_fill(~is_last, torch.inf).amin(1).log1p()),
            ("sum of kernels", Group.SHAPES, (extent * is_hidden).sum(1)),
        ]
        for name, values, mask in (
            ("positions", received[..., 1], is_hidden),
            ("channels", channels, is_hidden),
            ("channels at the output", channels, is_last),
        ):
            columns += [(f"{kind} of log {name}", Group.SHAPES, x) for kind, x in summaries(values, mask).items()]
        return columns

    def _cost(self, facts: Any) -> Tensor:
        """Return parameters and multiply-adds [B, 2] float64, without learned projections of inputs."""
        prefix, shape = facts.prefix[facts.is_hidden], facts.input[facts.is_hidden]
        is_missing = self._costs[prefix, shape, 0].isnan()
        for pair in dict.fromkeys(zip(prefix[is_missing].tolist(), shape[is_missing].tolist(), strict=True)):
            applied = self._choices.applied(self._choices.prefixes[pair[0]])
            inputs = dict(zip(applied.required_ports, self._tables.operands[pair[1]], strict=True))
            self._costs[pair] = torch.tensor(applied.at(inputs).cost, dtype=torch.float64)
        total = torch.zeros(*facts.prefix.shape, 2, dtype=torch.float64)
        total[facts.is_hidden] = self._costs[prefix, shape]
        return total.sum(1) + facts.head.double()


def _extent(choices: OperationChoices, prefix: Prefix) -> float:
    """Return the positions that an operation reads beyond one, 0 of an incomplete prefix."""
    if choices.next_attribute(prefix) is not None:
        return 0.0
    settings = choices.applied(prefix).settings
    kernel, dilation = (settings.get(name, 1) for name in ("kernel_size", "dilation"))
    kernel, dilation = (value if isinstance(value, int | float) else 1 for value in (kernel, dilation))
    return float((kernel - 1) * dilation)
