"""Contract of objectives, with the default network on DAGs of three variables."""

from __future__ import annotations

from typing import Any

import torch

from gflownet.config import load_config, with_options
from gflownet.envs.graph_building import LabelledDAGEnv
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.sampler import sample_backward, sample_forward
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import BACKWARD_NAMES, OBJECTIVES
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.testing.contract import Contract, expect, expect_error

NUM_COND = 2
_UNIFORM = ("uniform",)


def check_objective(name: str, *options: str) -> None:
    """Check an objective.

    Args:
        name: entry point, module:Class or built-in name.
        options: `algo.options.x=y` of the class.

    Raises:
        ContractError: the first rule that the objective breaks, in one line.
    """
    ObjectiveContract(name, *options).run_all()


class ObjectiveContract(Contract):
    """Checks of one objective."""

    def __init__(self, name: str, *options: str) -> None:
        self.name, self.options = name, options
        self.objective_class: Any = OBJECTIVES.load(name)
        self.subject = name

    @property
    def trains_backward(self) -> bool:
        """Whether the objective works with backward policies other than the uniform one."""
        return tuple(self.objective_class.backward_policies) != _UNIFORM

    def config(self, **algo: Any) -> Any:
        """Return a root config with the objective."""
        overrides = [f"algo.method={self.name}", *self.options, *(f"algo.{key}={value}" for key, value in algo.items())]
        return with_options(load_config(None, overrides), {OBJECTIVES.options_key: self.objective_class.Config})

    def build(self, **algo: Any) -> tuple[GraphBuildingEnvContext, DenseTransformerPolicy, Objective]:
        """Return a context, a network and the objective."""
        config = self.config(**algo).algo
        context = GraphBuildingEnvContext(LabelledDAGEnv(3), num_cond_dim=NUM_COND)
        context = context.with_layout(DenseTransformerPolicy.layout)
        context = context if config.backward_policy == "uniform" else context.with_backward()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            policy = DenseTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=8, num_heads=2))
            return context, policy, self.objective_class(context, config)

    def check_gradient_reaches_all_parameters(self) -> None:
        context, policy, objective = self.build()
        batch = trajectories(context, policy)
        objective.prepare(policy, batch)
        loss = objective.loss(policy, objective.annotated(policy, batch))
        expect(loss.value.ndim == 0, f"expected a loss without dimensions, got shape {list(loss.value.shape)}")
        logged, value = loss.metrics.get("loss"), float(loss.value.detach())
        is_equal = isinstance(logged, float) and abs(logged - value) <= 1e-5 * max(abs(value), 1e-7)
        expect(is_equal, f"expected the metric loss to be {value}, got {logged}: return total_loss(...)")
        for name, metric in loss.metrics.items():
            expect(isinstance(metric, float), f"expected a float as metric {name}, got {type(metric).__name__}")
        loss.value.backward()
        heads = [p.grad for name, p in policy.named_parameters() if name.startswith("heads.add_edge")]
        largest = max((float(g.abs().max()) for g in heads if g is not None), default=0.0)
        expect(largest > 0, "expected a gradient of the logits of actions, got none")
        parameters = dict(objective.named_parameters())
        grouped = {id(p) for group in objective.parameter_groups() for p in group["params"]}
        missing = [name for name, p in parameters.items() if id(p) not in grouped]
        expect(not missing, f"expected parameter_groups to contain {', '.join(missing)}")
        expect(len(grouped) == len(parameters), "expected parameter_groups to contain only parameters of the objective")
        idle = [name for name, p in parameters.items() if p.grad is None]
        expect(not idle, f"expected a gradient of {', '.join(idle)}, got none")

    def check_unknown_reward_makes_the_loss_nan(self) -> None:
        """A NaN reward of a trajectory gives a NaN loss, unless the objective does not use the trajectory."""
        if self.objective_class.imitates:
            return
        context, policy, objective = self.build()
        batch = trajectories(context, policy)
        rewards = batch.log_reward.clone()
        rewards[0] = torch.nan
        batch = objective.annotated(policy, batch.with_rewards(rewards))
        batch = batch.with_state_rewards(torch.full_like(batch.state_log_reward, torch.nan))
        value = float(objective.loss(policy, batch).value.detach())
        expect(value != value, f"expected a loss of nan with an unknown reward, got {value}: the reward is not used")

    def check_log_partition_has_one_value_per_conditioning(self) -> None:
        _, policy, objective = self.build()
        with torch.no_grad():
            log_z = objective.log_partition(policy, torch.rand(5, NUM_COND))
        expect(log_z is None or log_z.shape == (5,), "expected log_partition to return None or one value per row")

    def check_backward_policy_gets_a_gradient_or_is_refused(self) -> None:
        for backward in BACKWARD_NAMES[1:]:
            if not self.trains_backward:
                config = self.config(backward_policy=backward)
                pattern = "backward_policy: expected one of uniform with"
                check = self.objective_class.check_config
                expect_error(UserError, pattern, lambda check=check, config=config: check(config), doing=backward)
                continue
            context, policy, objective = self.build(backward_policy=backward)
            objective.loss(policy, trajectories(context, policy)).value.backward()
            gradients = [p.grad for name, p in policy.named_parameters() if name.startswith("heads.remove_edge")]
            largest = max((float(g.abs().max()) for g in gradients if g is not None), default=0.0)
            trains = backward in objective.backward_policies
            expected = "a gradient" if trains else "no gradient, for it is not among backward_policies"
            expect(
                (largest > 0) == trains, f"expected {expected} of algo.backward_policy={backward}, got {largest:.3g}"
            )

    def check_loss_is_finite_for_trajectories_of_one_step(self) -> None:
        for backward in ("uniform", "maxent", "tlm") if self.trains_backward else _UNIFORM:
            context, policy, objective = self.build(backward_policy=backward)
            conditioning = Conditioning(torch.zeros(3, NUM_COND), torch.ones(3))
            generator, initial = torch.Generator().manual_seed(2), context.env.initial_states(3)
            batch = sample_backward(context, initial, conditioning=conditioning, generator=generator)
            batch = batch.with_state_rewards(torch.zeros(3)).with_rewards(torch.tensor([0.0, 0.5, 1.0]))
            objective.prepare(policy, batch)
            value = objective.loss(policy, objective.annotated(policy, batch)).value.detach()
            expect(bool(value.isfinite()), f"expected a finite loss of trajectories that only stop, got {float(value)}")


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
