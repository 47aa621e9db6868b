"""Devices, the precision of matrix products, and modules that keep the memory format of signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.errors import UserError

Precision = Literal["float32", "bfloat16"]

_AMPERE = (8, 0)  # the first GPUs of NVIDIA with matrix products in bfloat16
# Instructions for matrix products in bfloat16, as torch names them.
_BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def choose_device(name: str) -> torch.device:
    """Return the device of the option `device`. Raises UserError for CUDA without a GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        cause = "" if torch.backends.cuda.is_built() else f": torch {torch.__version__} is built without CUDA"
        raise UserError(f"device: expected cpu or one of {torch.cuda.device_count()} CUDA devices, got {name}{cause}")
    return torch.device(name)


def has_bfloat16(device: torch.device) -> bool:
    """Return whether matrix products in bfloat16 are faster than in float32."""
    if device.type == "cuda":  # earlier GPUs compute it in float32
        return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= _AMPERE
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in _BFLOAT16_INSTRUCTIONS)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return a context with matrix products in a precision; with bfloat16, weights and sums stay in float32.

    No loss scaling is needed: bfloat16 has the exponent range of float32 (Micikevicius et al. 2018).
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def synchronize(device: torch.device) -> None:
    """Wait for the queued kernels of a device, before a clock is read."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def computed_in(precision: str, model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Return the outputs of a model with matrix products in a precision; those in bfloat16 become float32."""
    if precision == "float32":
        return model(inputs)
    with autocast(inputs.device, precision):
        outputs = model(inputs)
    return outputs.float() if outputs.dtype == torch.bfloat16 else outputs


class SignalConvolution(nn.Conv1d):
    """Convolution of signals as one of images of one row, which keeps channels_last: torch makes signals contiguous."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of signals [N, C, L]."""
        if self.in_channels == 1:  # the format of one channel is ambiguous, and a pointwise kernel does not carry it
            input = input.flatten(1).unsqueeze(2).mT
        (stride,), (dilation,), padding = self.stride, self.dilation, self.padding
        assert not isinstance(padding, str)
        sizes = (1, stride), (0, *padding), (1, dilation)
        return F.conv2d(input.unsqueeze(2), self.weight.unsqueeze(2), self.bias, *sizes, self.groups).squeeze(2)


class SignalBatchNorm(nn.BatchNorm1d):
    """Batch norm of signals as that of images of one row: torch's is several times slower in channels_last."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept images too."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised vectors [N, C] or signals [N, C, L]."""
        return super().forward(input.unsqueeze(2)).squeeze(2) if input.ndim == 3 else super().forward(input)


_SIGNAL_CLASSES = {nn.Conv1d: SignalConvolution, nn.BatchNorm1d: SignalBatchNorm}


def use_channels_last(model: nn.Module) -> None:
    """Let the modules of signals pass the memory format on; parameters, buffers and results stay the same."""
    for module in model.modules():
        module.__class__ = _SIGNAL_CLASSES.get(type(module), type(module))
