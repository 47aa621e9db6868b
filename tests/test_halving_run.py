"""A run with successive halving: rows, metrics and the closing line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gflownet.evaluation.halving import is_stopped
from gflownet.train import main
from tests.evaluation.stub_rows import open_store
from tests.tiny_run import TINY_RUN, metric_rows

HALVING = (
    *TINY_RUN,
    "task=digits",
    "search.method=gflownet",
    "budget.evaluations=0",
    "num_training_steps=3",
    "algo.num_from_policy=6",
    "env.max_hidden_nodes=3",
    "env.max_edges=6",
    "evaluation.num_epochs=4",
    "evaluation.halving.min_fidelity=1",
    "evaluation.halving.reduction=2",
    "final.top=0",
)


def test_run_with_halving_stops_candidates_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert main([*HALVING, f"log_dir={folder}"]) == 0
    with open_store(folder / "evaluations.sqlite") as store:
        rows = [row for row in store if not row.seed]
        top = store.top(100)
    num_stopped, num_full = sum(map(is_stopped, rows)), sum(not row.fidelity for row in rows)
    last = metric_rows(folder)[-1]
    assert last["num_distinct"] == num_stopped + num_full
    assert last["num_stopped"] == num_stopped > 2
    assert -1 <= last["extrapolation_rank_correlation"] <= 1
    assert len(top) == num_full
    printed = " ".join(capsys.readouterr().out.split())
    assert f"successive halving: {num_stopped} candidates stopped early, {num_full} trained to the end" in printed
    (best,) = json.loads((folder / "top_architectures.json").read_text())[:1]
    assert best["validation_score"] in [row.score for row in top]


def test_halving_of_a_task_without_epochs_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["task=hypergrid", "env.name=hypergrid", "evaluation.halving.min_fidelity=1"]
    assert main([*options, f"log_dir={tmp_path / 'run'}"]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.endswith("expected 0 with task=hypergrid, whose evaluations have no epochs or steps")
    assert not (tmp_path / "run").exists()
