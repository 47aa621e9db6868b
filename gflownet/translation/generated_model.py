"""Interface of the models that to_pytorch_model returns: what export and latency need of any of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class GeneratedModel(nn.Module):
    """A model of a generated class; `forward` and the methods below are defined by its two subclasses.

    B is the batch size.
    """

    def zeros(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the arguments of forward as zeros, for a batch."""
        raise NotImplementedError

    def first_step(self, *inputs: Tensor) -> Any:
        """Return forward as at the start of a sequence; a stored state stays unchanged."""
        raise NotImplementedError

    def pure_module(self) -> nn.Module:
        """Return a module without hidden state: forward maps inputs and state tensors to outputs and next state."""
        raise NotImplementedError

    def pure_arguments(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the arguments of the pure module as zeros, for a batch."""
        raise NotImplementedError

    def pure_names(self) -> tuple[list[str], list[str]]:
        """Return the names of the inputs and of the outputs of the pure module."""
        raise NotImplementedError
