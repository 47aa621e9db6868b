"""certify=true from the command line: printed lines, written files, and detection of wrong samplers."""

import json
import math
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.certificate import CertificateStore, Subject, certify
from gflownet.certificate.result import EstimatedCertificate
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.relative import RelativeTrajectoryBalance
from gflownet.policy.wrappers import PolicyOnDevice
from gflownet.train import main
from tests.certificate.subjects import Empty
from tests.certificate.test_estimates import CONNECTED_5
from tests.toy_policies import UniformPolicy

# 15 graphs of up to three nodes, several of them with symmetries.
EXACT = (
    *("--config", "exact", "env.coloured_graph.max_nodes=3", "num_training_steps=30", "algo.num_from_policy=32"),
    *("model.num_layers=2", "model.num_emb=32", "wandb.mode=disabled", "report.every=null"),
)
SMALL = (
    "task=tests.toy_tasks:RewardsHiddenNodes",
    "wandb.mode=disabled",
    "num_training_steps=2",
    "algo.num_from_policy=4",
    "replay.warmup=2",
    "model.num_emb=16",
    "model.num_layers=1",
    "env.max_hidden_nodes=1",
    "env.max_edges=3",
    "env.output_sizes=[2]",
    "certify=true",
    "report.every=null",
)


def certificate_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "certificate.json").read_text())


def scores_in(*stores: Path) -> list[float]:
    result = []
    for store in stores:
        connection = sqlite3.connect(store)
        result += [score for (score,) in connection.execute("select score from evaluations")]
        connection.close()
    return result


