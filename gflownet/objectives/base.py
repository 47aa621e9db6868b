"""The contract of an objective, the loss whose minimum samples in proportion to the reward, and regression losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gflownet.errors import UserError
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.policy import Policy, PolicyFunction
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import BACKWARD_NAMES, REGRESSIONS, SYMMETRY_NAMES, AlgoConfig
from gflownet.objectives.steps import StepReader
from gflownet.plugins import Configurable


@dataclass(frozen=True)
class Loss:
    """A loss to differentiate, and the metrics to log with it."""

    value: Tensor  # scalar
    metrics: Mapping[str, float]


class Objective(nn.Module, Configurable, ABC):
    """A loss over trajectories, with the parameters trained in addition to the policy (such as log Z).

    The class attributes are the whole specification: the checks of a config read them, for built-in objectives and for
    `algo.method=module:Class` alike.
    """

    needs_state_rewards: ClassVar[bool] = False  # score intermediate states, too, where they may stop
    uses_regression: ClassVar[bool] = False  # penalises an imbalance by `self.regression`
    supports_teacher: ClassVar[bool] = False  # trajectories have an imbalance that the adaptive teacher can look for
    is_on_policy: ClassVar[bool] = False  # learns only from samples of the policy itself
    samples_reward: ClassVar[bool] = True  # zero loss means p(x) ~ R(x), or R(x) p0(x) with `prior_policy`
    compares: ClassVar[bool] = False  # trajectories with equal conditioning
    imitates: ClassVar[bool] = False  # learns only from replayed or offline graphs
    backward_policies: ClassVar[tuple[str, ...]] = BACKWARD_NAMES  # accepted values of algo.backward_policy
    symmetries: ClassVar[tuple[str, ...]] = SYMMETRY_NAMES  # accepted values of algo.symmetry
    num_epochs: int = 1  # optimiser steps per batch of trajectories

    def __init__(self, context: GraphBuildingEnvContext | None = None, config: AlgoConfig | None = None) -> None:
        """Read the options. A subclass's own __init__ has the same arguments and calls this one first.

        Args:
            context: the context of the policy, kept as `self.context`.
            config: the options under `algo`; `self.reader` reads log P_F and log P_B of trajectories as they ask, and
                `self.regression` is the loss of an imbalance.
        """
        super().__init__()
        if context is not None and config is not None:  # a subclass may also build these itself
            self.context = context
            self.reader = StepReader(context, config)
            self.regression = make_regression(config.regression)

    @classmethod
    def build(
        cls, context: GraphBuildingEnvContext, config: AlgoConfig, *, load_policy: Callable[[str, str], Policy]
    ) -> Self:
        """Return the objective of a run; overridden by objectives that need a second policy.

        Args:
            context: the context of the policy.
            config: the options under `algo`.
            load_policy: (folder, option) -> the policy of the finished run in that folder. Raises UserError with the
                name of the option.
        """
        return cls(context, config)

    @abstractmethod
    def loss(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> Loss:
        """Return the mean loss of a batch of trajectories with known rewards."""

    def parameter_groups(self) -> list[dict]:
        """Return optimiser groups of the objective's own parameters, with their learning rates (default: none)."""
        return []

    def prepare(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> None:
        """Initialise the objective's own parameters from a first batch (default: do nothing)."""

    def annotated(self, policy: PolicyFunction, trajectories: TrajectoryBatch) -> TrajectoryBatch:
        """Return a new batch with the values of the present policy that later epochs need (default: unchanged)."""
        return trajectories

    def log_partition(self, policy: PolicyFunction, conditioning: Tensor, limit: Tensor | None = None) -> Tensor | None:
        """Return the learned log Z of each conditioning [B, C], [B]; None if the objective learns none.

        `limit`: caps of the trajectories [B, K], None: the environment's own.
        """
        return None

    def prior_policy(self, policy: PolicyFunction) -> PolicyFunction | None:
        """Return the prior p0 of an objective with the target R(x) p0(x); None if the target is R(x).

        Args:
            policy: the trained policy, for priors that only need its legal actions.
        """
        return None

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Check the options that the class attributes restrict.

        Raises:
            UserError: an option that this objective would ignore or cannot use.
        """
        algo, method = config.algo, f"with algo.method={config.algo.method}"
        if algo.backward_policy not in cls.backward_policies:
            raise UserError(
                f"algo.backward_policy: expected one of {', '.join(cls.backward_policies)} {method}, "
                f"got {algo.backward_policy}"
            )
        if algo.symmetry not in cls.symmetries:
            raise UserError(f"algo.symmetry: expected one of {', '.join(cls.symmetries)} {method}, got {algo.symmetry}")
        if algo.regression != "squared" and not cls.uses_regression:
            raise UserError(
                f"algo.regression: expected squared {method}, which has no regression loss, got {algo.regression}"
            )
        if algo.teacher.share and not cls.supports_teacher:
            raise UserError(
                f"algo.teacher.share: expected 0 {method}, which supports no teacher, got {algo.teacher.share}"
            )
        if cls.needs_state_rewards and config.asynchronous.max_in_flight:
            raise UserError(
                f"asynchronous.max_in_flight: expected 0 {method}, which scores intermediate states, "
                f"got {config.asynchronous.max_in_flight}"
            )
        if cls.is_on_policy:
            _check_on_policy(config, method)
        if cls.imitates:
            _check_imitation(config, method)


def _check_on_policy(config: Any, method: str) -> None:
    """Raise for options that produce samples of other policies."""
    algo = config.algo
    for key, value, expected in (
        ("algo.sampling_temperature", algo.sampling_temperature, 1),
        ("algo.sampling_tau", algo.sampling_tau, 0),
        ("algo.num_updates", algo.num_updates, 1),
        ("replay.num_updates", config.replay.num_updates, 0),
        ("replay.num_batches", config.replay.num_batches, 0),
        ("offline.path", config.offline.path, ""),
        ("local_search.num", config.local_search.num, 0),
        ("asynchronous.max_in_flight", config.asynchronous.max_in_flight, 0),
    ):
        if value != expected:
            raise UserError(f"{key}: expected {expected!r} {method}, which learns on-policy only, got {value!r}")


def _check_imitation(config: Any, method: str) -> None:
    """Raise if there is nothing to imitate, or if rejected candidates would be imitated."""
    replay, offline = config.replay, config.offline
    for key, value in (("local_search.num", config.local_search.num), ("replay.num_batches", replay.num_batches)):
        if value:
            raise UserError(f"{key}: expected 0 {method}, which would imitate rejected candidates, got {value}")
    if not (replay.use and replay.num_from_replay) and not (offline.path and offline.num):
        raise UserError(
            f"replay.use: expected true, or offline.path, {method}, which learns from replayed or offline graphs, "
            f"got replay.use={str(replay.use).lower()} with replay.num_from_replay={replay.num_from_replay}, and "
            f"offline.path={offline.path!r} with offline.num={offline.num}"
        )


HUBER_DELTA = 1.0  # Huber 1964: quadratic up to here, then linear
STEEPEST = 5.0  # exponentials continue as tangents beyond this t: early imbalances would overflow


class Regression(ABC):
    """An elementwise loss of an imbalance t = log (forward / backward), differentiable, >= 0, and 0 at 0.

    Squared: Malkin et al. 2022. Half, linex and shifted cosh: Hu et al. 2025 (Beyond squared error: exploring loss
    design, table 2), whose t has the opposite sign. Linex penalises trajectories with too low probability
    exponentially, as KL(p_B || p_F) does, and has its gradient on the policy's own samples; shifted cosh penalises both
    signs exponentially.
    """

    @abstractmethod
    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return the loss of every entry, in the same shape."""


class Squared(Regression):
    """t^2."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return t^2."""
        return imbalance.square()


class Half(Regression):
    """t^2 / 2."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return t^2 / 2."""
        return imbalance.square() / 2


class Huber(Regression):
    """t^2 / 2 where |t| <= delta, delta (|t| - delta / 2) beyond."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return the Huber loss with delta 1."""
        zero = torch.zeros_like(imbalance)
        return torch.nn.functional.huber_loss(imbalance, zero, reduction="none", delta=HUBER_DELTA)


class ShiftedCosh(Regression):
    """e^t + e^-t - 2."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return e^t + e^-t - 2."""
        return _exp(imbalance) + _exp(-imbalance) - 2


class Linex(Regression):
    """e^-t + t - 1."""

    def __call__(self, imbalance: Tensor) -> Tensor:
        """Return e^-t + t - 1."""
        return _exp(-imbalance) + imbalance - 1


def make_regression(name: str) -> Regression:
    """Return the regression loss of a built-in name or module:Class.

    Raises:
        ValueError: as `load_class`; or it raises, or its values at -1, 0 and 1 are not finite, >= 0 and 0 at 0.
    """
    regression_class = REGRESSIONS.load(name)
    try:
        regression: Regression = regression_class()
        values = torch.as_tensor(regression(torch.tensor([-1.0, 0.0, 1.0])))
    except Exception as error:  # raised by the user's own class
        raise UserError(f"{REGRESSIONS.key}: calling {name} failed: {type(error).__name__}: {error}") from error
    is_loss = values.shape == (3,) and bool(values.isfinite().all() and (values >= 0).all()) and not values[1]
    if not is_loss:
        expected = "losses >= 0 of the imbalances -1, 0, 1, and 0 at 0"
        got = [float(f"{value:.4g}") for value in values.flatten().tolist()]
        raise UserError(f"{REGRESSIONS.key}: expected {name} to return {expected}, got {got}")
    return regression


def _exp(t: Tensor) -> Tensor:
    """Return e^t, beyond STEEPEST the tangent there."""
    bounded = t.clamp(max=STEEPEST)
    return bounded.exp() * (1 + t - bounded)
