"""Certified subjects on small spaces: an objective, a tabular network at or near its optimum, random rewards."""

from dataclasses import dataclass
from typing import Any

import torch

from gflownet.certificate import CertificateStore, RunCertificate, Subject, certify
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.objectives.base import Objective
from gflownet.objectives.config import AlgoConfig
from gflownet.policy.wrappers import PolicyOnDevice
from tests.objectives.balanced import perturb, set_up
from tests.objectives.spaces import rewards_of
from tests.oracles.tabular import Classes


class ScoresByKey(Evaluator):
    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores

    def evaluate(self, candidates, *, step):
        return [
            Evaluation(self.scores[c.canonical_key()], EvaluationStatus.OK, 0.0, None, None, {}, cached=False)
            for c in candidates
        ]


class RewardsScores:
    """The parts of a task that a certificate uses: one conditioning, the score as log-reward."""

    def sample_conditioning(self, num, *, generator):
        return Conditioning(torch.zeros(num, 1), torch.ones(num))

    def log_reward(self, scores, conditioning):
        return scores.double()


class Empty:
    """A store without evaluations, to which nothing is added."""

    add = claim = start = renew = release = None

    def find_many(self, identities):
        return [None] * len(identities)


@dataclass
class Case:
    """An objective and a network on a space; change its fields before `certified`."""

    space: Classes
    objective: Any
    policy: Any
    context: Any
    task: Any = RewardsScores()  # noqa: RUF009 (nothing changes it)
    trained: Any = None  # None: the policy

    @staticmethod
    def of(
        space: Classes, config: AlgoConfig | None = None, *, objective: type[Objective] | None = None, noise: float = 0
    ) -> "Case":
        """Return the exact flows of an objective as its network, with normal noise on the logits."""
        config = config or AlgoConfig()
        of_method, policy, _, flows = set_up(space, config)
        built: Any = of_method if objective is None else objective(policy.context, config)
        if objective is not None:
            torch.nn.init.constant_(built.log_z.base, flows.log_flow[0])
        if noise:
            torch.manual_seed(0)
            perturb(policy, scale=noise)
        return Case(space, built, policy, policy.context)

    def certified(self, *, max_states: int = 10_000) -> RunCertificate:
        env, graph = self.space.env, self.space.graph
        terminal = graph.terminal.tolist()
        keys = [env.terminal(graph.states, index).canonical_key() for index in terminal]
        scores = dict(zip(keys, rewards_of(self.space)[graph.terminal].tolist(), strict=True))
        policy: Any = PolicyOnDevice(self.policy, device=torch.device("cpu"), precision="float32")
        subject = Subject(
            context=self.context,
            task=self.task,
            policy=policy,
            objective=self.objective,
            trained=self.trained or self.policy,
            evaluator=ScoresByKey(scores),
            store=CertificateStore(*[Empty()] * 2),  # type: ignore[arg-type]
            step=1,
            seed=0,
        )
        result = certify(
            subject,
            max_states=max_states,
            num_samples=64,
            extra_states=None,
            report_stage=lambda text: None,
            stopped=lambda: False,
        )
        assert result is not None
        return result
