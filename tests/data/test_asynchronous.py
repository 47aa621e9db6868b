"""Asynchronous rollouts: bounded in-flight candidates, every sample learned once, resume of unfinished states."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch

from gflownet.data.asynchronous import AsynchronousRollouts
from gflownet.errors import UserError
from gflownet.evaluation.dispatcher import EvaluationStoppedError
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.run.trainer import GFNTrainer
from tests.data.rollouts import Parts, parts
from tests.evaluation.candidates import config_with
from tests.small_run import SMALL

NUM_STEPS = 4


class LatestFirst(InlineExecutor):
    """Finishes one job per wait, the latest one first, and counts the candidates in flight."""

    largest = 0

    @property
    def capacity(self) -> int:
        return 3

    def wait(self, handles, *, timeout):
        self.largest = max(self.largest, sum(len(handle.job.candidates) for handle in handles))
        return super().wait(list(handles)[-1:], timeout=timeout)


@contextmanager
def asynchronous(folder, **options: Any) -> Iterator[tuple[AsynchronousRollouts, Parts, LatestFirst]]:
    chosen = {"max_in_flight": 12, "updates_per_reward": None} | options
    with parts(folder) as built:
        executor = LatestFirst(built.source.task)
        built.evaluator.executor = executor
        yield AsynchronousRollouts(built.source, **chosen), built, executor


def rollouts(stream: AsynchronousRollouts, built: Parts, *, first_step: int = 1, num_steps: int = NUM_STEPS):
    return stream.rollouts(
        policy=built.policy, evaluator=built.evaluator, replay=built.replay, first_step=first_step, num_steps=num_steps
    )


def test_asynchronous_rollouts_learn_every_sample_once(tmp_path):
    with asynchronous(tmp_path) as (stream, built, executor):
        steps = list(islice(rollouts(stream, built), NUM_STEPS))
        for rollout in steps:
            fresh = rollout.trajectories.terminal[: rollout.num_fresh]
            sizes = fresh.num_nodes.float()
            expected = rollout.trajectories.beta[: rollout.num_fresh] * (sizes / 10).log()
            assert torch.allclose(rollout.trajectories.log_reward[: rollout.num_fresh], expected)
            assert [10 * e.score for e in rollout.evaluations] == pytest.approx(sizes.tolist())
        assert min(rollout.num_fresh for rollout in steps) >= stream.num_rewards == 6
        assert sum(rollout.num_fresh for rollout in steps) >= NUM_STEPS * 6
        assert 6 < executor.largest <= 12
        # Paid once: each row of the store belongs to exactly one evaluation that is not cached.
        new = [e for rollout in steps for e in rollout.evaluations if not e.cached]
        assert len(new) == built.evaluator.num_evaluated == built.store.count() == len(built.replay)


def test_asynchronous_rollouts_bound_the_updates_per_reward(tmp_path):
    with asynchronous(tmp_path, updates_per_reward=0.5) as (stream, built, _):
        steps = list(islice(rollouts(stream, built), NUM_STEPS))
        assert min(rollout.num_fresh for rollout in steps) >= 2
        assert max(rollout.metrics["sample_age"] for rollout in steps) > 0


def test_asynchronous_rollouts_end_without_surplus_candidates(tmp_path):
    with asynchronous(tmp_path) as (stream, built, _):
        steps = list(islice(rollouts(stream, built, num_steps=3), 3))
        assert built.evaluator.num_in_flight == 0
        assert 18 <= sum(rollout.num_fresh for rollout in steps) < 18 + 12


def test_asynchronous_resume_submits_unfinished_states_again(tmp_path):
    with asynchronous(tmp_path / "a") as (stream, built, _):
        first = next(rollouts(stream, built))
        state = stream.state_dict()
        assert len(state["steps"]) > 0
        built.evaluator.cancel()
        again = AsynchronousRollouts(built.source, max_in_flight=12, updates_per_reward=None)
        again.load_state_dict(state)
        env = built.source.context.env
        waiting = {env.terminal(each.state, 0).canonical_key() for each in [*stream._pending, *stream._finished]}
        second = next(rollouts(again, built, first_step=2))
        learned = second.trajectories.terminal[: second.num_fresh]
        assert waiting & {env.terminal(learned, i).canonical_key() for i in range(len(learned))}
        assert again._num_batches > 1, "the random stream of samples goes on"
        assert first.num_fresh >= 6


def test_asynchronous_rollouts_stop_while_candidates_run(tmp_path):
    stop = []
    with asynchronous(tmp_path) as (stream, built, _):
        built.evaluator._stopped = lambda: bool(stop)
        generator = rollouts(stream, built)
        next(generator)
        stop.append(True)
        with pytest.raises(EvaluationStoppedError):
            next(generator)
        assert built.evaluator.num_in_flight == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["num_workers=1"], "num_workers: expected 0 with asynchronous.max_in_flight"),
        (["local_search.num=2"], r"local_search.num: expected 0 with asynchronous.max_in_flight"),
        (["replay.resample=false"], "replay.resample: expected true with asynchronous.max_in_flight"),
        (["algo.method=a2c", "replay.use=false"], r"asynchronous.max_in_flight: expected 0 with algo.method=a2c"),
        (["algo.method=ppo", "replay.use=false"], r"asynchronous.max_in_flight: expected 0 with algo.method=ppo"),
    ],
)
def test_asynchronous_invalid_combination_raises(overrides, message):
    with pytest.raises(UserError, match=message):
        GFNTrainer(config_with(*SMALL, "asynchronous.max_in_flight=8", *overrides))


class NeverDone(LatestFirst):
    def wait(self, handles, *, timeout):
        return []


def test_asynchronous_samples_of_running_graphs_are_bounded(tmp_path):
    with asynchronous(tmp_path) as (stream, built, _):
        built.evaluator.executor = NeverDone(built.source.task)
        for step in range(1, 20):
            stream._sample(step, built.policy, None, built.evaluator, num_steps=NUM_STEPS + step)
        assert 6 < len(stream._pending) <= 12


def test_asynchronous_row_of_a_lost_process_is_new_once(tmp_path):
    with asynchronous(tmp_path) as (stream, built, _):
        next(rollouts(stream, built))
        again = AsynchronousRollouts(built.source, max_in_flight=12, updates_per_reward=None)  # without a checkpoint
        steps = list(islice(rollouts(again, built), 3))
        new = [evaluation for rollout in steps for evaluation in rollout.evaluations if not evaluation.cached]
        assert len(new) == len({evaluation.hash for evaluation in new})
        first = steps[0].evaluations
        assert {evaluation.hash for evaluation in new} == {e.hash for step in steps for e in step.evaluations}
        assert any(not evaluation.cached for evaluation in first)
