"""Slow twin of gflownet.evaluation.training: torch's plain loop, one optimiser over the separate parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def train_plainly(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    num_epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> float:
    """Trains in place and returns the mean loss of the last epoch's batches."""
    optimiser = torch.optim.Adam(model.parameters(), lr=learning_rate, foreach=False)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for _ in range(num_epochs):
        order = torch.randperm(len(inputs), generator=generator).tolist()
        losses = []
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    return sum(losses) / len(losses)
