"""Networks with independent random rewards: how exactly a policy learns every class of a search space."""

from __future__ import annotations

from dataclasses import dataclass

from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.canonical import Candidate
from gflownet.operations.tensor_shape import Shape
from gflownet.options import AT_LEAST_ONE, option

from .coloured_graphs import normal_score


@dataclass
class RandomRewardsConfig:
    """The shapes of a network that is never built, and its reward."""

    input_shape: list[int] = option([3, 8, 8], "shape of the input: an image, a sequence or a vector", AT_LEAST_ONE)
    num_outputs: int = option(5, "features of the output", AT_LEAST_ONE)
    reward_seed: int = option(0, "seed of the log-rewards")


class RandomRewardsTask(GFNTask):
    """An independent standard normal log-reward for every class of networks, without any training."""

    Config = RandomRewardsConfig
    is_cheap = True

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        options = config.task_options
        self._seed = options.reward_seed
        self.input_sizes = (Shape.of(tuple(options.input_shape)),)
        self.output_sizes = (options.num_outputs,)

    def evaluate(self, graph: Candidate, *, seed: int) -> Score:
        """Return the score of a network, in (0, 1]."""
        return Score(normal_score(graph, self._seed))
