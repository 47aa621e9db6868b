"""A served object and its merger."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.workers.messages import TwoArgumentError

SOON_S = 60.0  # timeout of a failing test


class Rows:
    def merge(self, calls: Sequence[tuple]) -> tuple:
        return (torch.cat([rows for (rows,) in calls]),)

    def split(self, result: Tensor, calls: Sequence[tuple]) -> Sequence[Tensor]:
        return result.split([len(rows) for (rows,) in calls])


class Model(torch.nn.Module):
    """Doubles; can be held up; remembers how it was called."""

    num_layers = 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        self.sizes: list[int] = []
        self.kept: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.entered.set()
        assert self.gate.wait(SOON_S)
        self.sizes.append(len(rows))
        if len(rows) and bool((rows < -100).any()):
            raise SystemExit("far too small")
        if len(rows) and bool((rows < 0).any()):
            raise TwoArgumentError(int(rows.min()), "negative")
        return rows * self.weight

    def keep(self, rows: Tensor) -> None:
        self.kept.append(rows)

    def how(self, *arguments: Any, **options: Any) -> tuple:
        return arguments, options, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def fail(self, kind: Callable[[], BaseException]) -> None:
        raise kind()

    def reply(self, what: str) -> Any:
        return {"lock": threading.Lock, "parameter": lambda: (1, self.weight), "self": lambda: self}[what]()
