"""Runs of tensor tasks: successive halving, final stage, saved weights, a pool of processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gflownet
from gflownet.train import main
from tests.evaluation.data_sources import Stripes
from tests.tiny_run import metric_rows

OPTIONS = (
    "--config=images",
    "task_options.data=tests.evaluation.data_sources:stripes_in_three",
    "num_training_steps=2",
    "algo.num_from_policy=6",
    "model.num_layers=1",
    "model.num_emb=8",
    "replay.use=false",
    "env.operation_graph.max_hidden_nodes=4",
    "env.operation_graph.max_edges=6",
    "evaluation.num_epochs=3",
    "evaluation.halving.min_fidelity=1",
    "evaluation.executor=inline",
    "final.top=2",
    "final.num_seeds=2",
    "final.epochs=4",
    "final.num_random=2",
    "wandb.mode=disabled",
)


def run(folder: Path, *options: str) -> list[dict]:
    assert main([*OPTIONS, *options, f"log_dir={folder}"]) == 0
    return json.loads((folder / "top_architectures.json").read_text())


def test_search_on_a_dataset_saves_trained_convolutions(tmp_path: Path) -> None:
    best, *_ = run(tmp_path / "run")
    last = metric_rows(tmp_path / "run")[-1]
    assert last["num_stopped"] > 0
    model = gflownet.load(tmp_path / "run" / "top_architectures.json", rank=0)
    test = Stripes(40, seed=2)
    with torch.no_grad():
        accuracy = float((model(test.images).argmax(1) == test.labels).double().mean())
    assert accuracy == pytest.approx(best["final"]["test_scores"][0])
    references = json.loads((tmp_path / "run" / "references.json").read_text())
    assert [each["name"] for each in references] == ["best of 2 random"]  # estimators need arrays


@pytest.mark.slow
def test_pool_finds_the_scores_of_the_main_process(tmp_path: Path) -> None:
    options = ("evaluation.capacity=2", "evaluation.halving.min_fidelity=0")
    entries = [run(tmp_path / name, f"evaluation.executor={name}", *options) for name in ("inline", "pool")]
    scores = [[(each["validation_score"], each["final"]["scores"]) for each in run] for run in entries]
    assert scores[0] == scores[1]
