"""Batches of a text for the training of language models: random places, or contiguous streams with a state.

R is the number of rows of a batch, T of tokens in a row, L of layers, W the width of a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Batches(ABC):
    """Batches of a text [N] in the order of one training."""

    state: Tensor | None = None  # [L, R, W] before the next batch; None at the beginning of sequences

    def __init__(self, text: Tensor, *, rows: int, length: int) -> None:
        """Take the tokens [N] of a text, the rows of a batch and the tokens of a row."""
        self._text, self._num_rows, self._length = text, rows, length

    @abstractmethod
    def next_rows(self, generator: torch.Generator) -> Tensor:
        """Return the next batch [R, T + 1] int64; the last token of a row is only predicted."""

    def pass_state(self, state: Tensor) -> None:  # noqa: B027 (some batches start without a state)
        """Take the state [L, R, W] after the batch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the text, and the state; nothing where the generator holds the places."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:  # noqa: B027
        """Restore the result of `state_dict`, tensors on a device."""


class RandomBatches(Batches):
    """Sequences from random places; every row starts without a state."""

    def next_rows(self, generator: torch.Generator) -> Tensor:
        """See Batches."""
        starts = torch.randint(len(self._text) - self._length, (self._num_rows,), generator=generator)
        return rows_at(self._text, starts, self._length)


class ContiguousBatches(Batches):
    """Row r reads the r-th of R equal sections of the text, and the state passes from batch to batch, without gradient.

    At the end of the sections the next pass starts without a state, at a random offset below T.
    """

    def __init__(self, text: Tensor, *, rows: int, length: int) -> None:
        """Take the same arguments, with more tokens per row than a sequence.

        Raises:
            ValueError: a text with sections that are shorter than a sequence.
        """
        super().__init__(text, rows=rows, length=length)
        self._section = (len(text) - 1) // rows
        if self._section < length:
            raise ValueError(f"expected at least {rows * length + 1} tokens for contiguous batches, got {len(text)}")
        self._place = self._section  # the first batch starts a pass

    def next_rows(self, generator: torch.Generator) -> Tensor:
        """See Batches."""
        if self._place + self._length > self._section:
            largest = min(self._length, self._section - self._length + 1)
            self._place, self.state = int(torch.randint(largest, (), generator=generator)), None
        starts = torch.arange(self._num_rows) * self._section + self._place
        self._place += self._length
        return rows_at(self._text, starts, self._length)

    def pass_state(self, state: Tensor) -> None:
        """See Batches."""
        self.state = state.detach().float()

    def state_dict(self) -> dict[str, Any]:
        """See Batches."""
        return {"place": self._place, "state": self.state}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """See Batches."""
        self._place = state["place"]
        self.state = None if state["state"] is None else state["state"].to(device)


BATCHES: dict[str, type[Batches]] = {"random": RandomBatches, "contiguous": ContiguousBatches}


def rows_at(text: Tensor, starts: Tensor, length: int) -> Tensor:
    """Return the sequences [R, length + 1] int64 that start at tokens [R] of a text [N]."""
    return text[starts[:, None] + torch.arange(length + 1)].long()
