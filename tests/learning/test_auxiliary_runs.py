"""Runs with teacher and action values: training, resume, workers, greedy samples."""

from pathlib import Path

import pytest
import torch

import gflownet
from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store import EvaluationStatus
from gflownet.mdp.trajectory import Origin
from gflownet.run.trainer import GFNTrainer
from gflownet.train import main
from tests.tiny_run import metric_rows

RUN = (
    *("task=tests.toy_tasks:RewardsHiddenNodes", "wandb.mode=disabled", "num_training_steps=4"),
    *("algo.num_from_policy=4", "replay.num_from_replay=4", "replay.warmup=6", "model.num_emb=8"),
    *("model.num_layers=1", "env.max_hidden_nodes=2", "env.max_edges=4", "checkpoint_every=2"),
)
BOTH = ("algo.teacher.share=0.5", "algo.qgfn.use=true", "algo.qgfn.num_steps=1", "algo.qgfn.p=1", "validate_every=2")


def run(folder: Path, *overrides: str) -> int:
    return main([*RUN, f"log_dir={folder}", *overrides])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert run(folder, *BOTH) == 0
    return folder


def test_auxiliary_metrics_are_logged(finished):
    found = metric_rows(finished)
    assert len(found) == 4
    for row in found:
        assert row["teacher_loss"] >= 0
        assert 0 <= row["action_value_loss"] < 1
        assert row["action_value_mean"] > 0
    assert [row["step"] for row in found if "greedy_score_mean" in row] == [2, 4]


def test_auxiliary_run_resumes_exactly(finished, tmp_path):
    assert run(tmp_path / "run", *BOTH, "num_training_steps=3") == 0
    assert run(tmp_path / "run", *BOTH, "resume=true") == 0
    assert metric_rows(tmp_path / "run") == metric_rows(finished)


@pytest.mark.slow
def test_auxiliary_run_with_one_worker_is_reproducible(tmp_path):
    for name, transport in (("first", "mp_buffer_size=1000000"), ("second", "pickle_mp_messages=true")):
        # Without validations, whose cache hits depend on timing.
        assert run(tmp_path / name, *BOTH, "validate_every=0", "num_workers=1", transport) == 0
    assert metric_rows(tmp_path / "first") == metric_rows(tmp_path / "second")
    assert all("teacher_loss" in row for row in metric_rows(tmp_path / "first"))


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
        return trainer.source.rollout(
            1, policy=counting("policy", trainer.policy), evaluator=_OneScore(), replay=trainer.replay, **others
        ).trajectories

    both = trajectories(teacher=counting("teacher", teacher.policy))
    assert both.origin.tolist() == [int(Origin.SAMPLED)] * 7 + [int(Origin.REMEMBERED)] * 3
    assert min(asked.values()) > 0
    assert trajectories().origin.tolist() == [int(Origin.SAMPLED)] * 10


def test_action_values_target_is_moving_average(tmp_path):
    options = ("algo.qgfn.use=true", "algo.qgfn.decay=0.9", "algo.qgfn.learning_rate=0.1")
    trainer = GFNTrainer(load_config(None, [*RUN, f"log_dir={tmp_path}", *options]))
    values = trainer.auxiliary.action_values
    assert values is not None
    rollout = trainer.source.rollout(1, policy=trainer.policy, evaluator=_OneScore(), replay=trainer.replay)
    first = {name: value.clone() for name, value in values.state_dict()["network"].items()}
    assert all(torch.equal(value, first[name]) for name, value in values.state_dict()["average"].items())
    values.learn(rollout.trajectories)
    state = values.state_dict()
    for name, value in state["average"].items():
        assert torch.allclose(value, 0.9 * first[name] + 0.1 * state["network"][name], atol=1e-6)
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
        (["algo.qgfn.variant=greedy"], "algo.qgfn.variant: expected one of p_greedy, p_quantile, p_of_max"),
        (["algo.qgfn.p=2"], "algo.qgfn.p: expected a number in [0, 1], got 2"),
    ],
)
def test_invalid_auxiliary_options_raise(tmp_path, capsys, overrides, message):
    assert run(tmp_path / "run", *BOTH, *overrides) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_teacher_with_sub_trajectory_balance_and_learned_backward_policy(tmp_path):
    options = ("algo.method=subtb", "algo.teacher.share=0.5", "num_training_steps=2", "opt.num_micro_batches=2")
    assert run(tmp_path / "run", *options, "algo.backward_policy=learned", "algo.symmetry=actions") == 0
    assert all(row["teacher_loss"] >= 0 for row in metric_rows(tmp_path / "run"))


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
