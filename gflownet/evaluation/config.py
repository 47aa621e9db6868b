"""Options of evaluation and reward: training and scoring of candidates, and conditioning of trajectories."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gflownet.errors import UserError
from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Interval, option

if TYPE_CHECKING:
    from gflownet.envs.config import EnvConfig


Schedule = Literal["constant", "cosine", "one_cycle"]
OptimizerName = Literal["adam", "adamw", "sgd", "muon"]


@dataclass
class TrainingConfig:
    """Optimiser, schedule, loss and metric of a candidate's training."""

    optimizer: OptimizerName = option(
        "adam", "adam, adamw, sgd (Nesterov) or muon (matrices; AdamW for the other parameters)"
    )
    weight_decay: float = option(0.0, "of matrices and kernels, not of norms and biases", NOT_NEGATIVE)
    schedule: Schedule = option(
        "constant",
        "learning rate: constant, or rising in a fifth of the steps, then falling: cosine, one_cycle (as half cosines)",
    )
    label_smoothing: float = option(0.0, "cross-entropy: share of the target's weight", Interval(0, 1, high_open=True))
    loss: str = option(
        "auto",
        "auto (cross_entropy for classes and tokens, mse for numbers), cross_entropy, mse, mae, huber, "
        "quantile or module:callable",
    )
    metric: str = option(
        "auto",
        "validation metric: auto (accuracy, bits for tokens, r2 for numbers), accuracy, confidence, "
        "accuracy_and_confidence, balanced_accuracy, f1, auc, mean_iou, likelihood, cross_entropy, log_loss, bits, "
        "perplexity, r2, mse, rmse, mae, quantile or module:callable",
    )
    quantile: float = option(
        0.5, "of the loss and metric quantile, which predict it", Interval(0, 1, low_open=True, high_open=True)
    )
    class_weights: Literal["none", "balanced"] = option(
        "none", "of cross-entropy: balanced: every class has the same share of the loss"
    )
    augment: list[str] = option([], "random changes of training batches, some of crop, flip, noise and mixup")


Distribution = Literal["constant", "uniform", "loguniform", "gamma", "beta"]
Projection = Literal["auto", "always", "never"]
Scalarisation = Literal["weighted_sum", "weighted_log_sum", "tchebycheff"]


@dataclass
class RayConfig:
    """The Ray cluster of evaluation.executor=ray."""

    address: str = option("", "address of a running cluster, HOST:PORT or auto (this machine's); empty: RAY_ADDRESS")
    num_gpus: float = option(
        0.0, "GPUs that Ray reserves for each candidate: 0.25 for four on one, a whole number above 1", NOT_NEGATIVE
    )
    resources: Any = option({}, "other amounts that Ray reserves for each candidate, such as {CPU: 2, a100: 1}; CPU: 1")


@dataclass
class HalvingConfig:
    """Successive halving (ASHA, Li et al. 2020): stop the training of candidates that fall behind."""

    min_fidelity: int = option(0, "epochs or steps after which candidates are first compared; 0: off", NOT_NEGATIVE)
    reduction: int = option(3, "one in this many candidates is trained to the next comparison", Interval(2, 100))


