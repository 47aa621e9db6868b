"""Coloured graphs with two rewards: the share of mixed edges, or independent random numbers."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.canonical import Candidate, ColouredGraph
from gflownet.options import option

_MAX_LOG_REWARD = 6.0  # reward=normal: a standard normal number exceeds it with probability 1e-9


@dataclass
class ColouredGraphsRewardConfig:
    """The reward of a graph."""

    reward: Literal["mixed_edges", "normal"] = option(
        "mixed_edges",
        "mixed_edges: the share of edges between different colours; normal: an independent standard normal "
        "log-reward for every graph, so that a policy has to learn every class",
    )
    reward_seed: int = option(0, "normal: seed of the log-rewards")


class ColouredGraphsTask(GFNTask):
    """Rewards of graphs of up to `WANTED_NODES` nodes; with beta 1 the reward is proportional to the score."""

    Config = ColouredGraphsRewardConfig
    is_cheap = True
    WANTED_NODES = 6

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        self._reward, self._seed = config.task_options.reward, config.task_options.reward_seed

    def evaluate(self, graph: ColouredGraph, *, seed: int) -> Score:
        """Return the score of a graph, in (0, 1]."""
        return Score(normal_score(graph, self._seed)) if self._reward == "normal" else self._mixed_edges(graph)

    def _mixed_edges(self, graph: ColouredGraph) -> Score:
        """Return (1 + mixed edges) / (1 + edges) / 2^(missing nodes)."""
        colours = graph.node_colours
        num_edges, num_nodes = len(graph.edge_colours), len(colours)
        num_mixed = sum(colours[source] != colours[target] for source, target in graph.edge_colours)
        score = (1 + num_mixed) / (1 + num_edges) * 0.5 ** max(0, self.WANTED_NODES - num_nodes)
        return Score(score, metrics={"mixed_edges": float(num_mixed)})


def normal_score(candidate: Candidate, seed: int) -> float:
    """Return exp(z - 6) for a standard normal z derived from the hash of the canonical form."""
    digest = hashlib.sha256(f"{seed}|{candidate.canonical_key()}".encode()).digest()
    quantile = (int.from_bytes(digest[:7], "big") + 0.5) / 2**56
    return math.exp(min(NormalDist().inv_cdf(quantile), _MAX_LOG_REWARD) - _MAX_LOG_REWARD)
