"""The config `exact` by the product alone: a policy samples R(x) / Z, and R(x) / |Aut(x)| without the correction."""

import json
from pathlib import Path

import pytest

from gflownet.config import load_config
from gflownet.trainer import GFNTrainer

SMALL = ("env.coloured_graph.max_nodes=3", "num_training_steps=60", "algo.num_from_policy=32", "model.num_layers=2")


def certificate_of(folder: Path, *overrides: str) -> dict:
    """Train by `gflownet.train`'s trainer and return the exact certificate."""
    options = [f"log_dir={folder}", "wandb.mode=disabled", "model.num_emb=32", *overrides]
    GFNTrainer(load_config("exact", options)).run()
    (certificate,) = json.loads((folder / "certificate.json").read_text())["certificates"]
    assert certificate["kind"] == "exact"
    return certificate


def test_exact_config_samples_the_reward_of_15_classes(tmp_path):
    right = certificate_of(tmp_path, *SMALL)
    assert right["num_terminal"] == 15
    assert right["total_variation"] < 0.03
    assert right["tv_uncorrected"] > 0.1
    assert right["log_z_error"] < 0.03


def test_exact_config_without_symmetries_samples_the_uncorrected_distribution(tmp_path):
    wrong = certificate_of(tmp_path, *SMALL, "algo.symmetry=none")
    assert wrong["tv_uncorrected"] < 0.03
    assert wrong["total_variation"] > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("backward_policy", ["uniform", "learned"])
@pytest.mark.parametrize("method", ["tb", "db", "subtb"])
def test_exact_config_samples_the_reward_of_65_classes(method, backward_policy, tmp_path):
    options = (f"algo.method={method}", f"algo.backward_policy={backward_policy}", "model.num_emb=64")
    found = certificate_of(tmp_path, "env.coloured_graph.max_nodes=4", "num_training_steps=300", *options)
    assert found["num_terminal"] == 65
    assert found["total_variation"] < 0.01
