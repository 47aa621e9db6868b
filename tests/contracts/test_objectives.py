"""Contract of every objective, with the default network and in a run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.config import load_config
from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.envs.labelled_dag import LabelledDAGEnv
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import OBJECTIVES, AlgoConfig
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.in_parts import PolicyInParts
from gflownet.run.folder import policy_weights
from gflownet.train import main
from gflownet.trainer import GFNTrainer

NUM_COND = 2
NO_BACKWARD = [name for name in OBJECTIVES if OBJECTIVES.load(name).backward_policies == ("uniform",)]


def test_objectives_declare_the_backward_policies_they_train() -> None:
    trains_none = {name for name in OBJECTIVES if OBJECTIVES.load(name).backward_policies == ("uniform",)}
    refuses_learned = {name for name in OBJECTIVES if "learned" not in OBJECTIVES.load(name).backward_policies}
    assert trains_none == {"fm", "a2c", "ppo"}
    assert refuses_learned - trains_none == {"relative_tb", "max_likelihood"}


@pytest.fixture(scope="module", params=OBJECTIVES)
def method(request) -> str:
    return request.param


def make(method: str, **options) -> tuple[GraphBuildingEnvContext, DenseTransformerPolicy, Objective]:
    config = AlgoConfig(method=method, **options)
    env = LabelledDAGEnv(3)
    context = GraphBuildingEnvContext(env, num_cond_dim=NUM_COND).with_layout(DenseTransformerPolicy.layout)
    context = context if config.backward_policy == "uniform" else context.with_backward()
    objective_class: Any = OBJECTIVES.load(method)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = DenseTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
        return context, policy, objective_class(context, config)


def trajectories(context: GraphBuildingEnvContext, policy: DenseTransformerPolicy, *, num: int = 6) -> TrajectoryBatch:
    """Return `num` trajectories sampled forwards and `num` sampled backwards, under two conditionings."""
    generator = torch.Generator().manual_seed(1)
    encoding = torch.tensor([[0.0, 1.0], [1.0, 0.0]])[torch.arange(num) % 2]
    conditioning = Conditioning(encoding, torch.ones(num))
    fresh = sample_forward(context, policy, conditioning=conditioning, generator=generator)
    reverse_sampled = sample_backward(context, fresh.terminal, conditioning=conditioning, generator=generator)
    batch = TrajectoryBatch.cat([fresh, reverse_sampled])
    rewards = torch.randn(len(batch.actions), generator=generator)
    return batch.with_state_rewards(rewards).with_rewards(torch.randn(2 * num, generator=generator))


def test_objective_loss_gradient_reaches_all_parameters(method):
    context, policy, objective = make(method)
    batch = trajectories(context, policy)
    objective.prepare(policy, batch)
    batch = objective.annotated(policy, batch)
    loss = objective.loss(policy, batch)
    assert loss.value.ndim == 0
    assert loss.metrics["loss"] == pytest.approx(float(loss.value.detach()), rel=1e-5)
    assert all(isinstance(value, float) for value in loss.metrics.values())
    loss.value.backward()
    heads = [p.grad for name, p in policy.named_parameters() if name.startswith("heads.add_edge")]
    assert max(float(g.abs().max()) for g in heads if g is not None) > 0
    parameters = list(objective.parameters())
    grouped = {id(p) for group in objective.parameter_groups() for p in group["params"]}
    assert grouped == {id(p) for p in parameters}
    assert all(p.grad is not None for p in parameters)


def test_objective_loss_is_nan_with_unknown_reward(method):
    """A NaN reward of a trajectory gives a NaN loss, unless the objective does not use the trajectory."""
    context, policy, objective = make(method)
    batch = trajectories(context, policy)
    rewards = batch.log_reward.clone()
    rewards[0] = torch.nan
    batch = objective.annotated(policy, batch.with_rewards(rewards))
    batch = batch.with_state_rewards(torch.full_like(batch.state_log_reward, torch.nan))
    value = float(objective.loss(policy, batch).value.detach())
    assert (value == value) == (method == "max_likelihood")


def test_objective_gradient_is_equal_with_policy_in_parts(method):
    """States, not trajectories, are split into parts."""
    for backward_policy in ("uniform",) if method in NO_BACKWARD else ("uniform", "maxent", "tlm", "pessimistic"):
        context, policy, objective = make(method, backward_policy=backward_policy)
        batch = trajectories(context, policy)
        whole = gradient_of(objective, policy, batch)
        in_parts = gradient_of(objective, PolicyInParts(policy, context, num_parts=5), batch)
        assert float(whole.norm()) > 0
        assert torch.allclose(whole, in_parts, rtol=1e-3, atol=1e-5 * float(whole.abs().max()))


def gradient_of(objective: Objective, policy: Any, batch: TrajectoryBatch) -> torch.Tensor:
    """Return the gradient of the policy parameters."""
    policy.zero_grad()
    objective.loss(policy, objective.annotated(policy, batch)).value.backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def test_log_partition_has_one_value_per_conditioning(method):
    _, policy, objective = make(method)
    with torch.no_grad():
        log_z = objective.log_partition(policy, torch.rand(5, NUM_COND))
    assert log_z is None or log_z.shape == (5,)


@pytest.mark.parametrize("backward_policy", ["learned", "maxent", "tlm", "pessimistic"])
def test_objective_backward_policy_gets_gradient_or_is_rejected(method, backward_policy):
    if method in NO_BACKWARD:
        config = load_config(None, [f"algo.method={method}", f"algo.backward_policy={backward_policy}"])
        with pytest.raises(UserError, match="backward_policy: expected one of uniform with"):
            OBJECTIVES.load(method).check_config(config)
        return
    context, policy, objective = make(method, backward_policy=backward_policy)
    objective.loss(policy, trajectories(context, policy)).value.backward()
    gradients = [p.grad for name, p in policy.named_parameters() if name.startswith("heads.remove_edge")]
    largest = max((float(g.abs().max()) for g in gradients if g is not None), default=0.0)
    assert (largest > 0) == (backward_policy in objective.backward_policies)


@pytest.mark.parametrize("backward_policy", ["uniform", "maxent", "tlm"])
def test_objective_loss_is_finite_for_trajectories_of_one_step(method, backward_policy):
    if method in NO_BACKWARD and backward_policy != "uniform":
        pytest.skip("the objective has no learned backward policy")
    context, policy, objective = make(method, backward_policy=backward_policy)
    conditioning = Conditioning(torch.zeros(3, NUM_COND), torch.ones(3))
    generator = torch.Generator().manual_seed(2)
    initial = context.env.initial_states(3)
    batch = sample_backward(context, initial, conditioning=conditioning, generator=generator)
    batch = batch.with_state_rewards(torch.zeros(3)).with_rewards(torch.tensor([0.0, 0.5, 1.0]))
    objective.prepare(policy, batch)
    assert bool(objective.loss(policy, objective.annotated(policy, batch)).value.isfinite())


SMALL_RUN = (
    "task=structure_learning",
    "env.name=labelled_dag",
    "env.labelled_dag.num_nodes=3",
    "algo.num_from_policy=6",
    "replay.warmup=4",
    "replay.num_from_replay=4",
    "model.num_emb=8",
    "model.num_layers=1",
    "wandb.mode=disabled",
    "checkpoint_every=1",
)


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_objective_run_logs_every_step(method, tmp_path):
    assert main([*SMALL_RUN, f"algo.method={method}", "num_training_steps=2", f"log_dir={tmp_path / 'run'}"]) == 0
    assert len(losses(tmp_path / "run")) == 2


@pytest.mark.parametrize("options", [("algo.method=subtb", "algo.backward_policy=maxent"), ("algo.method=ppo",)])
def test_resumed_run_repeats_losses_of_uninterrupted_run(options, tmp_path):
    command = [*SMALL_RUN, *options]
    assert main([*command, "num_training_steps=4", f"log_dir={tmp_path / 'uninterrupted'}"]) == 0
    assert main([*command, "num_training_steps=2", f"log_dir={tmp_path / 'resumed'}"]) == 0
    assert main([*command, "num_training_steps=4", f"log_dir={tmp_path / 'resumed'}", "resume=true"]) == 0
    assert len(losses(tmp_path / "uninterrupted")) == 4
    assert losses(tmp_path / "uninterrupted") == losses(tmp_path / "resumed")


def test_relative_balance_loads_prior_from_run_folder(tmp_path):
    command = [*SMALL_RUN, "num_training_steps=1"]
    assert main([*command, f"log_dir={tmp_path / 'prior'}"]) == 0
    options = [*command, "algo.method=relative_tb", f"log_dir={tmp_path / 'tilted'}"]
    trainer = GFNTrainer(load_config(None, [*options, f"algo.relative.prior={tmp_path / 'prior'}"]))
    prior: Any = trainer.objective.prior  # type: ignore[attr-defined]
    stored = policy_weights(tmp_path / "prior", option="prior")
    assert all(torch.equal(value, stored[name]) for name, value in prior.state_dict().items())
    fresh = trainer.policy.state_dict()
    assert not all(torch.equal(value, fresh[name]) for name, value in prior.state_dict().items())
    assert not any(p.requires_grad for p in prior.parameters())
    with pytest.raises(UserError, match=r"algo\.relative\.prior: expected the log_dir of a run with a checkpoint"):
        GFNTrainer(load_config(None, [*options, f"algo.relative.prior={tmp_path / 'nowhere'}"]))
    with pytest.raises(UserError, match=r"algo\.relative\.prior: expected a run with this env and model"):
        GFNTrainer(load_config(None, [*options, f"algo.relative.prior={tmp_path / 'prior'}", "model.num_emb=16"]))
