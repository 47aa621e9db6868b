"""Runs with several objectives: files, rewards, workers; resume: tests/test_full_disk.py."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.statistics import hypervolume, non_dominated
from gflownet.learning.source import Rollout
from gflownet.records.status import read_status
from gflownet.run.trainer import GFNTrainer
from gflownet.train import main
from tests.tiny_run import TINY_RUN, metric_rows

SETTINGS = (
    *TINY_RUN,
    "task=tests.toy_tasks:RewardsNodesOrEdges",
    "evaluation.objectives=[nodes,edges]",
    "evaluation.floor_score=0.01",
    "cond.temperature.sample_dist=uniform",
    "cond.temperature.dist_params=[1,4]",
    "cond.focus.use=true",
    "cond.focus.cosim=0.8",
    "budget.evaluations=0",
    "num_training_steps=3",
    "algo.num_from_policy=4",
    "env.max_hidden_nodes=4",
    "env.max_edges=8",
    "replay.use=true",
    "replay.warmup=3",
    "replay.num_from_replay=4",
    "checkpoint_every=1",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("several") / "run"
    assert main([*SETTINGS, f"log_dir={folder}"]) == 0
    return folder


def test_run_reports_front_of_all_evaluations(finished):
    entries = json.loads((finished / "pareto_front.json").read_text())
    points = np.array([list(entry["utilities"].values()) for entry in entries])
    assert non_dominated(points).all()
    last = metric_rows(finished)[-1]
    assert last["hypervolume"] == pytest.approx(hypervolume(points))
    assert last["front_size"] == len(np.unique(points, axis=0))


def test_rewards_follow_conditioning_of_trajectory(tmp_path, monkeypatch):
    rollouts_of_run: list[tuple[GFNTrainer, Rollout]] = []

    class Watched(GFNTrainer):
        def build_learner(self):
            learner: Any = super().build_learner()
            learn = learner.learn

            def record(rollout, auxiliary=None):
                rollouts_of_run.append((self, rollout))
                return learn(rollout, auxiliary)

            learner.learn = record
            return learner

    monkeypatch.setattr("gflownet.run.trainer.GFNTrainer", Watched)
    assert main([*SETTINGS, f"log_dir={tmp_path}", "num_training_steps=2"]) == 0
    assert len(rollouts_of_run) == 2
    for trainer, rollout in rollouts_of_run:
        batch, task = rollout.trajectories, trainer.task
        graphs = [trainer.env.terminal(batch.terminal, i) for i in range(len(batch))]
        utilities = torch.tensor([task.utilities(task.evaluate(graph, seed=0)) for graph in graphs])
        expected = task.log_reward(utilities, Conditioning(batch.conditioning, batch.beta))
        assert torch.equal(batch.log_reward, expected)
        assert len(batch.log_reward.unique()) > 2
    _, last = rollouts_of_run[-1]
    assert len(last.trajectories) > last.num_fresh  # replayed trajectories are included


def test_hypervolume_is_monotonic(finished):
    volumes = [row["hypervolume"] for row in metric_rows(finished)]
    assert volumes == sorted(volumes)
    assert volumes[0] > 0


def test_run_with_several_objectives_in_worker(tmp_path, capsys):
    assert main([*SETTINGS, f"log_dir={tmp_path}", "num_workers=1", "num_training_steps=1"]) == 0
    shown = capsys.readouterr().out
    assert "evaluation.objectives: nodes (larger is better), edges (smaller is better)\n" in shown
    assert re.search(r"Pareto front.*\n *\n *rank +nodes \(max\) +edges \(min\)", shown)
    status = read_status(tmp_path)
    assert status is not None
    assert (status.plan["directions"], status.plan["score"]) == ({"nodes": "max", "edges": "min"}, "score")
    assert metric_rows(tmp_path)[-1]["hypervolume"] > 0
