"""The stages of a run with a search method: its rounds, then the training of a policy on completed scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing

import torch
from torch import Tensor

from gflownet.components import SAMPLER_STREAM, Components
from gflownet.data.source import Rollout
from gflownet.errors import counted
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.interrupts import StopRequest
from gflownet.learning.learner import fit, sampled_rollouts
from gflownet.mdp.states import GraphStates
from gflownet.run.run_log import StepSamples
from gflownet.search.loop import SearchLoop, SearchStep
from gflownet.workers.process import stream_seed

Print = Callable[[str], None]


def search_steps(
    run: Components, search: SearchLoop, evaluator: Dispatcher, *, report_line: Print, stop: StopRequest
) -> Iterator[dict[str, float]]:
    """Take the remaining rounds of a search method, and yield the metrics of each."""
    was_fallback = False
    with closing(search.steps(evaluator)) as steps:
        while stop.signal is None and not search.end:
            try:
                step = next(steps, None)
            except EvaluationStoppedError as error:  # a resumed run repeats the round
                if stop.signal is None:
                    search.end = str(error)
                    break
                return
            if step is None:
                break
            run.step += 1
            was_fallback = _report_fallback(step, was_fallback, lambda text: report_line(f"step {run.step}: {text}"))
            yield run.progress.add(step.evaluations) | step.metrics
    if search.end:
        report_line(f"the search ends after step {run.step}: {search.end}")


def sampler_steps(
    run: Components, search: SearchLoop, *, report_line: Print, stop: StopRequest
) -> Iterator[dict[str, float]]:
    """Train the policy of the run on completed scores, and yield the metrics of each step.

    A policy that was trained on fewer evaluations is trained again.
    """
    if search.num_trained_on not in (0, len(search.history)):  # the search has continued with a larger budget
        run.learner = run.build_learner()  # the same weights, a new schedule
    search.num_trained_on = len(search.history)
    first_step = run.learner.num_steps_done + 1
    if first_step <= run.config.num_training_steps:
        report_line("the policy is trained on measured and predicted scores")
    rollouts = (_sampler_rollout(run, search, number) for number in itertools.count(first_step))
    for step in fit(run.learner, rollouts, num_steps=run.config.num_training_steps, first_step=first_step):
        run.step += 1
        log_reward = step.rollout.trajectories.log_reward
        run.progress.samples = StepSamples.of(log_rewards=log_reward.tolist())
        yield {**step.metrics, "log_reward_mean": float(log_reward.mean())}
        if stop.signal is not None:
            return


def completed_scores(search: SearchLoop) -> Callable[[GraphStates], tuple[Tensor, Tensor]]:
    """Return a function that maps terminal states [B] to their completed scores and to which are measured, [B] bool."""

    def complete(states: GraphStates) -> tuple[Tensor, Tensor]:
        codes = search.history.env.identify(states).tolist()
        is_measured = torch.tensor([search.history.position(code) is not None for code in codes], dtype=torch.bool)
        return search.method.completed_scores(states), is_measured

    return complete


def closing_line(run: Components, search: SearchLoop, *, has_converged: bool | None) -> str:
    """Return why the search has ended, and whether its sampler has converged; None: not measured."""
    sampler = "no policy was trained"
    if run.learner.num_steps_done:
        sampler = {
            None: "whether the policy has converged is not measured (certify=true)",
            True: "the policy has converged to the completed reward",
            False: "the policy has not converged to the completed reward; more num_training_steps may help",
        }[has_converged]
    end, num = search.end or "stopped", search.history.num_new
    total = "" if end.startswith(counted(num, "evaluation")) else f", {counted(num, 'evaluation')} in all"
    return f"search.method={run.config.search.method}: {end}{total}; {sampler}"


def _sampler_rollout(run: Components, search: SearchLoop, number: int) -> Rollout:
    """Return trajectories of the policy with rewards of measured and predicted scores."""
    task, num = run.task, run.config.algo.num_from_policy
    return next(
        sampled_rollouts(
            run.context,
            run.learner.sampling,
            log_reward=lambda states, conditioning: task.log_reward(
                search.method.completed_scores(states).float(), conditioning
            ),
            conditioning=lambda generator: task.sample_conditioning(num, generator=generator),
            generator=torch.Generator().manual_seed(stream_seed(run.config.seed, SAMPLER_STREAM, number)),
            exploration=run.source.options.exploration,
        )
    )


def _report_fallback(step: SearchStep, before: bool, report_line: Print) -> bool:
    """Print a line where the use of the surrogate ends or begins again; return whether it has ended."""
    is_fallback = bool(step.metrics.get("fallback", 0.0))
    if is_fallback and not before:
        report_line("the surrogate predicts no better than the mean score: mutations and random candidates instead")
    elif before and not is_fallback:
        report_line("the surrogate predicts better than the mean score again: it is used")
    return is_fallback
