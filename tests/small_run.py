"""A search of a second, for tests of runs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gflownet.objectives.base import Loss
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.train import main

SMALL = (
    "task=tests.toy_tasks:RewardsHiddenNodes",
    "search.method=gflownet",
    "wandb.mode=disabled",
    "report.every=null",
    "num_training_steps=8",
    "algo.num_from_policy=4",
    "replay.num_from_replay=4",
    "replay.warmup=6",
    "model.num_emb=16",
    "model.num_layers=1",
    "env.max_hidden_nodes=3",
    "env.max_edges=6",
    "checkpoint_every=3",
    "final.top=0",
)


def run(folder: Path, *overrides: str) -> int:
    return main([*SMALL, f"log_dir={folder}", *overrides])


def break_losses(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    """Give these losses, counted from 1 after this call, no number."""
    usual, number = TrajectoryBalance.loss, [0]

    def loss(self, policy, trajectories):
        number[0] += 1
        found = usual(self, policy, trajectories)
        return Loss(found.value * torch.nan, found.metrics) if number[0] in steps else found

    monkeypatch.setattr(TrajectoryBalance, "loss", loss)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run without a page."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert run(folder) == 0
    return folder


@pytest.fixture
def finished_toy(finished_runs: Callable[[str], Path]) -> Path:
    """Return the folder of the shared run with these options, a final stage and a page."""
    return finished_runs("toy")
