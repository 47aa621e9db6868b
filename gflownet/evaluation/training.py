"""Training one candidate: a small classifier, a fixed number of epochs, one thread.

Shapes: N examples, F features, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.evaluation.config import EvaluationConfig

# No classifier that still learns has a cross-entropy of 1,000 nats: its logits would be off by 1,000.
DIVERGED_LOSS = 1_000.0


class CandidateDivergedError(RuntimeError):
    """The training loss left the numbers from which a candidate could recover."""


@dataclass(frozen=True)
class Split:
    """Labelled examples."""

    inputs: Tensor  # [N, F] float32
    targets: Tensor  # [N] int64, class indices


def train_classifier(model: nn.Module, data: Split, *, config: EvaluationConfig, generator: torch.Generator) -> float:
    """Trains `model` in place with Adam on cross-entropy and returns the mean training loss of the last epoch.

    The parameters share one dtype and device. `generator` shuffles the examples of each epoch; whoever calls decides
    about torch's global generator (dropout).

    Raises:
        CandidateDivergedError: the mean loss of an epoch is not finite or above DIVERGED_LOSS.
    """
    parameters = _flattened(list(model.parameters()))
    optimiser = torch.optim.Adam([parameters], lr=config.learning_rate, fused=True)
    model.train()
    mean_loss = math.nan
    for epoch in range(config.num_epochs):
        mean_loss = _train_epoch(model, data, optimiser, batch_size=config.batch_size, generator=generator)
        if not mean_loss <= DIVERGED_LOSS:
            raise CandidateDivergedError(
                f"epoch {epoch + 1}: expected a training loss <= {DIVERGED_LOSS:g}, got {mean_loss:g}"
            )
    return mean_loss


@torch.no_grad()
def accuracy(model: nn.Module, data: Split) -> float:
    """Returns the share of examples whose largest logit is their class."""
    model.eval()
    return float((model(data.inputs).argmax(dim=1) == data.targets).double().mean())


def _train_epoch(
    model: nn.Module, data: Split, optimiser: torch.optim.Optimizer, *, batch_size: int, generator: torch.Generator
) -> float:
    """Takes one optimiser step per batch and returns the mean loss."""
    # One gather per epoch and views of it per batch: a DataLoader costs more than the steps of so small a model.
    order = torch.randperm(len(data.inputs), generator=generator).to(data.inputs.device)
    inputs = data.inputs.index_select(0, order).split(batch_size)
    targets = data.targets.index_select(0, order).split(batch_size)
    losses = []
    for batch_inputs, batch_targets in zip(inputs, targets, strict=True):
        # Kept, not set to None: the gradients are views of one tensor.
        optimiser.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(batch_inputs), batch_targets)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def _flattened(parameters: Sequence[nn.Parameter]) -> nn.Parameter:
    """Returns one parameter that holds all the given ones, which become views of it, as do their gradients.

    A candidate has dozens of tiny tensors; updating them as one takes a sixth off its training time.
    """
    flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values, gradient in zip(parameters, flat.data.split(sizes), flat.grad.split(sizes), strict=True):
        parameter.data = values.view_as(parameter)
        parameter.grad = gradient.view_as(parameter)
    return flat
