"""Search with a surrogate and a policy that is trained on its acquisition."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from gflownet.errors import UserError
from gflownet.mdp.states import GraphStates
from gflownet.objectives.config import OBJECTIVES
from gflownet.search.amortised import AmortisedPolicy, Rewards, updates_within
from gflownet.search.method import SearchSetup
from gflownet.search.surrogate_search import SurrogateSearch
from gflownet.workers.process import stream_seed

# Random streams of a call or a round, and of the weights; after those of the base class.
_SAMPLES, _CANDIDATES, _UPDATE, _WEIGHTS = range(10, 14)
_NUM_BEST = 64  # candidates into which backward trajectories are sampled


class SurrogateGFlowNet(SurrogateSearch):
    """Candidates are mutations and samples of a policy trained on R(x) = acquisition(x)^beta.

    The policy starts from the weights of the last round. A space that is small enough to score as a whole needs none.
    """

    def __init__(self, setup: SearchSetup) -> None:
        super().__init__(setup)
        self.policy: AmortisedPolicy | None = None
        self._training_s = 0.0
        if self.space is None:
            seed = stream_seed(setup.seed, _WEIGHTS)
            self.policy = AmortisedPolicy(setup.context, setup.build_learner, seed=seed)

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raise UserError for objectives that need other data."""
        super().check_config(config)
        objective = OBJECTIVES.load(config.algo.method)
        if not objective.samples_reward or objective.is_on_policy:
            raise UserError(
                "algo.method: expected an objective that samples in proportion to rewards and learns off-policy with "
                f"search.method=surrogate_gflownet, such as tb, got {config.algo.method}"
            )

    def samples(self, call: int) -> GraphStates:
        """Return samples of the policy; random architectures before its first update."""
        if self.policy is None or not self.policy.num_updates:
            return self.random_states(call)
        return self.policy.sample(self.config.proposals.num_sampled, self.setup.generator(call, _SAMPLES))

    def learn(self, round: int) -> Mapping[str, float]:
        """Train the policy on the acquisition."""
        if self.policy is None or self.calibration.is_worse_than_mean:
            return {}
        num = self._num_updates(self.policy)
        start = time.perf_counter()
        generator = self.setup.generator(round, _CANDIDATES)
        pool = self.evolved_pool(round, generator)
        if not len(pool):
            return {}
        order = pool.log_values.argsort(descending=True, stable=True)[:_NUM_BEST]
        rewards = Rewards(
            self.env,
            lambda states: self.log_values(states, generator),
            beta=self.config.acquisition.beta,
            maximum=float(pool.log_values[order[0]]),
        )
        self.policy.train(
            num, rewards, pool.states[order], lambda *stream: self.setup.generator(round, _UPDATE, *stream)
        )
        self._training_s += time.perf_counter() - start
        return {"policy_updates": float(self.policy.num_updates)}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of surrogate and policy."""
        policy = None if self.policy is None else self.policy.state_dict()
        return {**super().state_dict(), "policy": policy, "training_s": self._training_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        super().load_state_dict(state)
        self._training_s = state["training_s"]
        if self.policy is not None:
            self.policy.load_state_dict(state["policy"])

    def _num_updates(self, policy: AmortisedPolicy) -> int:
        """Return the number of updates of a round; measured time bounds it, but for tasks that cost nothing."""
        return updates_within(
            overhead=math.inf if self.setup.task.is_cheap else self.config.overhead,
            evaluation_s=math.fsum(self.history.seconds),
            used_s=self.history.method_seconds,
            update_s=self._training_s / max(policy.num_updates, 1),
            maximum=self.config.proposals.num_updates,
        )
