"""Interface of the models that to_pytorch_model returns: what export and latency need of any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gflownet.translation.table_columns import TableColumns


class GeneratedModel(nn.Module):
    """A model of a generated class; `forward` and the methods below are defined by its two subclasses.

    B is the batch size.
    """

    columns: TableColumns | None = None  # of a table, set by `load`

    def predict(self, rows: Any) -> np.ndarray:
        """Return the classes or numbers [B] of raw rows of a table, in its units, see `TableColumns.encoded`.

        Raises:
            ValueError: a model without columns, a missing column, or a cell that its column cannot hold.
        """
        if self.columns is None:
            raise ValueError("expected a model that gflownet.load returned for a run with task=table, got no columns")
        inputs, was_training = torch.from_numpy(self.columns.encoded(rows)), self.training
        with torch.inference_mode():
            outputs = self.eval().first_step(inputs)
        self.train(was_training)
        return self.columns.predictions(outputs.numpy())

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
