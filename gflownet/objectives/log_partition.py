"""The learned log Z as a function of the conditioning, and its initial estimate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gflownet.objectives.steps import log_sum_by

_WIDTH = 64  # hidden width of the network of the conditioning


def estimated_log_partition(log_ratio: Tensor, conditioning: Tensor) -> Tensor:
    """Return an initial estimate of log Z, scalar: the mean over conditionings.

    E[R(x) P_B(tau | x) / P_F(tau)] over sampled trajectories is Z. A mean of logarithms would be far too low for
    rewards that differ by orders of magnitude.

    Args:
        log_ratio: log P_F(tau) - log P_B(tau | x) - log R(x) of B trajectories, [B].
        conditioning: [B, C].
    """
    distinct, group = torch.unique(conditioning, dim=0, return_inverse=True)
    group = group.to(log_ratio.device)
    num = torch.bincount(group, minlength=len(distinct))
    return (log_sum_by(group, -log_ratio, len(distinct)) - num.log()).mean()


class LogPartition(nn.Module):
    """log Z of each conditioning: a scalar parameter plus a small network of the conditioning that starts at 0.

    The scalar has its own, larger learning rate; the network has the policy's, since its many weights together change
    log Z much more per step.
    """

    def __init__(self, num_cond_dim: int, *, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.base = nn.Parameter(torch.zeros(()))
        last = nn.Linear(_WIDTH, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.shape = nn.Sequential(nn.Linear(num_cond_dim, _WIDTH), nn.SiLU(), last)

    def forward(self, conditioning: Tensor) -> Tensor:
        """Return log Z under each conditioning [B, C] on any device, [B]."""
        return self.base + self.shape(conditioning.to(self.base.device)).squeeze(1)

    def parameter_groups(self) -> list[dict]:
        """Return the scalar, with its own learning rate, and the network."""
        base = {"params": [self.base], "lr": self.learning_rate, "weight_decay": 0.0}
        return [base, {"params": list(self.shape.parameters()), "weight_decay": 0.0}]
