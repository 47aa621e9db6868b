"""Acquisition functions: the logarithm of the value of evaluating a candidate, from its predicted score or objectives.

With several objectives, predicted independently, it is the expected hypervolume improvement. The region above the
reference point that no observation dominates is cut into boxes along the coordinates of the Pareto front. A candidate's
improvement is the sum of the volumes that it covers of each box, and its expectation a sum of products over the
objectives (Yang et al. 2019, "Efficient computation of expected hypervolume improvement using box decomposition
algorithms", section 3). All objectives are maximised.

Letters: B candidates, K objectives, n points of the front, M boxes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gflownet.evaluation.statistics import non_dominated
from gflownet.search.surrogate import Prediction

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_LOG_SQRT_HALF_PI = 0.5 * math.log(math.pi / 2)
# Below it, 1 + z Phi(z) / phi(z) cancels in float64 and its asymptotic series is used (Ament et al. 2023, appendix A).
_ASYMPTOTIC = -1e3


def log_improvement(prediction: Prediction, best: float) -> Tensor:
    """Return log E[max(score - best, 0)] [B] float64 (Jones et al. 1998; Ament et al. 2023 for the logarithm)."""
    return log_standard_improvement((prediction.mean - best) / prediction.std) + prediction.std.log()


def log_standard_improvement(z: Tensor) -> Tensor:
    """Return log(phi(z) + z Phi(z)) for z [B] float64, without underflow for z of any size."""
    z = z.double()
    upper = z.clamp(min=-1.0)
    direct = (torch.exp(-upper.square() / 2 - _LOG_SQRT_2PI) + upper * torch.special.ndtr(upper)).log()
    # phi(z) + z Phi(z) = phi(z) (1 - |z| Phi(z) / phi(z)), whose ratio is sqrt(pi / 2) erfcx(|z| / sqrt(2)).
    lower = z.clamp(min=_ASYMPTOTIC, max=-1.0)
    log_ratio = torch.special.erfcx(-lower / math.sqrt(2)).log() + _LOG_SQRT_HALF_PI + (-lower).log()
    scaled = (-torch.expm1(log_ratio)).log()
    far = z.clamp(max=_ASYMPTOTIC)
    scaled = torch.where(z < _ASYMPTOTIC, -2 * (-far).log() + torch.log1p(-3 / far.square()), scaled)
    return torch.where(z > -1, direct, scaled - z.square() / 2 - _LOG_SQRT_2PI)


# More boxes than this take the front of fewer, well spread points; three objectives have at most n^2 boxes.
_MAX_BOXES = 4_096
_MAX_ENTRIES = 2**22  # of one array at a time, to bound memory


@dataclass(frozen=True)
class Boxes:
    """Disjoint boxes that fill the region above a reference point and not below a front."""

    lower: Tensor  # [M, K]
    upper: Tensor  # [M, K], inf where a box has no end

    def __len__(self) -> int:
        """Return M."""
        return len(self.lower)


def log_expected_improvement(mean: Tensor, std: Tensor, boxes: Boxes) -> Tensor:
    """Return log E[volume of the boxes below a candidate], [B] float64, without underflow.

    Args:
        mean: [B, K] of independent normal distributions.
        std: [B, K], positive.
        boxes: of `boxes_above`.
    """
    mean, std = mean.double(), std.double()
    size = max(1, _MAX_ENTRIES // max(1, len(mean)))
    total = torch.full((len(mean),), -math.inf, dtype=torch.float64)
    for lower, upper in zip(boxes.lower.split(size), boxes.upper.split(size), strict=True):
        volume = torch.zeros(len(mean), len(lower), dtype=torch.float64)
        for k in range(mean.shape[1]):
            above_lower = _log_excess(mean[:, k], std[:, k], lower[:, k])
            above_upper = _log_excess(mean[:, k], std[:, k], upper[:, k])
            # log E[min(y, upper) - lower, where positive]; rounding can make the upper one larger.
            ratio = (above_upper - above_lower).clamp(max=-torch.finfo(torch.float64).eps)
            volume += above_lower + torch.log(-torch.expm1(ratio))
        total = torch.logaddexp(total, volume.logsumexp(1))
    return total


def boxes_above(points: Tensor, reference: Tensor) -> Boxes:
    """Return the boxes above the Pareto front of points [n, K] and a reference point [K].

    Points that are not above the reference in every objective are left out. A front with too many boxes is thinned.
    """
    front = pareto_front(points, reference)
    boxes = _decomposed(front, reference)
    while len(boxes) > _MAX_BOXES:
        front = _spread(front, len(front) // 2)
        boxes = _decomposed(front, reference)
    return boxes


def pareto_front(points: Tensor, reference: Tensor) -> Tensor:
    """Return the distinct points that no other one dominates, and that are above the reference, [n, K] float64."""
    points = points.double()[(points.double() > reference).all(1)]
    if not len(points):
        return points
    return points[torch.from_numpy(non_dominated(points.numpy()))].unique(dim=0)


def _log_excess(mean: Tensor, std: Tensor, bound: Tensor) -> Tensor:
    """Return log E[max(y - bound, 0)] for means and deviations [B] and bounds [M], [B, M]."""
    is_finite = bound.isfinite()
    standard = (mean[:, None] - bound.masked_fill(~is_finite, 0.0)) / std[:, None]
    value = log_standard_improvement(standard) + std.log()[:, None]
    return value.masked_fill(~is_finite, -math.inf)


def _decomposed(front: Tensor, reference: Tensor) -> Boxes:
    rows = [*_region(front.numpy(), reference.double().numpy())]
    lower, upper = (
        torch.from_numpy(np.array(side)).reshape(len(rows), len(reference)) for side in zip(*rows, strict=True)
    )
    return Boxes(lower, upper)


def _region(front: np.ndarray, reference: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the boxes (lower [K], upper [K]) of the region above the reference that no point [n, K] dominates.

    Slabs along the last objective: in each one the points that reach above it count, in the other objectives.
    """
    if front.shape[1] == 1:
        return [(np.maximum(reference, front.max(0, initial=-math.inf)), np.array([math.inf]))]
    levels = np.array([reference[-1], *np.unique(front[:, -1]), math.inf])
    boxes = []
    for low, high in pairwise(levels):
        reaching = front[front[:, -1] >= high, :-1]
        reaching = reaching[non_dominated(reaching)] if len(reaching) else reaching
        for lower, upper in _region(reaching, reference[:-1]):
            boxes.append((np.append(lower, low), np.append(upper, high)))
    return boxes


def _spread(front: Tensor, num: int) -> Tensor:
    """Return `num` points far from one another: those with the largest values first, then the farthest from all."""
    scale = front.max(0).values - front.min(0).values
    scaled = front / torch.where(scale > 0, scale, 1.0)
    chosen = [*dict.fromkeys(front.argmax(0).tolist())][:num]
    distance = torch.cdist(scaled, scaled[chosen]).min(1).values
    while len(chosen) < num:
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (scaled - scaled[chosen[-1]]).norm(dim=1))
    return front[torch.tensor(sorted(chosen))]
