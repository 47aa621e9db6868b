"""Contract of every objective, with the default network and in a run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.objectives.config import OBJECTIVES
from gflownet.policy.wrappers import PolicyOnDevice
from gflownet.run import trainer as trainer_module
from gflownet.run.folder import last_checkpoint
from gflownet.run.trainer import GFNTrainer
from gflownet.testing import ObjectiveContract
from gflownet.testing.objectives import trajectories
from gflownet.train import main
from tests.device_with_values import device_with_values
from tests.fast_cases import slow_except


def test_objectives_declare_the_backward_policies_they_train() -> None:
    trains_none = {name for name in OBJECTIVES if OBJECTIVES.load(name).backward_policies == ("uniform",)}
    refuses_learned = {name for name in OBJECTIVES if "learned" not in OBJECTIVES.load(name).backward_policies}
    assert trains_none == {"fm", "a2c", "ppo"}
    assert refuses_learned - trains_none == {"relative_tb", "max_likelihood"}


# Objectives with different reads of the policy: steps, flows of states, incoming actions, values, prior.
KINDS = ("tb", "fl_subtb", "fm", "ppo", "relative_tb")
CHECKS = ObjectiveContract.names()
# The wiring of gradients is shared by objectives of a kind; the value of each loss: tests/objectives/test_losses.py.
SHARED = {"check_backward_policy_gets_a_gradient_or_is_refused", "check_loss_is_finite_for_trajectories_of_one_step"}


@pytest.mark.parametrize(
    ("method", "check"),
    [
        pytest.param(method, check, marks=[pytest.mark.slow] * (check in SHARED and method not in KINDS))
        for method in OBJECTIVES
        for check in CHECKS
    ],
)
def test_objective(method, check):
    ObjectiveContract(method).run(check)


@pytest.mark.parametrize("method", slow_except(("tb", "fm", "ppo"), OBJECTIVES))
@pytest.mark.parametrize(
    "options",
    [pytest.param({}, marks=pytest.mark.slow), {"backward_policy": "pessimistic", "symmetry": "actions"}],
    ids=["", "both"],
)
def test_gradient_on_a_device_equals_that_on_the_cpu(method, options):
    contract = ObjectiveContract(method)
    accepted = {"backward_policy": contract.objective_class.backward_policies}
    accepted["symmetry"] = contract.objective_class.symmetries
    context, policy, objective = contract.build(**{k: v for k, v in options.items() if v in accepted[k]})
    batch, gradients = trajectories(context, policy), []
    objective.prepare(policy, batch)
    policy.zero_grad()
    objective.loss(policy, objective.annotated(policy, batch)).value.backward()
    gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    with device_with_values() as device:
        on_device = PolicyOnDevice(policy.to(device), device=device, precision="float32")
        objective.to(device).prepare(on_device, batch)
        loss = objective.loss(on_device, objective.annotated(on_device, batch))
        policy.zero_grad()
        loss.value.backward()
        assert all(isinstance(metric, float) for metric in loss.metrics.values())
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]).cpu())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5 * float(gradients[0].abs().max()))


SMALL_RUN = (
    *("task=structure_learning", "env.name=labelled_dag", "env.labelled_dag.num_nodes=3"),
    *("algo.num_from_policy=6", "replay.warmup=4", "replay.num_from_replay=4", "model.num_emb=8"),
    *("model.num_layers=1", "wandb.mode=disabled", "report.every=null", "checkpoint_every=1"),
)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", slow_except(["ppo"], OBJECTIVES))
def test_objective_run_logs_every_step(method, tmp_path):
    assert main([*SMALL_RUN, f"algo.method={method}", "num_training_steps=2", f"log_dir={tmp_path / 'run'}"]) == 0
    assert len(losses(tmp_path / "run")) == 2


@pytest.mark.slow
def test_run_on_a_device_resumes_on_the_cpu(tmp_path, monkeypatch):
    command = [*SMALL_RUN, "algo.teacher.share=0.5", "algo.qgfn.use=true", "algo.sampling_tau=0.9"]
    assert main([*command, "num_training_steps=2", f"log_dir={tmp_path / 'cpu'}"]) == 0
    with monkeypatch.context() as patch, device_with_values() as device:
        patch.setattr(trainer_module, "choose_device", lambda name: device)
        assert main([*command, "num_training_steps=1", f"log_dir={tmp_path / 'device'}"]) == 0
    assert main([*command, "num_training_steps=2", f"log_dir={tmp_path / 'device'}", "resume=true"]) == 0
    assert losses(tmp_path / "device") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-4)


def test_relative_balance_loads_prior_from_run_folder(tmp_path):
    command = [*SMALL_RUN, "num_training_steps=1"]
    assert main([*command, f"log_dir={tmp_path / 'prior'}"]) == 0
    options = [*command, "algo.method=relative_tb", f"log_dir={tmp_path / 'tilted'}"]
    trainer = GFNTrainer(load_config(None, [*options, f"algo.relative.prior={tmp_path / 'prior'}"]))
    prior: Any = trainer.objective.prior  # type: ignore[attr-defined]
    stored = last_checkpoint(tmp_path / "prior", option="prior").state["policy"]
    assert all(torch.equal(value, stored[name]) for name, value in prior.state_dict().items())
    fresh = trainer.policy.state_dict()
    assert not all(torch.equal(value, fresh[name]) for name, value in prior.state_dict().items())
    assert not any(p.requires_grad for p in prior.parameters())
    with pytest.raises(UserError, match=r"algo\.relative\.prior: expected the log_dir of a run with a checkpoint"):
        GFNTrainer(load_config(None, [*options, f"algo.relative.prior={tmp_path / 'nowhere'}"]))
    with pytest.raises(UserError, match=r"algo\.relative\.prior: expected a run with this env and model"):
        GFNTrainer(load_config(None, [*options, f"algo.relative.prior={tmp_path / 'prior'}", "model.num_emb=16"]))
