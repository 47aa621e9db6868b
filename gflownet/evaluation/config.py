"""Options of the reward: how a candidate is trained and scored, and how sharply scores become rewards."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

Distribution = Literal["constant", "uniform", "loguniform", "gamma", "beta"]
Projection = Literal["auto", "always", "never"]


@dataclass
class EvaluationConfig:
    """How a candidate becomes a score, and where scores are kept."""

    backend: Literal["inline"] = field(
        default="inline", metadata={"help": "where candidates are evaluated: inline, in the main process"}
    )
    store_url: str = field(
        default="", metadata={"help": "database URL of the store; empty: evaluations.sqlite in log_dir"}
    )
    num_epochs: int = field(default=4, metadata={"help": "passes over the training data per candidate"})
    batch_size: int = field(default=64, metadata={"help": "training examples per step of a candidate's training"})
    learning_rate: float = field(default=0.005, metadata={"help": "Adam's learning rate when a candidate is trained"})
    projection: Projection = field(
        default="always",
        metadata={"help": "edges that carry a weight matrix: always, auto (only where widths differ) or never"},
    )
    split_seed: int = field(default=0, metadata={"help": "seed of the split into train, validation and test data"})
    floor_score: float = field(
        default=0.05, metadata={"help": "score of a failed candidate, and the lowest score that a reward can see"}
    )
    size_weight: float = field(
        default=0.0,
        metadata={"help": "w of score = accuracy * (num_parameters / target_parameters)^-w; 0 ignores the size"},
    )
    target_parameters: int = field(
        default=5_000, metadata={"help": "parameters at which the size leaves a score as is"}
    )


@dataclass
class TemperatureConfig:
    """The inverse temperature beta of a trajectory: reward = score^beta."""

    sample_dist: Distribution = field(
        default="constant", metadata={"help": "distribution of beta: constant, uniform, loguniform, gamma or beta"}
    )
    dist_params: list[float] = field(
        default_factory=lambda: [32.0],
        metadata={"help": "its parameters: [value], [low, high], [low, high], [shape, scale] or [a, b]"},
    )
    num_thermometer_dim: int = field(
        default=8, metadata={"help": "width of the thermometer encoding of beta that the policy sees"}
    )


@dataclass
class ConditionalsConfig:
    """What a trajectory is conditioned on."""

    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)


class TaskConfig(Protocol):
    """The part of the root config that a task may read."""

    @property
    def seed(self) -> int: ...
    @property
    def task(self) -> str: ...
    @property
    def task_options(self) -> Any: ...
    @property
    def evaluation(self) -> EvaluationConfig: ...
    @property
    def cond(self) -> ConditionalsConfig: ...


def check_evaluation(config: EvaluationConfig) -> None:
    """Raises ValueError naming the first key under `evaluation` whose value makes no sense."""
    positive = ("num_epochs", "batch_size", "learning_rate", "floor_score", "target_parameters")
    for name in positive:
        value = getattr(config, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"evaluation.{name}: expected a number > 0, got {value}")
    for name in ("size_weight", "split_seed"):
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"evaluation.{name}: expected a number >= 0, got {value}")


def check_conditionals(config: ConditionalsConfig) -> None:
    """Raises ValueError naming the first key under `cond` whose value makes no sense."""
    temperature = config.temperature
    expectation, num_params, holds = _DISTRIBUTIONS[temperature.sample_dist]
    params = list(temperature.dist_params)
    key = "cond.temperature.dist_params"
    if len(params) != num_params:
        count = {1: "one value", 2: "two values"}[num_params]
        raise ValueError(f"{key}: expected {count} for {temperature.sample_dist}, got {len(params)}")
    if not all(math.isfinite(p) for p in params) or not holds(params):
        raise ValueError(f"{key}: expected {expectation} for {temperature.sample_dist}, got {params}")
    if temperature.num_thermometer_dim < 1:
        raise ValueError(f"cond.temperature.num_thermometer_dim: expected >= 1, got {temperature.num_thermometer_dim}")


# What the parameters of each distribution are, how many, and when they are legal.
_DISTRIBUTIONS: dict[str, tuple[str, int, Callable[[Sequence[float]], bool]]] = {
    "constant": ("[value >= 0]", 1, lambda p: p[0] >= 0),
    "uniform": ("[low, high] with 0 <= low < high", 2, lambda p: 0 <= p[0] < p[1]),
    "loguniform": ("[low, high] with 0 < low < high", 2, lambda p: 0 < p[0] < p[1]),
    "gamma": ("[shape, scale], both > 0", 2, lambda p: min(p) > 0),
    "beta": ("[a, b], both > 0", 2, lambda p: min(p) > 0),
}


# Options of `evaluation` that decide where a score is computed or kept, not what it is.
_NEUTRAL_OPTIONS = frozenset({"backend", "store_url"})


def scoring_context(config: TaskConfig) -> str:
    """Returns everything besides the graph that a score depends on, as JSON: the store keeps contexts apart."""
    evaluation = {f.name: getattr(config.evaluation, f.name) for f in fields(EvaluationConfig)}
    return json.dumps(
        {
            "task": config.task,
            "task_options": str(config.task_options),
            "seed": config.seed,
            "evaluation": {name: value for name, value in evaluation.items() if name not in _NEUTRAL_OPTIONS},
        },
        sort_keys=True,
    )
