"""Settings within hard caps on parameters and multiply-adds, by a cost function of the user's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from gflownet.envs.choice_places import Places, Setting
from gflownet.envs.config import ChoicesConfig
from gflownet.errors import UserError
from gflownet.plugins import load_function

MAX_SETTINGS = 100_000
_SECONDS_BETWEEN_LINES = 10.0
_log = logging.getLogger(__name__)

# Complete setting -> (parameters, multiply-adds).
CostFunction = Callable[[dict[str, Any]], tuple[int, int]]


@dataclass(frozen=True)
class CappedSettings:
    """The complete settings whose cost is within the caps."""

    settings: tuple[Setting, ...]

    @classmethod
    def of(cls, places: Places, config: ChoicesConfig) -> Self:
        """Return the settings within the caps of a config; every setting's cost is computed once.

        Raises:
            UserError: too many settings, a cost function that fails, or no setting within the caps.
        """
        num_settings = places.num_settings()
        if num_settings > MAX_SETTINGS:
            raise UserError(
                f"env.choices.cost: expected at most {MAX_SETTINGS:,} settings, whose costs are computed one by one, "
                f"got {num_settings:,}"
            )
        cost: CostFunction = load_function("env.choices.cost", config.cost)
        costs, started = [], time.monotonic()
        for setting in places.settings():
            costs.append((setting, _cost_of(cost, config.cost, setting)))
            if time.monotonic() - started > _SECONDS_BETWEEN_LINES:
                started = time.monotonic()
                _log.info("costs of %d of %d settings", len(costs), num_settings)
        caps = (config.max_parameters, config.max_multiply_adds)
        within = tuple(s for s, c in costs if all(cap is None or x <= cap for x, cap in zip(c, caps, strict=True)))
        if not within:
            smallest = " and ".join(f"{min(c[i] for _, c in costs):,}" for i in range(2))
            raise UserError(
                f"env.choices: expected a setting within max_parameters={caps[0]} and max_multiply_adds={caps[1]}, "
                f"got none; the smallest have {smallest}"
            )
        return cls(within)


def _cost_of(cost: CostFunction, name: str, setting: Mapping[str, Any]) -> tuple[int, int]:
    """Return the parameters and multiply-adds of a setting. Raises UserError where the function fails."""
    try:
        result: Any = cost(dict(setting))
        parameters, multiply_adds = result
        return int(parameters), int(multiply_adds)
    except Exception as error:  # raised by the user's function
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"env.choices.cost: expected {name} to return (parameters, multiply-adds) of {dict(setting)}, got {reason}"
        ) from error
