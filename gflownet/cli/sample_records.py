"""Sampled graphs with their log-probabilities, and their scores where the run has evaluated them.

Letters: B sampled trajectories, U distinct pairs of terminal state and conditioning, M backward trajectories into each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflownet.certificate.estimates import (
    effective_sample_size,
    log_ratio,
    rolled_back,
    terminating_log_prob,
    with_learned_backward,
)
from gflownet.certificate.exact import enumerate_states, forward_scores, policy_log_prob, terminating_distribution
from gflownet.errors import UserError
from gflownet.evaluation.evaluator import Evaluation, evaluation_of
from gflownet.evaluation.store.claims import NoStore, Store
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.evaluations import EvaluationStore, Identity
from gflownet.evaluation.store.fingerprint import context_of
from gflownet.evaluation.store.rows import EvaluationStatus
from gflownet.learning.sampler import conditions_of
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.run.sampling import RestoredPolicy
from gflownet.workers.process import Stream, stream_seed


@dataclass(frozen=True)
class LogProb:
    """log p(x) of a terminal state under the policy, over all its trajectories."""

    value: float
    method: str  # exact or estimate
    num_trajectories: int | None = None  # M of an estimate
    effective_trajectories: float | None = None  # of them; near 1 the estimate is unreliable


@dataclass(frozen=True)
class SampleRecord:
    """A sampled graph."""

    graph: dict[str, Any]  # node-link form
    hash: str  # canonical, as in the store
    beta: float  # inverse temperature of its conditioning
    conditioning: tuple[float, ...]  # encoding that the policy has read
    log_forward: float  # log P_F of the sampled trajectory
    log_backward: float  # log P_B of this trajectory, given its last state
    log_prob: LogProb | None
    evaluation: Evaluation | None  # None: the run has not evaluated the graph
    predicted: float | None  # score, or first objective, by the surrogate of a search; None without a search
    log_reward: float | None  # log R(x) of the score, after a search of the prediction; None without either
    objectives: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as it is written as JSON; values that are not finite are null."""
        evaluation, log_prob = self.evaluation, self.log_prob
        is_scored = evaluation is not None and evaluation.status is EvaluationStatus.OK
        fields: dict[str, Any] = {
            "hash": self.hash,
            "score": _finite(evaluation.score) if evaluation is not None and is_scored else None,
            "status": None if evaluation is None else str(evaluation.status),
            "predicted": _finite(self.predicted),
            "log_reward": _finite(self.log_reward),
            "log_prob": None if log_prob is None else _finite(log_prob.value),
            "log_prob_method": None if log_prob is None else log_prob.method,
            "log_prob_trajectories": None if log_prob is None else log_prob.num_trajectories,
            "log_prob_effective": None if log_prob is None else _finite(log_prob.effective_trajectories),
            "log_forward": _finite(self.log_forward),
            "log_backward": _finite(self.log_backward),
            "beta": self.beta,
        }
        if self.objectives:
            fields["conditioning"] = list(self.conditioning)
            if evaluation is not None and is_scored:
                fields["utilities"] = dict(zip(self.objectives, evaluation.utilities, strict=True))
        return {**fields, "graph": self.graph}


LogProbs = Callable[[TrajectoryBatch], list[LogProb]]  # log p(x | conditioning) of B terminal states


class ExactProbability:
    """Exact log p(x): the probabilities of all actions of all states, pushed forward."""

    def __init__(self, restored: RestoredPolicy, *, max_states: int) -> None:
        """Enumerate the states. Raises UserError for more than `max_states`."""
        self._restored = restored
        try:
            self._graph = enumerate_states(restored.trainer.env, max_states=max_states)
        except ValueError as error:
            raise UserError(f"--exact: {error}; without it, log p(x) is estimated") from None
        self._log_probs: dict[tuple[float, ...], Tensor] = {}  # [S] by conditioning and limit

    def log_probs(self, batch: TrajectoryBatch) -> list[LogProb]:
        """Return log p(x | conditioning) of B terminal states."""
        states = self._graph.locate(self._restored.trainer.env.identify(batch.terminal)).tolist()
        rows = zip(states, batch.conditioning, batch.terminal.limit, strict=True)
        return [LogProb(float(self._distribution(each, limit)[state]), "exact") for state, each, limit in rows]

    def _distribution(self, encoding: Tensor, limit: Tensor) -> Tensor:
        """Return log p of all states under one conditioning and one limit, [S]."""
        key = (*encoding.tolist(), *limit.tolist())
        if key not in self._log_probs:
            whole, context = self._graph, self._restored.trainer.context
            graph = whole if torch.equal(limit, whole.states.limit[0]) else enumerate_states(context.env, limit=limit)
            log_prob = policy_log_prob(graph, forward_scores(context, self._restored.policy, encoding))
            probability = torch.zeros(len(whole), dtype=torch.float64)
            probability[whole.locate(graph.code)] = terminating_distribution(graph, log_prob)
            self._log_probs[key] = probability.log()
        return self._log_probs[key]


