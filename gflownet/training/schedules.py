"""Learning-rate schedules: the factor of the learning rate at each share of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass

# First and last learning rate of one_cycle, as shares of the largest one (torch.optim.lr_scheduler.OneCycleLR).
_FIRST_RATE, _LAST_RATE = 1 / 25, 1 / 250_000
_TRAPEZOID_SHARE = 0.8  # of a training before the rate of trapezoid falls (Hägele et al. 2024)


def _linear(first: float, last: float, share: float) -> float:
    return first + (last - first) * share


def _half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


def _constant(first: float, last: float, share: float) -> float:
    return first


# cosine: Loshchilov and Hutter 2017, equation 5
_CURVES = {"constant": _constant, "linear": _linear, "cosine": _half_cosine}


@dataclass(frozen=True)
class Schedule:
    """A rise during the warm-up, a constant rate, then a fall to the end; rates are shares of the largest one."""

    fall: str = "constant"  # constant, linear, cosine
    rise: str = "linear"  # linear, cosine
    warmup: float = 0.0  # share of the training in which the rate rises
    constant: float = 0.0  # share of the rest before the rate falls
    first: float = 0.0  # rate at the start of the warm-up
    last: float = 0.0  # rate at the end

    @classmethod
    def named(
        cls, name: str, *, warmup: float = 0.0, constant: float = 0.0, first: float = 0.0, last: float = 0.0
    ) -> Schedule:
        """Return constant, linear, cosine, trapezoid (constant, then linear) or one_cycle (half cosines)."""
        if name == "one_cycle":
            return cls("cosine", "cosine", warmup=warmup, first=_FIRST_RATE, last=_LAST_RATE)
        if name == "trapezoid":
            return cls("linear", warmup=warmup, constant=_TRAPEZOID_SHARE, first=first, last=last)
        return cls(name, warmup=warmup, constant=constant, first=first, last=last)

    def factor(self, done: float) -> float:
        """Return the factor of the learning rate after a share of the training; shares above 1 count as 1."""
        done = min(done, 1.0)
        if done < self.warmup:
            return _CURVES[self.rise](self.first, 1.0, done / self.warmup)
        share = (done - self.warmup) / (1 - self.warmup)
        return _CURVES[self.fall](1.0, self.last, max(0.0, (share - self.constant) / (1 - self.constant)))
