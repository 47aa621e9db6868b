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
    """Time `num_calls` forward calls on zeros after a warm-up; the model's state is unchanged."""
    if batch_size < 1 or num_calls < 1:
        raise ValueError(f"expected batch_size and num_calls >= 1, got {batch_size} and {num_calls}")
    inputs, was_training = model.zeros(batch_size), model.training
    model.eval()
    try:
        with torch.no_grad():
            seconds = [_timed(model, inputs) for _ in range(NUM_WARM_UP + num_calls)][NUM_WARM_UP:]
    finally:
        model.train(was_training)
    return Latency(median(seconds), min(seconds), max(seconds), num_calls, batch_size)


def _timed(model: TranslatedModel, inputs: tuple[Tensor, ...]) -> float:
    start = perf_counter()
    model.first_step(*inputs)
    if inputs[0].is_cuda:
        torch.cuda.synchronize(inputs[0].device)  # forward only queues kernels
    return perf_counter() - start