class EstimatedProbability:
    """Estimate of log p(x) from M trajectories sampled backward from x (`metrics.estimates.terminating_log_prob`)."""

    def __init__(self, restored: RestoredPolicy, *, num_trajectories: int, seed: int) -> None:
        self._restored, self._num = restored, num_trajectories
        self._generator = torch.Generator().manual_seed(stream_seed(seed, Stream.BACKWARD))

    def log_probs(self, batch: TrajectoryBatch) -> list[LogProb]:
        """Return log p(x | conditioning) of B terminal states, the same for equal ones."""
        trainer, num = self._restored.trainer, self._num
        codes = trainer.env.identify(batch.terminal).tolist()
        keys = list(zip(codes, map(tuple, batch.conditioning.tolist()), strict=True))
        position = {key: i for i, key in enumerate(dict.fromkeys(keys))}  # U
        first = torch.tensor([keys.index(key) for key in position])
        states, conditioning, policy = batch.terminal[first], conditions_of(batch)[first], trainer.learner.sampling
        rollouts = rolled_back(trainer.context, policy, states, conditioning, num=num, generator=self._generator)
        ratios = log_ratio(trainer.context, self._restored.policy, rollouts).reshape(-1, num)
        log_probs = terminating_log_prob(ratios, batch.log_symmetry[first]).tolist()
        sizes = effective_sample_size(ratios).tolist()
        return [LogProb(log_probs[i], "estimate", num, sizes[i]) for i in (position[key] for key in keys)]


@contextmanager
def known_scores(restored: RestoredPolicy, folder: Path) -> Iterator[Store]:
    """Open the store of a run; without one yield a store without rows."""
    trainer = restored.trainer
    url = trainer.config.evaluation.store_url
    if not url and not (folder / STORE_NAME).exists():
        yield NoStore()
        return
    with EvaluationStore(url or folder / STORE_NAME, context=context_of(trainer.task)) as store:
        yield store


def sample_records(
    restored: RestoredPolicy, batch: TrajectoryBatch, *, store: Store, log_probs_of: LogProbs | None
) -> Iterator[SampleRecord]:
    """Yield the records of a batch of trajectories."""
    graphs, task, scale = restored.graphs(batch), restored.trainer.task, restored.trainer.sampler.scale
    context, owned = restored.trainer.context, batch
    if context.backward_types:  # log P_B of the run's policy
        owned = with_learned_backward(context, restored.trainer.learner.sampling, batch)
    ratio = log_ratio(context, restored.policy, owned)
    log_backward = torch.zeros(len(batch), dtype=torch.float64)
    log_backward.index_add_(0, batch.trajectory, owned.log_backward.double())
    log_forward = (ratio + log_backward).tolist()
    log_probs = [None] * len(batch) if log_probs_of is None else log_probs_of(batch)
    conditioning, predictions, log_rewards = conditions_of(batch), None, list[float | None]([None] * len(batch))
    if restored.predict is not None and scale is not None and len(batch):
        predictions = restored.predict(batch.terminal)
        log_rewards = scale.log_reward(predictions, conditioning).tolist()
        conditioning = replace(conditioning, beta=scale.levels(conditioning)[1])
    for i, (graph, row) in enumerate(zip(graphs, store.find_many([*map(Identity.of, graphs)]), strict=True)):
        evaluation = None if row is None else evaluation_of(row, task=task, cached=True)
        if evaluation is not None and predictions is None:
            measured = torch.tensor([evaluation.utilities or evaluation.score], dtype=torch.float32)
            log_rewards[i] = float(task.log_reward(measured, conditioning[i : i + 1]))
        yield SampleRecord(
            graph=graph.to_dict(),
            hash=graph.canonical_hash(),
            beta=float(conditioning.beta[i]),
            conditioning=tuple(batch.conditioning[i].tolist()),
            log_forward=log_forward[i],
            log_backward=float(log_backward[i]),
            log_prob=log_probs[i],
            evaluation=evaluation,
            predicted=None if predictions is None else float(predictions[i].reshape(-1)[0]),
            log_reward=log_rewards[i],
            objectives=tuple(task.chosen_objectives),
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
