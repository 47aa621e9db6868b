"""Run folders and their pages for browser tests."""

from __future__ import annotations

from pathlib import Path

from gflownet.report.__main__ import main as report
from gflownet.train import main as train
from tests.small_run import SMALL

REPORT = ("num_training_steps=4", "final.top=3", "final.num_seeds=2", "final.num_random=2", "report.every=0")


def write_report(folder: Path, *options: str) -> Path:
    """Return the page of a small run with a final stage."""
    assert train([*SMALL, *REPORT, f"log_dir={folder}", *options]) == 0
    return folder / "report.html"


def write_comparison(folder: Path) -> Path:
    """Return the page that compares three small runs: two seeds, and another objective."""
    runs = {"seed_0": (), "seed_1": ("seed=1",), "db": ("algo.method=db",)}
    for name, options in runs.items():
        assert train([*SMALL, f"log_dir={folder / name}", "num_training_steps=4", *options]) == 0
    path = folder / "comparison.html"
    assert report([*(str(folder / name) for name in runs), "--output", str(path)]) == 0
    return path
