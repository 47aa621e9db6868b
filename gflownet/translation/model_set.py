"""A set of networks as one module: the mean of their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from gflownet.errors import UserError
from gflownet.translation.array_inputs import ArrayInputs
from gflownet.translation.model import TranslatedModel
from gflownet.translation.table_columns import TableColumns


class ModelSet(nn.Module):
    """Weighted mean of the predictions of networks: log of the mean probabilities [B, C], or mean numbers [B, O].

    Both may have positions, in the layout of the networks' outputs.
    """

    weights: Tensor  # [M], their sum is 1

    def __init__(self, members: Sequence[nn.Module], weights: Sequence[float], *, has_classes: bool) -> None:
        """Take the networks; `has_classes`: their outputs are logits."""
        super().__init__()
        self.members, self.has_classes = nn.ModuleList(members), has_classes
        self.register_buffer("weights", torch.tensor(weights))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the outputs of independent examples."""
        calls = (each.first_step if isinstance(each, TranslatedModel) else each for each in self.members)
        outputs = torch.stack([call(*inputs) for call in calls])  # [M, B, ...]
        weights = self.weights.to(outputs).view(-1, *[1] * (outputs.ndim - 1))
        if self.has_classes:
            return (outputs.log_softmax(self._class_axis) + weights.log()).logsumexp(0)
        return (weights * outputs).sum(0)

    @property
    def _class_axis(self) -> int:
        """The axis of the classes in outputs [M, B, ...]."""
        first = self.members[0]
        return first.plan.outputs[0][1].channel_axis + 2 if isinstance(first, TranslatedModel) else -1

    @property
    def columns(self) -> TableColumns | None:
        """The columns of a table, None for other data."""
        return getattr(self.members[0], "columns", None)

    @property
    def arrays(self) -> ArrayInputs | None:
        """How images or signals become inputs, None for other data."""
        return getattr(self.members[0], "arrays", None)

    first_step, predict, class_names = nn.Module.__call__, TranslatedModel.predict, TranslatedModel.class_names

    @property
    def translated(self) -> TranslatedModel:
        """A network without state. Raises UserError for networks with state, or modules."""
        for each in self.members:
            if not isinstance(each, TranslatedModel) or each.plan.slots:
                raise UserError(f"expected a set of translated networks without state, got {type(each).__name__}")
        return cast(TranslatedModel, self.members[0])
