"""Adaptive teacher: exact distributions on an enumerated space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gflownet
from gflownet.certificate.exact import forward_scores, policy_log_prob, terminating_distribution
from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.evaluation.conditioning import Conditioning
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.learning.auxiliary import Setup, Teacher, teacher_log_reward
from gflownet.learning.sampler import sample_forward
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from gflownet.objectives.config import AlgoConfig, OptimizerConfig, TeacherConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from gflownet.run.trainer import GFNTrainer
from gflownet.train import main
from tests.learning.rollouts import rollout
from tests.objectives.spaces import log_symmetries, make_space, rewards_of
from tests.oracles.tabular import labelled_flows, tabular, uniform_backward
from tests.tiny_run import metric_rows

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


@pytest.mark.parametrize("symmetry", ["reward", "none"])
def test_teacher_zero_loss_at_balanced_flows(symmetry):
    lesson = Lesson(symmetry=symmetry)
    wrong = torch.zeros_like(lesson.log_reward)
    wrong[lesson.mode] = MISSED_BY
    teacher = lesson.make_teacher(teacher_log_reward(wrong, lesson.log_reward, mixing=0.0))
    batch = lesson.trajectories(60)
    assert teacher.learn(lesson.student, lesson.objective, batch, is_first=False)["teacher_loss"] < 1e-6
    other = lesson.make_teacher(wrong)
    assert other.learn(lesson.student, lesson.objective, batch, is_first=False)["teacher_loss"] > 1e-2


def test_teacher_rewards_of_known_imbalance():
    lesson = Lesson(symmetry="reward")
    batch = lesson.trajectories(60)
    found = lesson.teacher.rewarded(lesson.student, lesson.objective, batch)
    missed = torch.tensor([p == lesson.mode for p in lesson.space.position_of(batch.terminal)])
    expected = teacher_log_reward(torch.where(missed, MISSED_BY, 0.0), batch.log_reward, mixing=0.0)
    assert found.log_reward.exp().tolist() == pytest.approx(expected.exp().tolist(), rel=1e-3, abs=1e-5)
    assert bool(missed.any())
    assert found.log_symmetry is batch.log_symmetry


RUN = (
    *("task=tests.toy_tasks:RewardsHiddenNodes", "wandb.mode=disabled", "num_training_steps=3"),
    *("algo.num_from_policy=4", "replay.num_from_replay=4", "replay.warmup=6", "model.num_emb=8"),
    *("model.num_layers=1", "env.max_hidden_nodes=2", "env.max_edges=4", "checkpoint_every=2", "report.every=null"),
)
BOTH = ("algo.teacher.share=0.5", "algo.qgfn.use=true", "validate_every=2")


def run(folder: Path, *overrides: str) -> int:
    return main([*RUN, f"log_dir={folder}", *overrides])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert run(folder, *BOTH) == 0
    return folder


def test_auxiliary_metrics_are_logged(finished):
    found = metric_rows(finished)
    assert len(found) == 3
    for row in found:
        assert row["teacher_loss"] >= 0
        assert 0 <= row["action_value_loss"] < 1
        assert row["action_value_mean"] > 0
    assert [row["step"] for row in found if "greedy_score_mean" in row] == [2]


@pytest.mark.slow
def test_auxiliary_run_with_one_worker_is_reproducible(tmp_path):
    for name, transport in (("first", "mp_buffer_size=1000000"), ("second", "pickle_mp_messages=true")):
        # Without validations, whose cache hits depend on timing.
        assert run(tmp_path / name, *BOTH, "validate_every=0", "num_workers=1", transport) == 0
    assert metric_rows(tmp_path / "first") == metric_rows(tmp_path / "second")
    assert all("teacher_loss" in row for row in metric_rows(tmp_path / "first"))


@pytest.mark.slow
def test_action_values_do_not_affect_training(tmp_path):
    options = ("num_training_steps=3", "task=tests.toy_tasks:DrawsFromEveryGenerator")
    assert run(tmp_path / "without", *options) == 0
    assert run(tmp_path / "with", *options, "algo.qgfn.use=true") == 0
    stripped = [{k: v for k, v in row.items() if "action_value" not in k} for row in metric_rows(tmp_path / "with")]
    assert stripped == metric_rows(tmp_path / "without")


class _OneScore(Evaluator):
    def evaluate(self, candidates, *, step):
        return [Evaluation(0.5, EvaluationStatus.OK, 0.0, None, 1, {}, False) for _ in candidates]


def test_teacher_share_of_trajectories_is_off_policy(tmp_path):
    options = ("algo.num_from_policy=10", "algo.teacher.share=0.3", "replay.use=false")
    trainer = GFNTrainer(load_config(None, [*RUN, f"log_dir={tmp_path}", *options]))
    teacher = trainer.auxiliary.teacher
    assert teacher is not None
    asked = {"policy": 0, "teacher": 0}

    def counting(name, policy):
        def call(batch, conditioning):
            asked[name] += 1
            return policy(batch, conditioning)

        return call

    def trajectories(**others):
        return rollout(
            trainer.source,
            1,
            policy=counting("policy", trainer.policy),
            evaluator=_OneScore(),
            replay=trainer.replay,
            **others,
        ).trajectories

    both = trajectories(teacher=counting("teacher", teacher.policy))
    assert both.origin.tolist() == [int(Origin.SAMPLED)] * 7 + [int(Origin.REMEMBERED)] * 3
    assert min(asked.values()) > 0
    assert trajectories().origin.tolist() == [int(Origin.SAMPLED)] * 10


def test_action_values_target_is_moving_average(tmp_path):
    trainer = GFNTrainer(load_config(None, [*RUN, f"log_dir={tmp_path}", "algo.qgfn.use=true"]))
    values = trainer.auxiliary.action_values
    assert values is not None
    sampled = rollout(trainer.source, 1, policy=trainer.policy, evaluator=_OneScore(), replay=trainer.replay)
    first = {name: value.clone() for name, value in values.state_dict()["network"].items()}
    assert all(torch.equal(value, first[name]) for name, value in values.state_dict()["average"].items())
    values.learn(sampled.trajectories)
    state = values.state_dict()
    for name, value in state["average"].items():
        assert torch.allclose(value, 0.95 * first[name] + 0.05 * state["network"][name], atol=1e-7)
    assert any(not torch.equal(value, first[name]) for name, value in state["network"].items())


def test_teacher_initial_weights_differ_from_policy(tmp_path):
    trainer = GFNTrainer(load_config(None, [*RUN, f"log_dir={tmp_path}", *BOTH]))
    plain = GFNTrainer(load_config(None, [*RUN, f"log_dir={tmp_path}"]))
    teacher, own = trainer.auxiliary.teacher, dict(trainer.policy.named_parameters())
    assert teacher is not None
    for name, parameter in teacher.state_dict()["network"].items():
        assert not torch.equal(parameter, own[name]) or "norm" in name or name.endswith("bias"), name
    assert all(torch.equal(p, own[name]) for name, p in plain.policy.named_parameters())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo.method=a2c"], "algo.teacher.share: expected 0 with algo.method=a2c, which supports no"),
        (["algo.method=fl_db"], "algo.teacher.share: expected 0 with algo.method=fl_db, which supports no"),
        (["algo.teacher.share=0.1"], "expected at least one trajectory for the teacher and one for the policy"),
        (["algo.teacher.share=0.9"], "with algo.num_from_policy=4, got 0.9"),
        (["algo.teacher.share=1"], "algo.teacher.share: expected a number in [0, 1), got 1"),
    ],
)
def test_invalid_auxiliary_options_raise(tmp_path, capsys, overrides, message):
    assert run(tmp_path / "run", *BOTH, *overrides) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_sample_greedy_graphs_of_finished_run(finished):
    before = torch.get_rng_state()
    drawn = {p: gflownet.sample(finished, 5, greediness=p, seed=3) for p in (0.0, 1.0)}
    assert torch.equal(torch.get_rng_state(), before)
    keys = {p: [graph.canonical_key() for graph in graphs] for p, graphs in drawn.items()}
    assert all(graph.validate() == [] for graphs in drawn.values() for graph in graphs)
    assert [len(found) for found in keys.values()] == [5, 5]
    assert keys[0.0] != keys[1.0]
    again = gflownet.sample(finished, 5, greediness=1.0, seed=3)
    assert [graph.canonical_key() for graph in again] == keys[1.0]
    assert len(set(keys[1.0])) == 1  # the best action each time: always the same way


def test_sample_invalid_arguments_raise(finished, finished_runs, tmp_path):
    with pytest.raises(UserError, match="run_folder: expected the log_dir of a run with a checkpoint"):
        gflownet.sample(tmp_path / "none", 5)
    with pytest.raises(UserError, match=r"greediness: expected 0 of a run without algo.qgfn.use=true, got 0.5"):
        gflownet.sample(finished_runs("toy"), 5, greediness=0.5)
    with pytest.raises(ValueError, match="variant: expected one of p_greedy"):
        gflownet.sample(finished, 5, greediness=0.5, variant="greedy")
