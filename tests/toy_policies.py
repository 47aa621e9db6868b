"""Policies without parameters."""

import torch
from torch import Tensor

from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import Policy


class UniformPolicy(Policy):
    """Uniform over legal actions."""

    def __init__(self, context: GraphBuildingEnvContext) -> None:
        super().__init__()
        self.context = context

    def forward(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        logits = [torch.zeros(mask.shape) for mask in self.context.masks(batch)]
        return self.context.categorical(batch, logits), torch.zeros(len(conditioning))
