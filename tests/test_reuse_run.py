"""Runs with exploration and replay options; their resume: tests/run/test_stages.py."""

import itertools
from pathlib import Path

import torch

from gflownet.config import load_config
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.mdp.trajectory import Origin
from gflownet.run.trainer import GFNTrainer
from tests.learning.rollouts import local_rollouts

SMALL = (
    "task=tests.toy_tasks:RewardsHiddenNodes",
    "num_training_steps=4",
    "algo.num_from_policy=4",
    "model.num_layers=1",
    "model.num_emb=8",
    "env.max_hidden_nodes=2",
    "env.max_edges=4",
    "replay.warmup=4",
    "replay.num_from_replay=3",
    "wandb.mode=disabled",
    "report.every=null",
)


class OneScore(Evaluator):
    """Scores everything alike."""

    def evaluate(self, candidates, *, step):
        return [Evaluation(0.5, EvaluationStatus.OK, 0.0, None, None, {}, cached=False) for _ in candidates]


def made(tmp_path: Path, *overrides: str) -> GFNTrainer:
    return GFNTrainer(load_config(None, [*SMALL, f"log_dir={tmp_path}/run", *overrides]))


def rollouts_of(trainer: GFNTrainer):
    policy = trainer.learner.sampling
    return local_rollouts(trainer.source, policy=policy, evaluator=OneScore(), replay=trainer.replay)


def test_run_samples_from_moving_average(tmp_path):
    """A policy that would stop at once does not show in samples until the average has come near it."""
    trainer = made(tmp_path, "algo.sampling_tau=0.9", "algo.train_random_action_prob=0", "replay.use=false")
    before = {name: value.clone() for name, value in trainer.learner.sampling_policy.state_dict().items()}
    trainer.learner.learn(next(rollouts_of(trainer)))
    trained, average = trainer.policy.state_dict(), trainer.learner.sampling_policy.state_dict()
    for name, value in before.items():
        assert torch.allclose(average[name], 0.9 * value + 0.1 * trained[name], atol=1e-6), name

    sampled = trainer.source.sample_on_policy(9, policy=trainer.learner.sampling)
    with torch.no_grad():
        for value in trainer.policy.parameters():
            value.fill_(torch.nan)  # calls of the trained policy fail
    again = trainer.source.sample_on_policy(9, policy=trainer.learner.sampling)
    assert bool(sampled.states.equals(again.states).all())
    assert len(next(rollouts_of(trainer)).trajectories) == 4


def test_run_num_updates_on_replayed_states(tmp_path):
    trainer = made(tmp_path, "replay.num_updates=3", "opt.opt=sgd")
    rollouts, num_steps = rollouts_of(trainer), []
    trainer.learner.optimizer.register_step_post_hook(lambda *_: num_steps.append(trainer.learner.num_steps_done))
    for rollout in itertools.islice(rollouts, 3):
        trainer.learner.learn(rollout)
    assert num_steps.count(2) == 4  # counted by the steps before
    assert len(rollout.replays) == 3
    assert all(len(batch) == 3 for batch in rollout.replays)
    assert all(int(origin) == Origin.RESAMPLED for batch in rollout.replays for origin in batch.origin)
    texts = {str([p.tolist() for p in batch.actions.parts]) for batch in rollout.replays}
    assert len(texts) > 1, "each draws its own"
