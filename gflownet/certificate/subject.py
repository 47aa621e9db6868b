"""The certified policy with its task, objective and evaluator, and the certified conditionings.

Letters: X terminal states, K objectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store.claims import Store
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStore, Identity
from gflownet.evaluation.task import GFNTask
from gflownet.graphs.canonical import Candidate
from gflownet.learning.sampler import Exploration, assembled, sample_backward, sample_forward, sampled_steps
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.steps import StepReader
from gflownet.policy.wrappers import PolicyOnDevice
from gflownet.workers.process import Stream, stream_seed

BETA_QUANTILES = (0.05, 0.5, 0.95)  # of a random inverse temperature: the certified values
_NUM_DRAWS = 999  # of the conditioning, to compute the quantiles
_CHUNK = 16  # candidates evaluated between two checks for a stop request: a default training step
EXPLORATION = 0.5  # share of random actions of trajectories that check the samplers: every state is reached


class CertificateStore:
    """The evaluations of a run, and a second store for new ones, which reports of the search exclude."""

    def __init__(self, run: Store, new: EvaluationStore) -> None:
        self._run, self._new = run, new
        self.add, self.claim, self.start = new.add, new.claim, new.start
        self.renew, self.release = new.renew, new.release

    def find_many(self, identities: Sequence[Identity]) -> list[EvaluationRecord | None]:
        """Return the record of each graph, or None."""
        pairs = zip(self._run.find_many(identities), self._new.find_many(identities), strict=True)
        return [new or earlier for earlier, new in pairs]  # a new one is another attempt


@dataclass(frozen=True)
class Subject:
    """The certified policy with its task, objective and evaluator."""

    context: GraphBuildingEnvContext
    task: GFNTask
    policy: PolicyOnDevice  # for sampling
    objective: Objective
    trained: PolicyOnDevice  # by the objective; the sampling policy may be a moving average of it
    evaluator: Evaluator
    store: CertificateStore  # of the evaluator
    step: int
    seed: int
    # Predicted scores of terminal states [B] or [B, K]; None: measured ones, by the evaluator.
    predict: Callable[[GraphStates], Tensor] | None = None
    scale: Callable[[Tensor, Conditioning], Tensor] | None = None  # scores to log-rewards; None: that of the task

    def generator(self, *stream: int) -> torch.Generator:
        """Return the random generator of a stream."""
        return torch.Generator().manual_seed(stream_seed(self.seed, *stream))

    def log_z(self, conditioning: Conditioning) -> float | None:
        """Return the learned log Z under a single conditioning, None if it is not learned."""
        log_z = self.objective.log_partition(self.trained, conditioning.encoding, conditioning.limit)
        return None if log_z is None else float(log_z.detach())

    def limits(self, conditioning: Conditioning) -> dict[str, int]:
        """Return the caps of a single conditioning by metric."""
        caps = () if conditioning.limit is None else conditioning.limit[0].tolist()
        return dict(zip(self.context.env.vocabulary.limits, caps, strict=False))

    @property
    def prior(self) -> PolicyFunction | None:
        """Return the prior p0 of an objective with the target R(x) p0(x) instead of R(x)."""
        return self.objective.prior_policy(self.policy)

    @property
    def reader(self) -> StepReader | None:
        """Return the objective's reader of trajectories, None for an objective of the user without one."""
        return getattr(self.objective, "reader", None)

    def trajectories(
        self, states: GraphStates, log_reward: Tensor, conditioning: Conditioning, *stream: int
    ) -> TrajectoryBatch:
        """Return a backward trajectory into each terminal state, with log-rewards [X], under one conditioning."""
        conditionings, generator = repeated(conditioning, len(states)), self.generator(*stream)
        batch = sample_backward(self.context, states, conditioning=conditionings, generator=generator)
        return batch.with_rewards(log_reward)

    def sampled(
        self, conditioning: Conditioning, num: int, *, random_action_prob: float = EXPLORATION
    ) -> TrajectoryBatch:
        """Return `num` trajectories of the policy under one conditioning, as training samples them."""
        return sample_forward(
            self.context,
            self.policy,
            conditioning=repeated(conditioning, num),
            generator=self.generator(Stream.LOSS),
            random_action_prob=random_action_prob,
        )

    def samples(self, conditioning: Conditioning, num: int) -> dict[str, TrajectoryBatch]:
        """Return `num` trajectories of the policy with exploration by each sampler of training.

        A small space has two, a table of its states and single steps; training takes one of them by the size of its
        batches.
        """
        many, cpu = repeated(conditioning, num), torch.device("cpu")
        steps = sampled_steps(
            self.context, self.policy, many, self.generator(Stream.LOSS, 1), Exploration(EXPLORATION), cpu
        )
        by_steps = assembled(self.context.env, steps, many, Origin.SAMPLED)
        return {"sampled at once": self.sampled(conditioning, num), "sampled step by step": by_steps}

    def log_reward(self, scores: Tensor, conditioning: Conditioning) -> Tensor:
        """Return the log-rewards of scores [X], or of utilities [X, K], under a single conditioning, float64."""
        return (self.scale or self.task.log_reward)(scores, repeated(conditioning, len(scores))).double()

    def evaluated(
        self, candidates: Sequence[Candidate], stopped: Callable[[], bool], report_done: Callable[[int], None]
    ) -> list[Evaluation] | None:
        """Return the evaluations, None if a signal arrived before the last one. `report_done` gets their number."""
        evaluations: list[Evaluation] = []
        try:
            for start in range(0, len(candidates), _CHUNK):
                if stopped():
                    return None
                report_done(len(evaluations))
                evaluations += self.evaluator.evaluate(candidates[start : start + _CHUNK], step=self.step)
        except EvaluationStoppedError:
            return None
        return None if stopped() else evaluations

    def conditionings(self) -> list[Conditioning]:
        """Return the certified conditionings: the only one, or samples at the quantiles of beta, or of the cap."""
        samples = self.task.sample_conditioning(_NUM_DRAWS, generator=self.generator(Stream.CONDITIONING))
        rows = torch.cat([samples.encoding, samples.beta[:, None]], 1)
        if bool((rows == rows[0]).all()):
            return [samples[:1]]
        # Caps are log-uniform; all limits but one are constant.
        order = (samples.beta if samples.limit is None else samples.limit.sum(1)).argsort(stable=True)
        indices = [order[round(quantile * (_NUM_DRAWS - 1))] for quantile in BETA_QUANTILES]
        return [samples[index[None]] for index in indices]


def repeated(conditioning: Conditioning, num: int) -> Conditioning:
    """Return a single conditioning, repeated."""
    limit = None if conditioning.limit is None else conditioning.limit.expand(num, -1)
    return Conditioning(conditioning.encoding.expand(num, -1), conditioning.beta.expand(num), limit)
