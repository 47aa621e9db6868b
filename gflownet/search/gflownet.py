"""The policy of a run as a search method: candidates are its samples, and it is trained on their scores."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.evaluator import Evaluator
from gflownet.learning.source import Rollout
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import OBJECTIVES
from gflownet.search.method import Learned, Results, SearchMethod, SearchSetup


class GFlowNet(SearchMethod):
    """Proposes samples of the policy; each round is a training step on them, on replayed and on offline trajectories.

    In order of submission it learns the trajectories that it sampled. In order of completion it learns trajectories
    sampled backwards from finished states, so that their order does not matter.
    """

    trains_policy, keeps_history = True, False
    _evaluator: Evaluator
    _workers: Generator[TrajectoryBatch] | None = None  # sample in other processes

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Accept every objective; refuse samples of earlier weights for one that learns on-policy."""
        if config.search.width and OBJECTIVES.load(config.algo.method).is_on_policy:
            raise UserError(
                f"search.width: expected 0 with algo.method={config.algo.method}, which learns on-policy only, got "
                f"{config.search.width}"
            )

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self.training = setup.build_training()
        self._sampled: deque[TrajectoryBatch] = deque()  # without results, oldest first

    @contextmanager
    def session(self, evaluator: Evaluator, *, first_call: int) -> Iterator[None]:
        self._evaluator, start = evaluator, self.training.start_workers
        if start is None:
            yield
            return
        with closing(start(first_call)) as self._workers:
            yield

    def propose(self, call: int, num: int) -> GraphStates:
        """Return the terminal states of the next trajectories."""
        training = self.training
        if self._workers is not None:
            batch = next(self._workers)
        else:
            teacher = training.auxiliary.teacher
            batch = training.source.sample(
                call, training.learner.sampling, None if teacher is None else teacher.policy, num=num
            )
        if training.in_order:
            self._sampled.append(batch)
        return batch.terminal

    def observe(self, results: Results) -> Learned:
        """Take a training step, and return its metrics."""
        training, step = self.training, results.round
        rollout = self._rollout(results)
        try:
            metrics = training.learner.learn(rollout, training.auxiliary.learn)
        except FloatingPointError as error:
            raise FloatingPointError(f"step {step}: {error}") from error
        log_rewards = rollout.trajectories.log_reward[: rollout.num_fresh]
        metrics |= {"log_reward_mean": float(log_rewards.mean()), **rollout.metrics}
        if training.validate_every and step % training.validate_every == 0:
            metrics |= self._validated(step)
        return Learned(metrics, log_rewards.tolist(), rollout.other_evaluations)

    def state_dict(self) -> dict[str, Any]:
        return {"sampled": [asdict(batch) for batch in self._sampled]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sampled = deque()
        for batch in state["sampled"]:
            states = {name: GraphStates(**batch[name]) for name in ("states", "terminal")}
            actions = {name: ActionBatch(**batch[name]) for name in ("actions", "backward")}
            self._sampled.append(TrajectoryBatch(**{**batch, **states, **actions}))

    def _rollout(self, results: Results) -> Rollout:
        """Return the trajectories to learn; those without results stay as they are after a stop request."""
        training, policy = self.training, self.training.learner.sampling
        if training.in_order:
            fresh = self._sampled[0]
        else:
            fresh = training.source.resampled(results.round, results.states, results.evaluations, policy)
        replay = training.replay.state_dict()
        try:
            rollout = training.source.rollout(
                results.round,
                fresh,
                [candidate.canonical_key() for candidate in results.candidates],
                results.evaluations,
                policy=policy,
                evaluator=self._evaluator,
                replay=training.replay,
            )
        except EvaluationStoppedError:  # a resumed run repeats the step
            training.replay.load_state_dict(replay)
            raise
        if training.in_order:
            self._sampled.popleft()
        return rollout

    def _validated(self, step: int) -> dict[str, float]:
        """Return mean scores of a batch sampled without exploration, and of a greedy one with action values.

        Training is not affected. Nothing after a stop request.
        """
        training, metrics = self.training, dict[str, float]()
        policies: dict[str, PolicyFunction] = {"validation_score_mean": training.learner.sampling}
        if training.auxiliary.action_values is not None:
            greedier = training.auxiliary.action_values.greedier(training.learner.sampling)
            policies["greedy_score_mean"] = greedier
        try:
            for name, policy in policies.items():
                metrics[name] = training.source.mean_score(step, policy=policy, evaluator=self._evaluator)
        except EvaluationStoppedError:
            return {}
        return metrics
