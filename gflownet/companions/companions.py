"""All that learns beside the policy of a run, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gflownet.companions.action_values import ActionValues
from gflownet.companions.teacher import Teacher
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy, PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import AlgoConfig, OptimizerConfig


class Companions:
    """The teacher and the action values, each of them None where the options ask for none."""

    def __init__(
        self,
        build_policy: Callable[[], Policy],
        context: GraphBuildingEnvContext,
        *,
        algo: AlgoConfig,
        opt: OptimizerConfig,
        num_steps: int,
        device: torch.device,
        seed: Callable[[int], int],
    ) -> None:
        """Build what the options ask for.

        Args:
            build_policy: makes a network like the policy.
            context: the policy's.
            algo: options of teacher and action values, and of the policy's objective.
            opt: options of the policy's optimiser.
            num_steps: training steps of the run, over which the learning rate is scheduled.
            device: where the networks live.
            seed: gives the seed of each companion's first weights, by its number.
        """
        self.teacher: Teacher | None = None
        self.action_values: ActionValues | None = None
        if algo.teacher.share:
            with _weights_from(seed(0)):
                self.teacher = Teacher(build_policy(), context, algo=algo, opt=opt, num_steps=num_steps, device=device)
        if algo.qgfn.use:
            with _weights_from(seed(1)):
                self.action_values = ActionValues(
                    build_policy(), context, config=algo.qgfn, opt=opt, num_steps=num_steps, device=device
                )

    def learn(
        self, policy: PolicyFunction, objective: Objective, trajectories: TrajectoryBatch, *, is_first: bool
    ) -> dict[str, float]:
        """Learn from a step's trajectories before the policy does, see `Teacher.learn`, and return the metrics."""
        metrics: dict[str, float] = {}
        if self.teacher is not None:
            metrics |= self.teacher.learn(policy, objective, trajectories, is_first=is_first)
        if self.action_values is not None:
            metrics |= self.action_values.learn(trajectories)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run goes on from."""
        parts = {"teacher": self.teacher, "action_values": self.action_values}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])
        if self.action_values is not None:
            self.action_values.load_state_dict(state["action_values"])


@contextmanager
def _weights_from(seed: int) -> Iterator[None]:
    """Draw first weights from a seed of their own, so that they shift nothing else's randomness."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
