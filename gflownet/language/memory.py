"""Refusal of models and batches that do not fit into the memory of the device, before anything is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from gflownet.errors import UserError
from gflownet.language.config import LanguageConfig
from gflownet.rhn.checkpoint import model_of

_GIGABYTE = 10**9
# Bytes of float32 for a parameter: its weight, its gradient, and one moment of the optimiser or more.
_PARAMETER_BYTES = 12
_TOKEN_BYTES, _LOGIT_BYTES = 8, 4


def check_memory(config: LanguageConfig, description: Mapping[str, Any], where: str, device: torch.device) -> None:
    """Raise UserError for a model or a batch that needs more than all memory of the device.

    Only what a step holds at least is counted: weights, gradients and one moment, the tokens of a batch, its logits.

    Args:
        config: of the run.
        description: of the model, see `gflownet.rhn.checkpoint.describe`.
        where: option of the model, the start of an error message.
        device: of the training.
    """
    memory = _memory_of(device)
    try:
        with torch.device("meta"):  # no memory
            model = model_of(description, where)
    except RuntimeError as error:
        raise UserError(
            f"{where}: expected a model that fits into {_size(memory)}, got one that no tensor holds"
        ) from error
    size = _PARAMETER_BYTES * sum(parameter.numel() for parameter in model.parameters())
    if size > memory:
        got = f"got a model whose training needs at least {_size(size)}"
        raise UserError(f"{where}: expected sizes that fit into the memory of {_size(memory)}, {got}")
    vocabulary_size = description["config"]["vocabulary_size"]
    size = config.rows * config.sequence_length * (_TOKEN_BYTES + _LOGIT_BYTES * vocabulary_size)
    if size > memory:
        got = f"got {config.rows} rows of {config.sequence_length} tokens, at least {_size(size)}"
        raise UserError(f"rows: expected a batch that fits into the memory of {_size(memory)}, {got}")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of torch says that memory could not be allocated."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _memory_of(device: torch.device) -> int:
    """Return the bytes of a device's memory, used ones included."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIGABYTE:,.0f} GB"