@pytest.fixture(scope="module")
def corrected(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corrected") / "run"
    assert main([*EXACT, f"log_dir={folder}"]) == 0
    return folder


def test_certify_trained_sampler(corrected):
    result = certificate_of(corrected)
    assert (result["method"], result["symmetry"], result["step"], result["num_rewards"]) == ("tb", "reward", 30, 15)
    (part,) = result["certificates"]
    scores = scores_in(corrected / "evaluations.sqlite", corrected / "certificate.sqlite")
    assert part["kind"] == "exact"
    assert part["log_z"] == pytest.approx(math.log(sum(scores)), abs=1e-6)
    assert (part["num_states"], part["num_terminal"]) == (16, 15)
    assert part["total_variation"] < 0.03
    assert part["tv_uncorrected"] > 0.1
    assert part["symmetries_hold"] is True
    assert part["log_z_error"] < 0.03
    assert result["errors"] == []
    assert result["rules"]["verdict"][0].startswith("rules: hold: 56 transitions checked, from all 16 states; 16 ")
    assert part["verdict"][0].startswith("exact optimum: of trajectory balance is the target (total variation 0.0000")
    assert part["optimum_loss"] < 1e-6
    assert sum(row["num_states"] for row in part["classes"]) == 15


def test_estimated_certificate_agrees_with_exact_one(corrected, tmp_path, capsys):
    corrected = Path(shutil.copytree(corrected, tmp_path / "run"))
    (exact,) = certificate_of(corrected)["certificates"]
    before = (corrected / "evaluations.sqlite").read_bytes()
    options = (f"log_dir={corrected}", "resume=true", "certify=true", "certify_max_states=5")
    assert main([*options]) == 0
    assert (corrected / "evaluations.sqlite").read_bytes() == before
    result = certificate_of(corrected)
    (part,) = result["certificates"]
    assert part["kind"] == "estimated"
    assert (part["num_samples"], part["num_rollouts"]) == (256, 10)
    assert part["log_z_low"] - 0.05 < exact["log_z"] < part["log_z_high"] + 0.05
    assert part["elbo"] - 1e-3 < part["log_z"] < part["eubo"] + 1e-3
    assert part["spearman"] == pytest.approx(exact["spearman"], abs=0.25)
    assert (result["rules"]["is_complete"], result["errors"]) == (False, [])
    out = capsys.readouterr().out
    assert "certificate: estimates from 256 trajectories (expected at most 5 states" in out
    assert "certificate of p(x) ~ R(x), estimates with 95 % intervals, beta 1" in out
    assert out.index("best architectures") < out.index("flow consistency in subsets of ")


def test_estimates_use_learned_backward_policy(tmp_path):
    options = ("algo.backward_policy=learned", "certify_max_states=5", "certify_samples=16")
    assert main([*SMALL, *options, f"log_dir={tmp_path / 'run'}"]) == 0
    (part,) = certificate_of(tmp_path / "run")["certificates"]
    assert (part["kind"], part["num_samples"]) == ("estimated", 16)
    assert part["elbo"] < part["log_z"]
    assert 1 <= part["effective_rollouts"] <= 10


def test_random_temperature_certified_at_three_quantiles(tmp_path, capsys):
    temperature = ("cond.temperature.sample_dist=uniform", "cond.temperature.dist_params=[1,3]")
    assert main([*SMALL, *temperature, f"log_dir={tmp_path / 'run'}"]) == 0
    parts = certificate_of(tmp_path / "run")["certificates"]
    betas = [part["beta"] for part in parts]
    assert betas == pytest.approx([1.1, 2.0, 2.9], abs=0.1)
    assert len({tuple(part["conditioning"]) for part in parts}) == 3
    log_rewards = torch.tensor(scores_in(*(tmp_path / "run").glob("*.sqlite"))).log()
    for part in parts:
        assert part["log_z"] == pytest.approx(float((log_rewards * part["beta"]).logsumexp(0)), abs=1e-4)
    assert capsys.readouterr().out.count("certificate of p(x) ~ R(x), exact") == 3


def test_report_excludes_certificate_evaluations(tmp_path):
    """The certificate evaluates all 41 graphs; the table and a resumed run know of eight at most."""
    folder = tmp_path / "run"
    assert main([*SMALL, "num_training_steps=1", f"log_dir={folder}"]) == 0
    assert len(scores_in(folder / "evaluations.sqlite")) <= 8
    assert len(scores_in(folder / "evaluations.sqlite", folder / "certificate.sqlite")) == 41
    assert len(json.loads((folder / "top_architectures.json").read_text())) <= 8
    assert main([f"log_dir={folder}", "resume=true", "num_training_steps=2"]) == 0
    assert certificate_of(folder)["step"] == 2
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[-1]["num_distinct"] == len(scores_in(folder / "evaluations.sqlite"))


def test_interrupt_leaves_no_certificate(tmp_path, capsys):
    handler = signal.getsignal(signal.SIGINT)
    folder = tmp_path / "run"
    assert main([*SMALL, "task=tests.toy_tasks:Interrupts", f"log_dir={folder}"]) == 130
    assert signal.getsignal(signal.SIGINT) is handler
    out = capsys.readouterr().out
    assert "certificate: none, interrupted" in out
    assert "best architectures" in out
    assert "certificate of" not in out
    assert not (folder / "certificate.json").exists()
    num_kept = len(scores_in(folder / "certificate.sqlite"))
    assert 0 < num_kept <= 16, "what was evaluated until then is kept"


def test_failed_evaluations_and_another_target_are_reported(tmp_path, capsys):
    """A failed evaluation has the floor score."""
    failing = "task=tests.toy_tasks:SometimesFails"
    assert main([*SMALL, "algo.method=a2c", failing, f"log_dir={tmp_path / 'run'}"]) == 0
    result, text = certificate_of(tmp_path / "run"), capsys.readouterr().out
    assert 0 < result["num_failed"] < 41
    assert f", {result['num_failed']} failed; all figures" in text
    assert "certificate: AdvantageActorCritic does not aim at p(x) ~ R(x)" in text
    assert result["certificates"][0]["learned_log_z"] is None


class ScoresOne(Evaluator):
    """Every graph has the score 1."""

    def evaluate(self, candidates, *, step):
        return [Evaluation(1.0, EvaluationStatus.OK, 0.0, None, None, {}, cached=False) for _ in candidates]


class RewardsEqually:
    """The part of a task that a certificate needs: one conditioning, log-reward 0."""

    def sample_conditioning(self, num, *, generator):
        return Conditioning(torch.zeros(num, 1), torch.ones(num))

    def log_reward(self, scores, conditioning):
        return torch.zeros(len(scores))


def test_estimated_certificate_of_relative_trajectory_balance_uses_prior():
    """With a constant reward the target is the prior, here the uniform policy over legal actions: p itself."""
    from gflownet.mdp.context import GraphBuildingEnvContext

    context = GraphBuildingEnvContext(CONNECTED_5)
    policy: Any = PolicyOnDevice(UniformPolicy(context), device=torch.device("cpu"), precision="float32")
    parts: dict[str, Any] = {"task": RewardsEqually(), "evaluator": ScoresOne()}
    subject = Subject(
        context=context,
        **parts,
        policy=policy,
        objective=RelativeTrajectoryBalance(context, AlgoConfig(method="relative_tb")),
        trained=policy,
        store=CertificateStore(*[Empty()] * 2),  # type: ignore[arg-type]
        step=1,
        seed=0,
    )
    options: dict[str, Any] = {"extra_states": None, "report_stage": lambda text: None, "stopped": lambda: False}
    result = certify(subject, max_states=5, num_samples=64, **options)
    assert result is not None
    certificate = result.parts[0].certificate
    assert isinstance(certificate, EstimatedCertificate)
    assert certificate.flow_consistency.value < 1e-6
    assert certificate.pearson.value == pytest.approx(1)
