"""`configs/exact.yaml`: the policy samples R(x) / Z, and the certificate by estimates agrees with the exact one."""

import json
from pathlib import Path

import pytest
import torch

from gflownet.certificate import estimates
from gflownet.certificate.estimates import terminating_log_prob
from gflownet.config import load_config
from gflownet.run.trainer import GFNTrainer

# Options of docs/exactness.md: terminal classes and the goal for the total variation.
SPACES = {
    65: (0.01, ("env.coloured_graph.max_nodes=4", "num_training_steps=300")),
    260: (0.01, ("env.coloured_graph.max_nodes=4", "env.coloured_graph.directed=true", "num_training_steps=160")),
    419: (0.01, ()),
}


def run_exact(folder: Path, *overrides: str, config: str = "exact") -> dict:
    """Run a config with overrides and return its certificate."""
    GFNTrainer(load_config(config, [f"log_dir={folder}", "wandb.mode=disabled", *overrides])).run()
    (certificate,) = json.loads((folder / "certificate.json").read_text())["certificates"]
    return certificate


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_asynchronous_exact_config_is_no_worse_on_419_classes(tmp_path, seed):
    options = (f"seed={seed}", "evaluation.executor=pool", "asynchronous.max_in_flight=256")
    assert run_exact(tmp_path / "asynchronous", *options)["total_variation"] < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("backward_policy", ["uniform", "learned"])
@pytest.mark.parametrize("method", ["tb", "db", "subtb"])
@pytest.mark.parametrize("num_classes", SPACES)
def test_exact_config_samples_the_reward(num_classes, method, backward_policy, tmp_path):
    goal, options = SPACES[num_classes]
    certificate = run_exact(tmp_path, *options, f"algo.method={method}", f"algo.backward_policy={backward_policy}")
    assert certificate["num_terminal"] == num_classes
    assert certificate["total_variation"] < goal


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_operations_exact_config_samples_the_reward_of_309_networks(seed, tmp_path):
    options = (f"seed={seed}", f"task_options.reward_seed={seed}")
    certificate = run_exact(tmp_path, *options, config="operations_exact")
    assert certificate["num_terminal"] == 309
    assert certificate["total_variation"] < 0.02


# Maximum number of nodes, training steps, backward policy. After few steps the policy is far from the target.
COMPARED = [
    (max_nodes, num_steps, backward_policy)
    for max_nodes, num_steps in ((4, 20), (5, 80), (6, 40))
    for backward_policy in ("uniform", "learned")
]
ESTIMATE = ("resume=true", "certify_max_states=5", "certify_samples=1024")


@pytest.mark.slow
def test_estimated_certificate_without_automorphism_counts_misses_the_exact_one(tmp_path, monkeypatch):
    """Leave |Aut(x)| out of the estimated p(x): the certificate has to show it."""
    options = ("env.coloured_graph.max_nodes=4", "num_training_steps=20")
    exact = run_exact(tmp_path, *options)
    monkeypatch.setattr(
        estimates,
        "terminating_log_prob",
        lambda log_ratio, log_symmetry: terminating_log_prob(log_ratio, torch.zeros_like(log_symmetry)),
    )
    control = run_exact(tmp_path, *options, *ESTIMATE)
    assert control["spearman_high"] < exact["spearman"]
    assert control["symmetry_slope_low"] > 0.5
