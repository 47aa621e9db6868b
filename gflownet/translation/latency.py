"""Latency of a model."""

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from gflownet.translation.model import TranslatedModel

NUM_WARM_UP = 5


@dataclass(frozen=True)
class Latency:
    """Seconds per forward call, over many calls in eval mode without autograd."""

    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    num_calls: int
    batch_size: int


def measure_latency(model: TranslatedModel, *, batch_size: int = 1, num_calls: int = 100) -> Latency:
    """Time `num_calls` forward calls on rows of zeros after a warm-up; the model's state is unchanged."""
    if batch_size < 1 or num_calls < 1:
        raise ValueError(f"expected batch_size and num_calls >= 1, got {batch_size} and {num_calls}")
    parameter = next(model.parameters())
    x = torch.zeros(batch_size, model.plan.input_size, dtype=parameter.dtype, device=parameter.device)
    state, was_training = model.state_manager.tensors, model.training
    model.eval()
    try:
        with torch.no_grad():
            seconds = [_timed(model, x) for _ in range(NUM_WARM_UP + num_calls)][NUM_WARM_UP:]
    finally:
        model.train(was_training)
        model.state_manager.tensors = state
    return Latency(median(seconds), min(seconds), max(seconds), num_calls, batch_size)


def _timed(model: TranslatedModel, x: Tensor) -> float:
    start = perf_counter()
    model(x, reset_states=True)
    if x.is_cuda:
        torch.cuda.synchronize(x.device)  # forward only queues kernels
    return perf_counter() - start
