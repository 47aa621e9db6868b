"""Runs with exploration and replay options, and their resume."""

import itertools
import json
from pathlib import Path

import torch

from gflownet.config import load_config
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.mdp.trajectory import Origin
from gflownet.run.logging import TIME_KEYS
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
EVERYTHING = (
    "algo.backward_policy=learned",
    "algo.method=fl_subtb",
    "algo.sampling_temperature=1.5",
    "algo.sampling_tau=0.5",
    "replay.priority=rank",
    "replay.resample=false",
    "replay.evict=worst",
    "replay.num_updates=2",
    "replay.capacity=10",
    "local_search.num=2",
    "local_search.num_iterations=1",
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


def test_run_with_all_exploration_resumes_exactly(tmp_path):
    whole = made(tmp_path / "whole", *EVERYTHING, "num_training_steps=2")
    whole.run()
    made(tmp_path / "parts", *EVERYTHING, "num_training_steps=1").run()
    rest = made(tmp_path / "parts", *EVERYTHING, "num_training_steps=2", "resume=true")
    rest.run()
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, rest.policy.state_dict()[name]), name
    ours, theirs = (metrics_of(tmp_path / folder / "run") for folder in ("parts", "whole"))
    assert ours == theirs
    assert {"replay_size", "local_search_accepted", "num_distinct"} <= theirs[-1].keys()


def metrics_of(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIME_KEYS} for row in rows]
