"""Asynchronous training data: sample, submit, and learn from finished evaluations while others run.

B: terminal states. The policy learns from trajectories that are sampled backwards from finished states, so that the
order in which evaluations finish does not matter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from gflownet.data.replay import ReplayBuffer, SeenStates
from gflownet.data.source import Rollout, TrajectorySource
from gflownet.evaluation.evaluator import AsynchronousEvaluator, Evaluation, evaluation_of
from gflownet.evaluation.job import Request, Ticket
from gflownet.evaluation.store import Identity
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch

# Longest wait for a finished evaluation between two checks for a stop request, seconds.
_CHECK_EVERY_S = 0.2
_ROUNDING = 1e-9  # of 1 / updates_per_reward


@dataclass(frozen=True)
class Pending:
    """A sampled terminal state until the policy learns from it."""

    state: GraphStates  # one state
    ticket: Ticket
    step: int  # training steps taken before it was sampled
    is_new: bool  # the first sample of a graph without a result


class AsynchronousRollouts:
    """Rollouts of finished evaluations, without end; up to `max_in_flight` candidates are evaluated meanwhile.

    The timing of evaluations decides the contents of a rollout, so that two runs with one seed differ.
    """

    def __init__(self, source: TrajectorySource, *, max_in_flight: int, updates_per_reward: float | None) -> None:
        """Keep the options.

        Args:
            source: samples and replays trajectories.
            max_in_flight: bound on the candidates without a result.
            updates_per_reward: bound on the rollouts per finished evaluation; None: 1 / trajectories of a step, as in
                synchronous training.
        """
        self.source = source
        self.max_in_flight = max_in_flight
        self.batch_size = min(source.options.num_trajectories, max_in_flight)
        rewards = self.batch_size if updates_per_reward is None else math.ceil(1 / updates_per_reward - _ROUNDING)
        self.num_rewards = max(1, rewards)
        self._pending: list[Pending] = []
        self._finished: deque[Pending] = deque()
        self._num_batches = 0  # sampled so far
        self._submitted: set[Identity] = set()  # graphs sampled by this process
        self._first_step = 1  # of this process
        self._stored: dict[str, Any] | None = None

    def rollouts(
        self,
        *,
        policy: PolicyFunction,
        evaluator: AsynchronousEvaluator,
        replay: ReplayBuffer,
        first_step: int,
        num_steps: int,
        teacher: PolicyFunction | None = None,
    ) -> Generator[Rollout]:
        """Yield the rollouts from `first_step` on; each has at least `num_rewards` new rewards.

        Args:
            policy: samples.
            evaluator: evaluates the samples.
            replay: gets every finished state.
            first_step: number of the first rollout.
            num_steps: number of the last one; near it only as many candidates are sampled as are needed.
            teacher: samples its share of the trajectories.
        """
        self._first_step = first_step
        self._resume(evaluator)
        for step in count(first_step):
            while len(self._finished) < self.num_rewards:
                self._sample(step, policy, teacher, evaluator, num_steps=num_steps)
                waits = len(self._finished) < self.num_rewards
                evaluator.advance(timeout=_CHECK_EVERY_S if waits else 0.0)
                self._collect()
            self._sample(step, policy, teacher, evaluator, num_steps=num_steps)
            yield self._rollout(step, policy, evaluator, replay)
            evaluator.advance(timeout=0.0)  # record what finished during the training step
            self._collect()

    def state_dict(self) -> dict[str, Any]:
        """Return the states that the policy has not learned from yet, safe to load with `weights_only=True`."""
        waiting = [*self._finished, *self._pending]
        states = GraphStates.cat([each.state for each in waiting]) if waiting else None
        return {
            "num_batches": self._num_batches,
            "states": None if states is None else states.state_dict(),
            "steps": [each.step for each in waiting],
            "are_new": [each.is_new for each in waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`; the states are submitted again before the next rollout."""
        self._stored = state

    def _resume(self, evaluator: AsynchronousEvaluator) -> None:
        stored, self._stored = self._stored, None
        if stored is None:
            return
        self._num_batches = stored["num_batches"]
        if stored["states"] is not None:
            self._submit(GraphStates(**stored["states"]), stored["steps"], evaluator, are_new=stored["are_new"])

    def _sample(
        self,
        step: int,
        policy: PolicyFunction,
        teacher: PolicyFunction | None,
        evaluator: AsynchronousEvaluator,
        *,
        num_steps: int,
    ) -> None:
        """Sample and submit one batch where there is room for it and it is still needed."""
        waiting = len(self._pending) + len(self._finished)
        num = min(self.batch_size, (num_steps - step + 1) * self.num_rewards - waiting)
        # Samples that are isomorphic to a running candidate wait for the same ticket.
        if num <= 0 or max(evaluator.num_in_flight, len(self._pending)) + num > self.max_in_flight:
            return
        self._num_batches += 1
        batch = self.source.fresh(self._num_batches, policy, teacher, num=num)
        self._submit(batch.terminal, [step - 1] * len(batch), evaluator)

    def _submit(
        self,
        states: GraphStates,
        steps: Sequence[int],
        evaluator: AsynchronousEvaluator,
        *,
        are_new: Sequence[bool] | None = None,
    ) -> None:
        """Submit sampled states; `are_new` is known for those of a resumed run."""
        env = self.source.context.env
        requests = [Request(env.terminal(states, index)) for index in range(len(states))]
        tickets = evaluator.submit(requests, step=max(steps, default=0) + 1)
        for index, (ticket, step) in enumerate(zip(tickets, steps, strict=True)):
            is_new = self._is_new(ticket, evaluator) if are_new is None else are_new[index]
            self._pending.append(Pending(states[index : index + 1], ticket, step, is_new))
            self._submitted.add(ticket.request.identity)
        self._collect()

    def _is_new(self, ticket: Ticket, evaluator: AsynchronousEvaluator) -> bool:
        """Return whether a graph is sampled for the first time.

        A row of this run from after its checkpoint counts as new: only a resumed run finds one.
        """
        if ticket.request.identity in self._submitted:
            return False
        record, is_known = ticket.record, ticket.outcome is None
        return record is None or not is_known or (record.run == evaluator.run and record.step >= self._first_step)

    def _collect(self) -> None:
        self._finished += [each for each in self._pending if each.ticket.record is not None]
        self._pending = [each for each in self._pending if each.ticket.record is None]

    def _rollout(
        self, step: int, policy: PolicyFunction, evaluator: AsynchronousEvaluator, replay: ReplayBuffer
    ) -> Rollout:
        """Return trajectories into the finished states, and replayed ones."""
        evaluator.flush()
        finished, self._finished = list(self._finished), deque()
        evaluations = _evaluations(finished, evaluator)
        scores = torch.tensor([evaluation.utilities or evaluation.score for evaluation in evaluations])
        states = SeenStates(GraphStates.cat([each.state for each in finished]), scores)
        metrics = {"sample_age": sum(step - 1 - each.step for each in finished) / len(finished)}
        if self.source.options.replay.use:
            keys = [each.ticket.request.candidate.canonical_key() for each in finished]
            metrics["replay_size"] = float(replay.add(states, keys=keys))
        batches = [self.source.resampled(step, states, policy), *self.source.replayed(step, replay, policy)]
        turns = range(1, 1 + self.source.options.replay.num_updates)
        replays = [batch for turn in turns for batch in self.source.replayed(step, replay, policy, turn)]
        batches += self.source.offline_trajectories(step, policy)
        return Rollout(TrajectoryBatch.cat(batches), len(finished), evaluations, replays=replays, metrics=metrics)


def _evaluations(finished: Sequence[Pending], evaluator: AsynchronousEvaluator) -> list[Evaluation]:
    """Return the evaluation of each finished state, cached if its graph was evaluated before or by another run."""
    evaluations = []
    for each in finished:
        record = each.ticket.record
        assert record is not None
        cached = not each.is_new or record.run != evaluator.run
        evaluations.append(evaluation_of(record, task=evaluator.task, cached=cached))
    return evaluations
