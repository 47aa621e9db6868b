"""Devices, and the precision of matrix products."""

from __future__ import annotations

from typing import Literal

import torch

from gflownet.errors import UserError

Precision = Literal["float32", "bfloat16"]

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


def has_bfloat16(device: torch.device) -> bool:
    """Return whether matrix products in bfloat16 are faster than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
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
