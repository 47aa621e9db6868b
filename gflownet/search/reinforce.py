"""REINFORCE: policy gradient with a moving baseline (Williams 1992; settings of Dong et al. 2021, NATS-Bench).

Letters: B proposals, S steps of their trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gflownet.data.sampler import sample_forward
from gflownet.mdp.answer import ask
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.options import DECAY, NOT_NEGATIVE, POSITIVE, option
from gflownet.search.baselines import allowed_states
from gflownet.search.method import SearchMethod, SearchSetup
from gflownet.training.optimisers import Adam


@dataclass
class ReinforceConfig:
    """Optimiser, baseline and entropy."""

    learning_rate: float = option(0.001, "learning rate of Adam", POSITIVE)
    baseline_decay: float = option(0.9, "decay of the moving average of scores, the baseline", DECAY)
    entropy: float = option(0.0, "weight of the policy's entropy, which keeps it from one architecture", NOT_NEGATIVE)


class Reinforce(SearchMethod):
    """Samples architectures from a policy network, and makes those with scores above the baseline more probable."""

    Config = ReinforceConfig
    is_on_policy = True

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self.options: ReinforceConfig = setup.config.options
        self._learner = setup.build_learner()
        self._optimizer = Adam(self._learner.policy.parameters(), lr=self.options.learning_rate)
        self._baseline, self._weight = 0.0, 0.0  # sums of the moving average
        self._num_read = 0  # proposals of the history
        # Trajectories without a result by code. Those in flight are not restored: they are not learned from.
        self._trajectories: dict[int, list[TrajectoryBatch]] = {}

    def propose(self, call: int, num: int) -> GraphStates:
        """Return `num` samples of the policy."""
        generator, trajectories = self.setup.generator(call), []

        def sample(num: int) -> GraphStates:
            context, task = self.setup.context, self.setup.task
            conditioning = task.sample_conditioning(num, generator=generator)
            batch = sample_forward(context, self._learner.trained, conditioning=conditioning, generator=generator)
            trajectories.extend(batch.part(i, i + 1) for i in range(num))
            return batch.terminal

        states = allowed_states(self.setup, num, sample)
        codes = self.env.identify(states).tolist()
        for trajectory in trajectories:
            code = int(self.env.identify(trajectory.terminal)[0])
            if code in codes:
                self._trajectories.setdefault(code, []).append(trajectory)
        return states

    def observe(self, round: int) -> Mapping[str, float]:
        """Take one step of the policy gradient on the finished proposals."""
        proposals = self.history.proposals[self._num_read :]
        self._num_read = len(self.history.proposals)
        positions = torch.tensor([proposal.position for proposal in proposals], dtype=torch.int64)
        trajectories, advantages = [], []
        for proposal, code in zip(proposals, self.env.identify(self.history.states[positions]).tolist(), strict=True):
            advantage = proposal.score - self._updated_baseline(proposal.score)
            waiting = self._trajectories.get(code, [])
            if waiting:
                trajectories.append(waiting.pop(0))
                advantages.append(advantage)
            if not waiting:
                self._trajectories.pop(code, None)
        metrics = self._learn(trajectories, torch.tensor(advantages)) if trajectories else {}
        return {"baseline": self._baseline / self._weight, **metrics}

    def state_dict(self) -> dict[str, Any]:
        return {
            "policy": self._learner.policy.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "baseline": (self._baseline, self._weight),
            "num_read": self._num_read,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._learner.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._baseline, self._weight = state["baseline"]
        self._num_read = state["num_read"]

    def _updated_baseline(self, score: float) -> float:
        """Return the moving average after one more score, without the bias towards its start."""
        decay = self.options.baseline_decay
        self._baseline = decay * self._baseline + (1 - decay) * score
        self._weight = decay * self._weight + (1 - decay)
        return self._baseline / self._weight

    def _learn(self, trajectories: Sequence[TrajectoryBatch], advantages: Tensor) -> dict[str, float]:
        """Take a gradient step: log P_F of each trajectory times its advantage [B], plus the entropy."""
        batch = TrajectoryBatch.cat(trajectories)
        answer = ask(self.setup.context, self._learner.trained, batch.states, batch.conditioning[batch.trajectory])
        log_forward = answer.log_prob(batch.actions)
        weights = advantages.to(log_forward)[batch.trajectory.to(log_forward.device)]
        entropy = answer.categorical.entropy().mean()
        loss = -(weights * log_forward).sum() / len(batch) - self.options.entropy * entropy
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"entropy": float(entropy.detach())}
