"""Adaptive teacher: exact distributions on an enumerated space."""

import copy
from typing import Any

import pytest
import torch

from gflownet.certificate.exact import forward_scores, policy_log_prob, terminating_distribution
from gflownet.data.sampler import sample_forward
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning.auxiliary import Setup, Teacher
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import AlgoConfig, OptimizerConfig, TeacherConfig
from gflownet.objectives.teacher import teacher_log_reward
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from tests.objectives.spaces import log_symmetries, make_space, rewards_of
from tests.oracles.tabular import labelled_flows, tabular, uniform_backward

MISSED_BY = 6.0  # nats


class Lesson:
    """A student with balanced flows for a reward without one mode, and an untrained teacher."""

    def __init__(self, *, symmetry: str, **opt: Any) -> None:
        self.space = space = make_space("two_coloured_3")
        self.log_reward = rewards_of(space)
        self.mode = int(space.graph.terminal[self.log_reward[space.graph.terminal].argmax()])
        believed = self.log_reward.clone()
        believed[self.mode] -= MISSED_BY
        self.scale = scale = log_symmetries(space) if symmetry == "reward" else torch.zeros(len(space.graph))
        algo = AlgoConfig(symmetry=symmetry, teacher=TeacherConfig(share=0.5, mixing=0.0))  # type: ignore[arg-type]
        self.options = algo.teacher
        flows = labelled_flows(space, believed + scale, uniform_backward(space))
        self.context, self.student = tabular(space, flows, backward=False)
        self.objective = TrajectoryBalance(self.context, algo)
        torch.nn.init.constant_(self.objective.log_z.base, flows.log_flow[0])
        self.algo, self.opt = algo, OptimizerConfig(**{"learning_rate": 0.1, **opt})
        self.teacher = self.make_teacher(torch.zeros_like(believed))
        self.generator = torch.Generator().manual_seed(5)

    def make_teacher(self, log_reward: torch.Tensor) -> Teacher:
        flows = labelled_flows(self.space, log_reward + self.scale, uniform_backward(self.space))
        _, policy = tabular(self.space, flows, backward=False)
        setup = Setup(self.context, self.opt, num_steps=1, device=torch.device("cpu"))
        teacher = Teacher(policy, setup, algo=self.algo)
        torch.nn.init.constant_(teacher.objective.log_z.base, flows.log_flow[0])
        return teacher

    def trajectories(self, num: int = 12) -> TrajectoryBatch:
        """Return as many of the student's as of the teacher's, explored."""
        conditioning = Conditioning(torch.zeros(num, 1), torch.ones(num))
        options = {"conditioning": conditioning, "generator": self.generator, "random_action_prob": 0.2}
        parts = [sample_forward(self.context, policy, **options) for policy in (self.student, self.teacher.policy)]
        both = TrajectoryBatch.cat(parts)
        return both.with_rewards(self.log_reward[self.space.position_of(both.terminal)].float())

    def distribution(self, policy) -> torch.Tensor:
        score = forward_scores(self.context, policy, torch.zeros(1))
        return terminating_distribution(self.space.graph, policy_log_prob(self.space.graph, score))


@pytest.mark.parametrize("symmetry", ["reward", pytest.param("none", marks=pytest.mark.slow)])
def test_teacher_samples_missing_mode(symmetry):
    lesson = Lesson(symmetry=symmetry)
    before = copy.deepcopy(lesson.student.state_dict())
    own, first = lesson.distribution(lesson.student)[lesson.mode], lesson.distribution(lesson.teacher.policy)
    for step in range(30):
        lesson.teacher.learn(lesson.student, lesson.objective, lesson.trajectories(), is_first=step == 0)
    found = lesson.distribution(lesson.teacher.policy)[lesson.mode]
    assert float(own) < 0.01
    assert float(first[lesson.mode]) < 0.2
    assert float(found) > 0.5
    # The student is unchanged and has no gradients.
    assert all(torch.equal(value, before[name]) for name, value in lesson.student.state_dict().items())
    assert all(p.grad is None for p in (*lesson.student.parameters(), *lesson.objective.parameters()))


@pytest.mark.parametrize("symmetry", ["reward", "none"])
def test_teacher_zero_loss_at_balanced_flows(symmetry):
    lesson = Lesson(symmetry=symmetry)
    wrong = torch.zeros_like(lesson.log_reward)
    wrong[lesson.mode] = MISSED_BY
    teacher = lesson.make_teacher(teacher_log_reward(wrong, lesson.log_reward, lesson.options))
    batch = lesson.trajectories(60)
    assert teacher.learn(lesson.student, lesson.objective, batch, is_first=False)["teacher_loss"] < 1e-6
    other = lesson.make_teacher(wrong)
    assert other.learn(lesson.student, lesson.objective, batch, is_first=False)["teacher_loss"] > 1e-2


def test_teacher_rewards_of_known_imbalance():
    lesson = Lesson(symmetry="reward")
    batch = lesson.trajectories(60)
    found = lesson.teacher.rewarded(lesson.student, lesson.objective, batch)
    missed = torch.tensor([p == lesson.mode for p in lesson.space.position_of(batch.terminal)])
    expected = teacher_log_reward(torch.where(missed, MISSED_BY, 0.0), batch.log_reward, lesson.options)
    assert found.log_reward.exp().tolist() == pytest.approx(expected.exp().tolist(), rel=1e-3, abs=1e-5)
    assert bool(missed.any())
    assert found.log_symmetry is batch.log_symmetry


def test_teacher_micro_batches():
    figures = []
    for num in (1, 4):
        # Adam would make a step of the noise in gradients that are zero.
        lesson = Lesson(symmetry="reward", num_micro_batches=num, opt="sgd", learning_rate=0.01)
        batch, learn = lesson.trajectories(), lesson.teacher.learn
        figures.append([learn(lesson.student, lesson.objective, batch, is_first=first) for first in (True, False)])
    for whole, parted in zip(*figures, strict=True):
        assert parted == pytest.approx(whole, rel=1e-4)
