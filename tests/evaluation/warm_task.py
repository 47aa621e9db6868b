"""A task and a function of choices that name torch.optim, whose first use imports much."""

from __future__ import annotations

import os
import sys
import threading
from functools import cached_property
from typing import Any, cast

import torch

from gflownet.evaluation.task import GFNTask, Score
from tests.evaluation.candidates import StubCandidate, config_with

OPTIMISER = torch.optim.SGD


class WarmTask(GFNTask):
    """Scores .5 for the data that `warm_up` has loaded, and .5 for an imported module of optimisers."""

    input_sizes = (1,)
    output_sizes = (1,)

    def __init__(self, *, fails: bool = False, starts_thread: bool = False) -> None:
        super().__init__(cast(Any, config_with()))
        self.fails, self.starts_thread = fails, starts_thread

    @cached_property
    def data(self) -> list[float]:
        if self.fails:
            raise FileNotFoundError("no data")
        return [0.5]

    def warm_up(self) -> None:
        self.data  # noqa: B018, loads it
        if self.starts_thread:
            threading.Thread(target=threading.Event().wait, name="lasting", daemon=True).start()

    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        return Score(0.5 * ("data" in vars(self)) + 0.5 * ("torch._dynamo" in sys.modules))


def trained(choices: dict[str, Any], seed: int) -> Score:
    """Score 1 for an imported module of optimisers; use an optimiser, a loader with processes, and scikit-learn."""
    is_warm = "torch._dynamo" in sys.modules
    from sklearn.linear_model import Ridge

    weight = torch.nn.Parameter(torch.ones(1))
    OPTIMISER([weight], lr=0.1).step()
    assert list(torch.utils.data.DataLoader(cast(Any, [seed]), num_workers=1)) == [seed]
    Ridge().fit([[0.0], [1.0]], [0.0, 1.0])
    return Score(float(is_warm), metrics={"process": float(os.getpid())})
