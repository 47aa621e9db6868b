"""Run folders and their pages for browser tests."""

from __future__ import annotations

from pathlib import Path

from gflownet.report.__main__ import main as report
from gflownet.train import main as train
from tests.small_run import SMALL


def write_comparison(folder: Path) -> Path:
    runs = {"seed_0": (), "seed_1": ("seed=1",), "db": ("algo.method=db",)}
    for name, options in runs.items():
        assert train([*SMALL, f"log_dir={folder / name}", "num_training_steps=4", *options]) == 0
    path = folder / "comparison.html"
    assert report([*(str(folder / name) for name in runs), "--output", str(path)]) == 0
    return path
