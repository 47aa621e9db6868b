"""Slow versions of gflownet.evaluation.candidates.trainer and supervised: autograd, one optimiser per candidate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gflownet.evaluation.candidates.supervised import Splits
from gflownet.evaluation.config import EvaluationConfig
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.training.random_states import seeded
from gflownet.translation import to_pytorch_model


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
    """Train in place with a standard torch loop; return the mean loss of the last epoch."""
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


def score_one_by_one(
    graph: ComputationGraph, splits: Splits, *, config: EvaluationConfig, seed: int
) -> tuple[float, float]:
    """Return validation accuracy and training loss of one candidate, trained with fused Adam on one flat parameter."""
    inputs, targets = splits.train.inputs, splits.train.targets
    generator = torch.Generator().manual_seed(seed)
    with seeded(seed):
        model = to_pytorch_model(graph, {"projection": config.projection, "dtype": inputs.dtype})
        flat = _flattened(model)
        optimiser = torch.optim.Adam([flat], lr=config.learning_rate, fused=True)
        losses: list[Tensor] = []
        for _ in range(config.num_epochs):
            order = torch.randperm(len(inputs), generator=generator)
            batches = zip(
                inputs.index_select(0, order).split(config.batch_size),
                targets.index_select(0, order).split(config.batch_size),
                strict=True,
            )
            losses = []
            for batch_inputs, batch_targets in batches:
                optimiser.zero_grad(set_to_none=False)
                loss = nn.functional.cross_entropy(model(batch_inputs, reset_states=True), batch_targets)
                loss.backward()
                optimiser.step()
                losses.append(loss.detach())
            mean_loss = float(torch.stack(losses).mean())
            if not mean_loss <= 1_000.0:
                raise RuntimeError(f"diverged: {mean_loss}")
    model.eval()
    with torch.no_grad():
        correct = model(splits.validation.inputs, reset_states=True).argmax(dim=1) == splits.validation.targets
    return float(correct.double().mean()), float(torch.stack(losses).mean())


def _flattened(model: nn.Module) -> nn.Parameter:
    """Return one parameter; values and gradients of the model are views of it."""
    parameters = list(model.parameters())
    flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, values, gradient in zip(parameters, flat.data.split(sizes), flat.grad.split(sizes), strict=True):
        parameter.data = values.view_as(parameter)
        parameter.grad = gradient.view_as(parameter)
    return flat
