"""The plan of a run: its search method and the number of its trainings, known before the first one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gflownet.config import Config
from gflownet.errors import counted
from gflownet.evaluation.executors.choice import places
from gflownet.evaluation.task import GFNTask
from gflownet.report.verdict import MIN_TRAINED_ON
from gflownet.search.config import SamplerConfig
from gflownet.search.method import SearchMethod
from gflownet.terminal.console import duration

# Largest number of trainings of the random reference, unless final.num_random names one.
_MAX_RANDOM = 100
# Trainings of a run for each sample of its sampler that is trained.
_MIN_PER_VERIFIED = 10
# A policy that is trained for fewer steps on the scores themselves is hardly better than random.
_MIN_STEPS = 20
NUM_REPORTED = 10  # architectures in the closing table and in top_architectures.json, without a final stage
# Options of methods that begin with so many random architectures.
_RANDOM_STARTS = {"evolution": "population"}


# Without final.caps, finalists are chosen up to these shares of the largest size.
SHARES = (0.125, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class RunPlan:
    """Method and trainings of a run. A resumed run has the plan of its options, and counts what it has done."""

    method: str
    reason: str = ""  # of search.method=auto; empty: the method was named
    num_search: int = 0  # evaluations of the search; of the policy alone without budget.evaluations: proposals
    num_final: int = 0  # trainings of the final stage
    num_random: int = 0  # evaluations of random architectures, for comparison
    num_random_final: int = 0  # trainings of the best of these
    num_tested: int = 0  # evaluations for test scores in the report, without a final stage
    num_verified: int = 0  # evaluations of samples of the sampler, after the search
    num_steps: int = 0  # training steps of the policy
    seconds: float = 0.0  # of search and final stage, budget.seconds; 0: no limit
    final_seconds: float = 0.0  # of these for the final stage
    num_places: int = 1  # evaluations at the same time
    warning: str = ""  # that the method is random
    score: str = "score"  # name of the score of the task
    directions: Mapping[str, str] = field(default_factory=dict)  # of each objective: min or max

    @property
    def num_compared(self) -> int:
        """Return the trainings of the random reference."""
        return self.num_random + self.num_random_final

    @property
    def num_after(self) -> int:
        """Return the trainings after the search."""
        return self.num_final + self.num_compared

    def seconds_after(self, used: float) -> float:
        """Return the seconds for final trainings, summed over places: at least their share of the budget."""
        return self.num_places * max(self.seconds - used, self.final_seconds) if self.seconds else math.inf

    def objectives_line(self) -> str:
        """Return the objectives with their directions; empty for one score."""
        words = {"min": "smaller is better", "max": "larger is better"}
        each = ", ".join(f"{name} ({words[direction]})" for name, direction in self.directions.items())
        return f"evaluation.objectives: {each}" if each else ""

    def line(self) -> str:
        """Return method, reason and numbers."""
        reason = f" (auto: {self.reason})" if self.reason else ""
        return f"search.method={self.method}{reason}; plan: {self.words()}; their time follows the first evaluations"

    def words(self) -> str:
        """Return the numbers of the plan."""
        parts = [f"{counted(self.num_search, 'evaluation')} of the search"]
        parts += [counted(self.num_verified, "sample") + " of the sampler"] if self.num_verified else []
        parts += [counted(self.num_final, "final training")] if self.num_final else []
        parts += [f"{counted(self.num_compared, 'training')} of random architectures"] if self.num_compared else []
        parts += [f"{counted(self.num_tested, 'evaluation')} for test scores"] if self.num_tested else []
        parts += [counted(self.num_steps, "policy step")] if self.num_steps else []
        parts += [f"at most {duration(self.seconds)} without random ones"] if self.seconds else []
        return ", ".join(parts)

    def time_line(self, mean_seconds: float, *, num_evaluated: int) -> str:
        """Return the estimated time of the remaining trainings."""
        num = max(self.num_search + self.num_verified - num_evaluated, 0) + self.num_after + self.num_tested
        each = mean_seconds / self.num_places
        at_most = "at most " if self.seconds else ""
        seconds = min(num * each, self.seconds + self.num_compared * each) if self.seconds else num * each
        return (
            f"plan: about {duration(seconds)} for {at_most}{counted(num, 'more training')} of {mean_seconds:.2g} s, "
            f"{self.num_places} at a time"
        )


def capped_objective(task: GFNTask) -> str:
    """Return the cost of two objectives of which the other is the score; empty for others."""
    directions = task.directions()
    costs = [name for name, direction in directions.items() if direction == "min"]
    return costs[0] if len(directions) == 2 and len(costs) == 1 and task.score_name in directions else ""


def divided(num: int, share: float, *, most: int) -> tuple[int, int]:
    """Return the trainings of a search and of its final stage, at most `most`, out of `num`."""
    if num < 2 or not share or not most:
        return num, 0
    num_final = min(max(round(share * num), 1), most)
    return num - num_final, num_final


def plan_of(config: Config, task: GFNTask, method: type[SearchMethod], *, reason: str = "") -> RunPlan:
    """Return the plan of a run."""
    final, num = config.final, config.budget.evaluations
    num_ranges = len({*final.caps} or SHARES) if capped_objective(task) else 1
    most = num_ranges * final.top * final.num_seeds if task.is_noisy else 0
    if num:
        num_search, num_final = divided(num, final.share, most=most)
    else:
        num_search = config.num_training_steps * config.algo.num_from_policy
        num_final = min(max(round(num_search * final.share / (1 - final.share)), 1), most) if final.share else 0
    num_random = min(num_search + num_final, _MAX_RANDOM) if final.num_random is None else final.num_random
    num_places, steps, num_verified = places(task, config.evaluation), config.num_training_steps, 0
    if method.trains_policy:
        steps = min(steps, math.ceil(num_search / config.algo.num_from_policy))
    elif config.search.train_sampler:
        sampler = config.search.sampler
        steps = sum(sampler_updates(sampler, num_search))
        most_verified = min((num_search + num_final) // _MIN_PER_VERIFIED, max(num_search - 1, 0))
        num_verified = min(sampler.num_verified, most_verified)
    else:
        steps = 0
    return RunPlan(
        config.search.method,
        reason,
        num_search - num_verified,
        num_final,
        *divided(num_random if num_final else 0, final.share, most=most),
        num_tested=min(NUM_REPORTED, num_search) if task.has_test and not (num_final or task.is_cheap) else 0,
        num_verified=num_verified,
        num_steps=steps,
        seconds=config.budget.seconds,
        final_seconds=final.share * config.budget.seconds if num_final else 0.0,
        num_places=num_places,
        score=task.score_name,
        directions=task.directions(),
        warning=_warning(config, method, num_search, steps) if task.is_noisy else "",
    )


def sampler_updates(config: SamplerConfig, num_evaluations: int) -> tuple[int, int]:
    """Return the sampler's updates of maximum likelihood and of the objective, fewer after few evaluations."""
    share = min(num_evaluations / MIN_TRAINED_ON, 1.0)
    return math.ceil(share * config.num_updates), math.ceil(share * config.num_updates)


def _warning(config: Config, method: type[SearchMethod], num: int, num_steps: int) -> str:
    """Return a line where the budget leaves a method no choice but random architectures, otherwise empty."""
    options, start = config.search, f"search.method={config.search.method} is random search here"
    evaluations = counted(num, "evaluation")
    if method.trains_policy and num_steps < _MIN_STEPS:
        steps = f"{counted(num_steps, 'policy step')} in {evaluations}, fewer than {_MIN_STEPS}"
        return f"{start}: {steps}; search.method=surrogate learns from {options.num_initial} evaluations on"
    if method.uses_surrogate and num <= options.num_initial:
        return f"{start}: search.num_initial={options.num_initial} random candidates are all {evaluations}"
    name = _RANDOM_STARTS.get(options.method)
    num_start = getattr(options.options, name) if name else 0
    return f"{start}: its {name} of {num_start} is not filled by {evaluations}" if num_start >= num else ""
