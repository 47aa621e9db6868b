"""Zero-cost proxies: numbers that correlate with the score of a candidate, from its untrained model.

A score from a forward or a backward pass takes milliseconds; a training takes seconds to hours. Larger is better by
construction, on a logarithmic scale. Letters: B examples of a fixed batch, A binary codes of activations, F features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gflownet.evaluation.training import outputs_of

MISSING = math.nan
_EIGENVALUE_FLOOR = 1e-5  # Mellor et al. 2020, section 4
# Operators of activation functions; the sign of their first argument is a binary code.
_ACTIVATIONS = {
    *("relu", "leaky_relu", "elu", "gelu", "silu", "mish", "softplus", "hardtanh", "hardswish", "hardsigmoid", "tanh"),
    *("sigmoid", "log_sigmoid_forward", "_prelu_kernel", "rrelu_with_noise"),
}


def naswot(model: nn.Module, inputs: Tensor) -> float:
    """Return log det(I + K), K[i, j] = number of activations with the same sign for examples i and j.

    NASWOT (Mellor et al. 2021, "Neural Architecture Search without Training", eq. 2). The identity, which the paper
    does not add, keeps the value finite for examples with equal codes.
    """
    model.train()
    with torch.no_grad(), _ActivationKernel(len(inputs)) as kernel:
        outputs_of(model, inputs)
    return float(torch.linalg.slogdet(kernel.matrix + torch.eye(len(inputs), dtype=torch.float64)).logabsdet)


def jacov(model: nn.Module, inputs: Tensor) -> float:
    """Return -log(sum of log v + 1 / v), v: eigenvalues of the correlations of the examples' input gradients.

    The first version of the same paper (Mellor et al. 2020, arXiv:2006.04647v1, eq. 3), on a logarithmic scale.
    """
    model.train()
    leaves = inputs.detach().clone().requires_grad_()
    outputs = outputs_of(model, leaves)
    (gradients,) = torch.autograd.grad(outputs.sum(), leaves, allow_unused=True)
    if gradients is None:
        return MISSING
    correlations = torch.corrcoef(gradients.flatten(1).double())  # [B, B]
    if not bool(correlations.isfinite().all()):
        return MISSING
    eigenvalues = torch.linalg.eigvalsh(correlations).clamp(min=0) + _EIGENVALUE_FLOOR
    return -math.log(float((eigenvalues.log() + 1 / eigenvalues).sum()))


def synflow(model: nn.Module, inputs: Tensor) -> float:
    """Return log(1 + sum |w dR/dw|), R: sum of the outputs for inputs of ones with absolute weights.

    SynFlow (Tanaka et al. 2020, eq. 1) over the weight matrices and kernels, as in Abdelfattah et al. 2021. In eval
    mode a new batch norm is the identity. In float64: R is a product over the layers. Weights, dtype and mode are
    restored.
    """
    with _absolute_doubles(model):
        model.eval()
        ones = torch.ones_like(inputs[:1])
        outputs = outputs_of(model, ones.double() if ones.is_floating_point() else ones)
        weights = [weight for weight in model.parameters() if weight.requires_grad and weight.ndim > 1]
        gradients = torch.autograd.grad(outputs.sum(), weights, allow_unused=True) if weights else ()
        flows = ((w * g).detach().abs().sum() for w, g in zip(weights, gradients, strict=True) if g is not None)
        total = math.fsum(float(flow) for flow in flows)
    return math.log1p(total)


# Proxies that need a model, by name.
MODEL_PROXIES: Mapping[str, Callable[[nn.Module, Tensor], float]] = {
    "naswot": naswot,
    "jacov": jacov,
    "synflow": synflow,
}


class _ActivationKernel(TorchDispatchMode):
    """Adds up, over all activation functions of a forward pass, how many codes two examples share."""

    def __init__(self, num_examples: int) -> None:
        super().__init__()
        self.matrix = torch.zeros(num_examples, num_examples, dtype=torch.float64)  # [B, B]

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        if function.overloadpacket.__name__.removesuffix("_") in _ACTIVATIONS:  # in place or not
            values = arguments[0]
            if values.ndim > 1 and len(values) == len(self.matrix):
                self._add(values)
        return function(*arguments, **(keywords or {}))

    def _add(self, values: Tensor) -> None:
        codes = (values > 0).flatten(1).float()  # [B, A]; products are exact up to A = 2^24
        shared = (codes @ codes.T).double()
        num_positive = shared.diagonal()
        # Both positive, and both not: A - p_i - p_j + shared.
        self.matrix += 2 * shared + codes.shape[1] - num_positive[:, None] - num_positive[None, :]


@contextmanager
def _absolute_doubles(model: nn.Module) -> Iterator[None]:
    """Give a model absolute float64 weights, and restore weights, dtypes and mode at the end."""
    tensors = [*model.parameters(), *model.buffers()]
    stored, is_training = [(tensor, tensor.data) for tensor in tensors], model.training
    try:
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.data = tensor.data.double().abs()
        yield
    finally:
        for tensor, data in stored:
            tensor.data = data
        model.train(is_training)
