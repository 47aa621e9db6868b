"""Graphs with coloured nodes under two rewards: one that is read off the graph, and one that nothing predicts."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.canonical import ColouredGraph

_MAX_LOG_REWARD = 6.0  # of `normal`: a standard normal number is larger once in a billion


@dataclass
class ColouredGraphsRewardConfig:
    """Which reward the graphs have."""

    reward: Literal["mixed_edges", "normal"] = field(
        default="mixed_edges",
        metadata={
            "help": "mixed_edges: the share of edges between different colours; normal: an independent standard normal "
            "log-reward for every graph, so that a policy has to learn every class"
        },
    )
    reward_seed: int = field(default=0, metadata={"help": "normal: seed of the log-rewards"})


class ColouredGraphsTask(GFNTask):
    """Rewards of graphs of up to `WANTED_NODES` nodes; with beta 1 the reward is proportional to the score."""

    Config = ColouredGraphsRewardConfig
    WANTED_NODES = 6

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        self._reward, self._seed = config.task_options.reward, config.task_options.reward_seed

    def evaluate(self, graph: ColouredGraph, *, seed: int) -> Score:
        """Return the score of a graph, in (0, 1]."""
        return Score(self._normal(graph)) if self._reward == "normal" else self._mixed_edges(graph)

    def _mixed_edges(self, graph: ColouredGraph) -> Score:
        """Return (1 + mixed edges) / (1 + edges) / 2^(missing nodes)."""
        colours = graph.node_colours
        num_edges, num_nodes = len(graph.edge_colours), len(colours)
        num_mixed = sum(colours[source] != colours[target] for source, target in graph.edge_colours)
        score = (1 + num_mixed) / (1 + num_edges) * 0.5 ** max(0, self.WANTED_NODES - num_nodes)
        return Score(score, metrics={"mixed_edges": float(num_mixed)})

    def _normal(self, graph: ColouredGraph) -> float:
        """Return exp(z - 6) for a standard normal z that is drawn from the hash of the canonical form."""
        digest = hashlib.sha256(f"{self._seed}|{graph.canonical_key()}".encode()).digest()
        quantile = (int.from_bytes(digest[:7], "big") + 0.5) / 2**56
        return math.exp(min(NormalDist().inv_cdf(quantile), _MAX_LOG_REWARD) - _MAX_LOG_REWARD)
