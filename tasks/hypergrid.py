"""The reward of hypergrids (Bengio et al. 2021, section 4.1): a small peak within each of the 2^D corners."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.options import NOT_NEGATIVE, option


@dataclass
class HypergridRewardConfig:
    """The three heights of the reward."""

    r0: float = option(0.1, "reward of every point", NOT_NEGATIVE)
    r1: float = option(0.5, "added reward in the corners", NOT_NEGATIVE)
    r2: float = option(2.0, "added reward on the peak in each corner", NOT_NEGATIVE)


class HypergridTask(GFNTask):
    """R(x) = R0 + R1 [0.25 < |x_d / (H - 1) - 0.5| for all d] + R2 [0.3 < |x_d / (H - 1) - 0.5| < 0.4 for all d].

    The score is R(x) / (R0 + R1 + R2), in (0, 1], so that p(x) is proportional to R(x) where beta is 1.
    """

    Config = HypergridRewardConfig
    environment = "hypergrid"
    is_cheap = True

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        options = config.task_options
        self.heights = (float(options.r0), float(options.r1), float(options.r2))
        lowest = self.heights[0] / (sum(self.heights) or 1.0)
        if not lowest >= config.evaluation.floor_score:
            raise ValueError(
                f"task_options.r0: expected r0 / (r0 + r1 + r2) >= evaluation.floor_score="
                f"{config.evaluation.floor_score:g}, got {lowest:g}"
            )

    def evaluate(self, graph: Assignment, *, seed: int) -> Score:
        """Return R(x) / (R0 + R1 + R2); the metric `peak` is 1 on a peak, else 0."""
        # 2 |x_d / (H - 1) - 0.5| as an exact number: the bounds are open, and grid points lie exactly on them.
        distances = [abs(2 * Fraction(str(coordinate)) - 1) for coordinate in graph.values]
        in_corner = all(distance > Fraction(1, 2) for distance in distances)
        on_peak = all(Fraction(3, 5) < distance < Fraction(4, 5) for distance in distances)
        base, corner, peak = self.heights
        return Score((base + corner * in_corner + peak * on_peak) / sum(self.heights), metrics={"peak": float(on_peak)})
