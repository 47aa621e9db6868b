"""A training of a few steps on a small text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from gflownet.language.__main__ import main
from gflownet.records.marker import read_marker
from gflownet.run.checkpoint import CheckpointFolder

MODEL = """
kind: recurrent_stack
width: 16
layers:
- cell: gru
- cell: rhn
  rank: 2
"""
GRU = """
kind: recurrent_stack
width: 16
layers: [{cell: gru}]
"""
OPTIONS = (
    *("steps=20", "rows=2", "sequence_length=8", "evaluate_every=6", "validation_tokens=200", "test_tokens=300"),
    *("checkpoint_every=7", "sample.every=5", "sample.tokens=6", "wandb.mode=disabled", "print_every=10", "device=cpu"),
)
TEXT = "".join(f"line {number}: {'abc' * (number % 5)}, {number * number} \u00e9\n" for number in range(300))


def write_files(folder: Path) -> list[str]:
    """Write the text and the model, and return the arguments that name them."""
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    (folder / "model.yaml").write_text(MODEL)
    (folder / "gru.yaml").write_text(GRU)
    return [str(folder / "text.txt"), f"model={folder / 'model.yaml'}"]


def train(folder: Path, *options: str, model: str = "model.yaml") -> int:
    """Train a model of `write_files` in `folder`/run; options given last win."""
    files = [*write_files(folder), f"model={folder / model}"]
    return main([*files, *OPTIONS, f"log_dir={folder / 'run'}", *options])


def metric_rows(run: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without times and the id of the run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in ("seconds", "run", "checksum")} for row in rows]


def last_state(run: Path) -> dict[str, Any]:
    marker = read_marker(run)
    assert marker is not None
    checkpoint = CheckpointFolder(run / "checkpoints", run=marker.run).latest()
    assert checkpoint is not None
    return checkpoint.state


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Return the places at which two nested states differ in any bit."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [where]
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return [place for key in one for place in differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        return [
            place
            for number, pair in enumerate(zip(one, other, strict=True))
            for place in differences(*pair, f"{where}[{number}]")
        ]
    return [] if one == other or where == ".seconds" else [where]
