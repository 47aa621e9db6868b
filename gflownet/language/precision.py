"""Device and precision of a training."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from gflownet.errors import UserError
from gflownet.language.config import LanguageConfig
from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.stack_model import RecurrentStack

# Instructions for matrix products in bfloat16, as torch names them.
_BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def choose_device(name: str) -> torch.device:
    """Return the device of the option `device`. Raises UserError for CUDA without a GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise UserError(f"device: expected cpu or one of {torch.cuda.device_count()} CUDA devices, got {name}")
    return torch.device(name)


def choose_precision(config: LanguageConfig, model: nn.Module, device: torch.device) -> Literal["float32", "bfloat16"]:
    """Return the precision of matrix products.

    Raises:
        UserError: bfloat16 for a model with RHN layers, whose wavefront computes in the precision of its weights.
    """
    has_rhn = any(isinstance(module, RHNBlock) for module in model.modules())
    if config.precision == "bfloat16" and has_rhn:
        raise UserError("precision: expected float32 for a model with RHN layers, got bfloat16")
    if config.precision != "auto":
        return config.precision
    is_measured = isinstance(model, RecurrentStack) and not has_rhn
    return "bfloat16" if is_measured and _has_bfloat16(device) else "float32"


def _has_bfloat16(device: torch.device) -> bool:
    """Return whether matrix products in bfloat16 are faster than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in _BFLOAT16_INSTRUCTIONS)