@dataclass
class EvaluationConfig:
    """Training, scoring and storage of candidates."""

    executor: Literal["auto", "inline", "pool", "ray"] = option(
        "auto",
        "where candidates are evaluated: inline (in the main process), pool (processes of this machine), ray (a "
        "cluster) or auto (pool with two or more cores or a GPU, except for tasks that only look up or compute a "
        "score)",
    )
    capacity: int = option(0, "pool: number of processes; 0: one per core", NOT_NEGATIVE)
    deadline: float | None = option(
        600.0,
        "seconds per candidate after which its process is ended, 30 times the median of finished ones (at least 30) if "
        "that is less; null: none",
        POSITIVE,
    )
    device: str = option(
        "auto",
        "where candidates train: auto (the GPUs, otherwise the cores), cpu, cuda (all GPUs), cuda:0,1, or several: "
        "cpu,cuda:0; for executor pool",
    )
    slots_per_device: int = option(
        0, "processes that share a GPU; 0: as many as its memory and the cores allow", NOT_NEGATIVE
    )
    memory_limit: float | None = option(
        None,
        "gigabytes of memory per process of a pool, on Ray also reserved on the machine; null: an equal share of its "
        "memory",
        POSITIVE,
    )
    ray: RayConfig = field(default_factory=RayConfig)
    halving: HalvingConfig = field(default_factory=HalvingConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    inherit: bool = option(
        False,
        "begin the training of a candidate with weights of the nearest evaluated network, and shorten it "
        "(docs/concepts/carry-over.md)",
    )
    store_url: str = option("", "database URL of the store; empty: evaluations.sqlite in log_dir")
    memory_format: Literal["contiguous", "channels_last", "auto"] = option(
        "contiguous",
        "of images and signals in training: contiguous, channels_last or auto (channels_last for images and signals)",
    )
    precision: Literal["float32", "bfloat16"] = option(
        "float32", "of matrix products and convolutions in training: float32 or bfloat16 (mixed precision)"
    )
    num_epochs: int = option(4, "passes over the training data per candidate", POSITIVE)
    batch_size: int = option(
        64, "training examples per step of a candidate's training; 0: a 128th of them, from 16 to 256", NOT_NEGATIVE
    )
    learning_rate: float = option(0.005, "largest learning rate when a candidate is trained", POSITIVE)
    projection: Projection = option(
        "always", "edges that carry a weight matrix: always, auto (only where widths differ) or never"
    )
    split_seed: int = option(0, "seed of the split into train, validation and test data", NOT_NEGATIVE)
    floor_score: float = option(
        0.05, "score of a failed candidate, and lower bound of the scores used in rewards", POSITIVE
    )
    size_weight: float = option(
        0.0, "w of score = accuracy * (num_parameters / target_parameters)^-w; 0 ignores the size", NOT_NEGATIVE
    )
    target_parameters: int = option(
        5_000, "number of parameters with a size factor of 1 in the score, and with utility 1/2", POSITIVE
    )
    objectives: list[str] = option([], "two or more of the task's objectives to trade off; empty: the score")
    constraints: Any = option(
        {}, "largest allowed values of metrics, such as {latency: 1e-5}; candidates above get the floor score"
    )
    target_flops: int = option(10_000, "FLOPs per example with utility 1/2", POSITIVE)
    target_latency: float = option(
        0.0, "seconds per forward pass with utility 1/2; 0: the median of 16 random architectures", NOT_NEGATIVE
    )


@dataclass
class BudgetConfig:
    """Limits of the run; 0: no limit. The final stage gets its share of the first two (final.share)."""

    evaluations: int = option(0, "new evaluations of the search and trainings of the final stage", NOT_NEGATIVE)
    seconds: float = option(0.0, "seconds of the search and of the trainings of the final stage", NOT_NEGATIVE)
    parameters: int = option(0, "parameters above which a candidate is refused without building it", NOT_NEGATIVE)
    flops: int = option(0, "FLOPs per example above which a candidate is refused without building it", NOT_NEGATIVE)


@dataclass
class AsynchronousConfig:
    """Training on finished evaluations while others run."""

    max_in_flight: int = option(
        0, "candidates that are being evaluated while the policy trains; 0: each step waits for its own", NOT_NEGATIVE
    )
    updates_per_reward: float | None = option(
        None,
        "maximum number of training steps per finished evaluation; null: 1 / algo.num_from_policy",
        Interval(0, 1, low_open=True),
    )


@dataclass
class FinalConfig:
    """The final stage: the best architectures are trained again on new seeds, and their weights saved."""

    top: int = option(10, "maximum number of finalists that are trained again; 0: no final stage", NOT_NEGATIVE)
    share: float = option(
        0.25,
        "share of the trainings of the run that the final stage gets; 0: no final stage",
        Interval(0, 1, high_open=True),
    )
    num_seeds: int = option(5, "maximum number of new seeds that choose a finalist", AT_LEAST_ONE)
    epochs: int | None = option(None, "epochs or steps of these trainings; null: as in the search", AT_LEAST_ONE)
    caps: list[float] = option(
        [],
        "with two objectives, the score and a cost: caps of the cost, up to each of which finalists are chosen and "
        "compared; empty: 1/8, 1/4, 1/2 and all of the largest",
        POSITIVE,
    )
    num_random: int | None = option(
        None,
        "trainings of random architectures, searched and raced like those of the run, for comparison; null: as many as "
        "the run has, at most 100; 0: none",
        NOT_NEGATIVE,
    )
    set: int = option(5, "networks, with repetitions, whose predictions are averaged as a set; 0: no set", NOT_NEGATIVE)


@dataclass
class TemperatureConfig:
    """The inverse temperature beta of a trajectory: reward = score^beta."""

    sample_dist: Distribution = option("constant", "distribution of beta: constant, uniform, loguniform, gamma or beta")
    dist_params: list[float] = option(
        [32.0], "its parameters: [value], [low, high], [low, high], [shape, scale] or [a, b]"
    )


@dataclass
class PreferencesConfig:
    """Weights of several objectives, which sum to 1, and the score of their utilities."""

    scalarisation: Scalarisation = option(
        "weighted_sum", "score under w: weighted_sum, weighted_log_sum (product of powers) or tchebycheff"
    )
    weights: list[float] = option([], "a fixed w, scaled to sum to 1; empty: sampled uniformly", NOT_NEGATIVE)


@dataclass
class FocusConfig:
    """The cone in the space of several objectives in which a trajectory should end."""

    use: bool = option(False, "reward graphs in the cone; all others get the floor score")
    cosim: float = option(
        0.98, "cosine of the angle between the cone's axis and its surface", Interval(0, 1, True, True)
    )
    directions: list[list[float]] = option([], "axes to sample from uniformly; empty: any direction")


@dataclass
class LimitConfig:
    """The hard cap of a size that each trajectory gets, log-uniform between two ends."""

    metric: str | None = option(
        None, "size with a cap of its own in each trajectory: parameters or multiply_adds; null: no condition"
    )
    low: int | None = option(None, "smallest cap; null: that of the smallest network", AT_LEAST_ONE)
    high: int | None = option(None, "largest cap; null: the environment's own", AT_LEAST_ONE)


@dataclass
class ConditionalsConfig:
    """Conditioning of trajectories."""

    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    preferences: PreferencesConfig = field(default_factory=PreferencesConfig)
    focus: FocusConfig = field(default_factory=FocusConfig)
    limit: LimitConfig = field(default_factory=LimitConfig)


# Resources of Ray with an option.
_RAY_OPTIONS = {"GPU": "evaluation.ray.num_gpus", "memory": "evaluation.memory_limit"}
_SMALLEST_AMOUNT = 1e-4  # Ray counts resources in this unit
# ${...} and, in a URL, user:PASSWORD@ or password=PASSWORD.
_INTERPOLATION = re.compile(r"\$\{[^}]*\}")
_PASSWORD = re.compile(r"://[^/?#]*?:([^/?#]*)@|[?&]password=([^&#]*)", re.IGNORECASE)


_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")


def device_names(text: str) -> tuple[str, ...]:
    """Return the devices of evaluation.device: "cuda:0,1" is cuda:0 and cuda:1, "cuda" stands for all GPUs.

    Raises:
        ValueError: another syntax, or a device twice.
    """
    names: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        is_number = part.isdecimal() and bool(names) and names[-1].startswith("cuda:")
        names.append(f"cuda:{int(part)}" if is_number else part)
    are_valid = all(_DEVICE.fullmatch(name) for name in names) or names == ["auto"]
    has_one_twice = len(set(names)) < len(names) or ("cuda" in names and any(":" in name for name in names))
    if not are_valid or has_one_twice:
        raise ValueError(f"evaluation.device: expected auto, cpu, cuda, cuda:0,1 or cpu,cuda:0, got {text!r}")
    return tuple(names)


class TaskConfig(Protocol):
    """The part of the root config that a task may read."""

    seed: int
    task: str
    task_options: Any
    evaluation: EvaluationConfig
    cond: ConditionalsConfig
    final: FinalConfig
    env: EnvConfig


def check_evaluation(config: EvaluationConfig) -> None:
    """Raise ValueError for the first invalid combination under `evaluation`."""
    names, objectives = device_names(config.device), list(config.objectives)
    if config.executor not in ("auto", "pool") and not {*names} <= {"auto", "cpu"}:
        words = (
            "evaluation.ray.num_gpus with ray" if config.executor == "ray" else f"executor pool, got {config.executor}"
        )
        raise ValueError(f"evaluation.device={config.device}: expected {words}")
    if len(objectives) == 1 or len(set(objectives)) < len(objectives):
        raise ValueError(f"evaluation.objectives: expected none or two or more different ones, got {objectives}")
    _check_ray(config.ray)


def _check_ray(ray: RayConfig) -> None:
    """Raise ValueError for the first amount of a resource that Ray cannot reserve."""
    resources = ray.resources
    if not isinstance(resources, Mapping) or not all(_is_amount(amount) for amount in resources.values()):
        raise ValueError(
            f"evaluation.ray.resources: expected positive numbers by resource, such as {{a100: 1}}, got {resources}"
        )
    for name, key in _RAY_OPTIONS.items():
        if name in resources:
            raise ValueError(f"evaluation.ray.resources.{name}: set {key} instead")
    amounts = {f"resources.{name}": amount for name, amount in resources.items()}
    for name, amount in {"num_gpus": ray.num_gpus, **amounts}.items():
        if 0 < amount < _SMALLEST_AMOUNT:
            raise ValueError(f"evaluation.ray.{name}: expected at least {_SMALLEST_AMOUNT}, got {amount}")
    if ray.num_gpus > 1 and ray.num_gpus != int(ray.num_gpus):
        raise ValueError(f"evaluation.ray.num_gpus: expected a whole number above 1, got {ray.num_gpus}")


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**53


def check_store_url(text: str) -> None:
    """Raise UserError for a password in evaluation.store_url; it may come from the environment."""
    unresolved = _INTERPOLATION.sub("\0", text)
    passwords = [group for match in _PASSWORD.finditer(unresolved) for group in match.groups() if group]
    if any(password.strip("\0") for password in passwords):
        raise UserError(
            "evaluation.store_url: expected a password from the environment, for example "
            "postgresql://user:${oc.env:PGPASSWORD}@host/name, got one in plain text"
        )


def check_conditionals(config: ConditionalsConfig, *, num_objectives: int) -> None:
    """Raise ValueError for the first invalid value under `cond` with this number of objectives."""
    _check_temperature(config.temperature)
    if config.focus.use and not num_objectives:
        raise ValueError("cond.focus.use: expected evaluation.objectives to be set, got none")
    if config.preferences.weights:
        _check_direction("cond.preferences.weights", config.preferences.weights, num_objectives)
    for direction in config.focus.directions:
        _check_direction("cond.focus.directions", direction, num_objectives)


def _check_temperature(temperature: TemperatureConfig) -> None:
    expectation, num_params, holds = _DISTRIBUTIONS[temperature.sample_dist]
    params = list(temperature.dist_params)
    key = "cond.temperature.dist_params"
    if len(params) != num_params:
        count = {1: "one value", 2: "two values"}[num_params]
        raise ValueError(f"{key}: expected {count} for {temperature.sample_dist}, got {len(params)}")
    if not all(math.isfinite(p) for p in params) or not holds(params):
        raise ValueError(f"{key}: expected {expectation} for {temperature.sample_dist}, got {params}")


def _check_direction(key: str, numbers: Sequence[float], num_objectives: int) -> None:
    """Raise ValueError unless the numbers are a direction in the space of utilities."""
    if not num_objectives:
        raise ValueError(f"{key}: expected evaluation.objectives to be set, got none")
    if len(numbers) != num_objectives:
        raise ValueError(f"{key}: expected one value for each of {num_objectives} objectives, got {list(numbers)}")
    if not all(math.isfinite(n) and n >= 0 for n in numbers) or not sum(numbers) > 0:
        raise ValueError(f"{key}: expected numbers >= 0, one of them > 0, got {list(numbers)}")


# distribution -> expected parameters, their number, whether they are valid
_DISTRIBUTIONS: dict[str, tuple[str, int, Callable[[Sequence[float]], bool]]] = {
    "constant": ("[value >= 0]", 1, lambda p: p[0] >= 0),
    "uniform": ("[low, high] with 0 <= low < high", 2, lambda p: 0 <= p[0] < p[1]),
    "loguniform": ("[low, high] with 0 < low < high", 2, lambda p: 0 < p[0] < p[1]),
    "gamma": ("[shape, scale], both > 0", 2, lambda p: min(p) > 0),
    "beta": ("[a, b], both > 0", 2, lambda p: min(p) > 0),
}


# Options of `evaluation` that do not change scores.
NEUTRAL_OPTIONS = frozenset(
    {
        *("executor", "capacity", "device", "slots_per_device", "deadline", "memory_limit"),
        *("ray", "halving", "store_url", "target_flops", "target_latency"),
    }
)


def scoring_context(config: TaskConfig, *, source: str, data: str) -> str:
    """Return everything except the graph that a score depends on, as JSON; a store separates rows by context."""
    evaluation = {f.name: getattr(config.evaluation, f.name) for f in fields(EvaluationConfig)}
    evaluation["objectives"] = list(config.evaluation.objectives)
    # The limits are applied to measured values, of which a row has these.
    constraints = sorted(evaluation.pop("constraints"))
    evaluation |= {"constraints": constraints} if constraints else {}
    if not evaluation["inherit"]:  # rows of earlier versions, without the option, stay known
        del evaluation["inherit"]
    training = {f.name: getattr(config.evaluation.training, f.name) for f in fields(TrainingConfig)}
    training["augment"] = list(training["augment"])
    evaluation["training"] = training
    return json.dumps(
        {
            "task": config.task,
            "task_options": str(config.task_options),
            "seed": config.seed,
            "evaluation": {name: value for name, value in evaluation.items() if name not in NEUTRAL_OPTIONS},
            "source": source,
            "data": data,
        },
        sort_keys=True,
    )
