"""The parts of a search that its stages use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from gflownet.config import Config
from gflownet.data.asynchronous import AsynchronousRollouts
from gflownet.data.replay import ReplayBuffer
from gflownet.data.source import Rollout, TrajectorySource
from gflownet.evaluation.claims import Store
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.halving import SuccessiveHalving
from gflownet.evaluation.task import GFNTask
from gflownet.learning.auxiliary import AuxiliaryNetworks
from gflownet.learning.learner import Learner
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import Policy
from gflownet.objectives.base import Objective
from gflownet.run.plan import Plan
from gflownet.run.progress import Progress
from gflownet.search.loop import SearchLoop

# Independent random streams of a run.
(
    POLICY_STREAM,
    TRAJECTORY_STREAM,
    CERTIFICATE_STREAM,
    AUXILIARY_STREAM,
    MEMORY_STREAM,
    RANDOM_STREAM,
    SEARCH_STREAM,
    SAMPLER_STREAM,
) = range(8)


class Parts(Protocol):
    """Task, environment, policy, learner and counts of a search; see `gflownet.run.trainer.GFNTrainer`."""

    config: Config
    plan: Plan
    device: torch.device
    task: GFNTask
    context: GraphBuildingEnvContext
    env: Environment
    policy: Policy
    objective: Objective
    learner: Learner
    auxiliary: AuxiliaryNetworks
    replay: ReplayBuffer
    source: TrajectorySource
    asynchronous: AsynchronousRollouts | None
    search: SearchLoop | None
    halving: SuccessiveHalving | None
    run_id: str
    step: int
    progress: Progress
    scoring_context: str

    @property
    def num_steps(self) -> int: ...

    @property
    def trains_sampler(self) -> bool: ...

    def build_learner(self) -> Learner: ...

    def build_sampler_learners(self) -> list[tuple[Learner, int]]: ...

    def build_evaluator(
        self, store: Store, executor: Executor, *, stopped: Callable[[], bool] = ..., num_evaluated: int | None = ...
    ) -> Dispatcher: ...

    def fit(self, rollouts: Iterable[Rollout]) -> Iterator[dict[str, float]]: ...

    def state_dict(self) -> dict[str, Any]: ...
