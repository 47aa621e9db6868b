"""The posterior over Bayesian networks given linear-Gaussian data of a random network.

Deleu et al. 2022, Bayesian structure learning with generative flow networks. The marginal likelihood of a graph is the
BGe score (Geiger and Heckerman 1994) with the corrected normaliser of Kuipers, Moffa and Heckerman 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gflownet.envs.graph_building import parents_of
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.canonical import ColouredGraph
from gflownet.options import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, option

MAX_VARIABLES = 12  # one determinant for each of the 2^12 sets of variables


@dataclass
class StructureLearningConfig:
    """The random network and its data."""

    num_samples: int = option(50, "rows of the data", AT_LEAST_ONE)
    edges_per_node: float = option(1.0, "expected number of edges of the true network per variable", NOT_NEGATIVE)
    noise: float = option(1.0, "standard deviation of the noise of each variable", POSITIVE)
    data_seed: int = option(0, "seed of the true network and of the data", NOT_NEGATIVE)


@dataclass(frozen=True)
class Problem:
    """Data, their true network and their scores."""

    parents: list[list[int]]  # of each variable in the true network
    data: np.ndarray  # [num_samples, variables]
    log_marginal: np.ndarray  # [2^variables] log-likelihood of each set of variables under a complete network
    best: float  # the highest log-score of any graph

    def log_score(self, parents: list[list[int]]) -> float:
        """Return log p(data | graph), the BGe score."""
        total = 0.0
        for node, node_parents in enumerate(parents):
            family = sum(1 << parent for parent in node_parents)
            total += float(self.log_marginal[family | 1 << node] - self.log_marginal[family])
        return total


class StructureLearningTask(GFNTask):
    """Scores a graph by exp((log p(data | graph) - log p(data | best graph)) / num_samples), which lies in (0, 1].

    With beta = num_samples, score^beta is proportional to the posterior under a uniform prior over graphs. Other betas
    temper it: p(data | graph)^(beta / num_samples).
    """

    Config = StructureLearningConfig
    is_cheap = True

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        self._problems: dict[int, Problem] = {}

    def evaluate(self, graph: ColouredGraph, *, seed: int) -> Score:
        """Return the score; metrics are the log-score and the Hamming distance to the true network."""
        problem, parents = self.problem(len(graph.node_colours)), parents_of(graph)
        log_score = problem.log_score(parents)
        score = math.exp((log_score - problem.best) / len(problem.data))
        distance = float(_hamming_distance(parents, problem.parents))
        return Score(score, metrics={"log_score": log_score, "hamming_distance": distance})

    def problem(self, num_variables: int) -> Problem:
        """Return the data over a number of variables, the same for the same options.

        Raises:
            ValueError: too many variables.
        """
        if num_variables > MAX_VARIABLES:
            raise ValueError(
                f"env.labelled_dag.num_nodes: expected at most {MAX_VARIABLES} variables with this task, "
                f"got {num_variables}"
            )
        if num_variables not in self._problems:
            self._problems[num_variables] = draw_problem(num_variables, **{**self.config.task_options})
        return self._problems[num_variables]


def draw_problem(
    num_variables: int, *, num_samples: int, edges_per_node: float, noise: float, data_seed: int
) -> Problem:
    """Return a random network, data from it and their scores.

    Each pair in a random order of the variables is an edge with the same probability; x_j is the sum of w_ij x_i over
    its parents i plus normal noise, with w_ij standard normal.
    """
    rng = np.random.default_rng([data_seed, num_variables])
    order = rng.permutation(num_variables)
    probability = min(1.0, 2 * edges_per_node / max(1, num_variables - 1))
    data, parents = np.zeros((num_samples, num_variables)), [[] for _ in range(num_variables)]
    for place, node in enumerate(order):
        parents[node] = sorted(int(other) for other in order[:place] if rng.random() < probability)
        weights = rng.standard_normal(len(parents[node]))
        data[:, node] = data[:, parents[node]] @ weights + noise * rng.standard_normal(num_samples)
    log_marginal = log_marginals(data)
    return Problem(parents, data, log_marginal, best_log_score(log_marginal))


def best_log_score(log_marginal: np.ndarray) -> float:
    """Return the highest log-score of any graph, from the log-marginals [2^variables] of all sets.

    The best network of a set is the best choice of a last variable, with its best parents among the others, and the
    best network of these (Silander and Myllymaki 2006).
    """
    sets, num_variables = np.arange(len(log_marginal)), len(log_marginal).bit_length() - 1
    gains = []  # of each variable: its best family within every set
    for node in range(num_variables):
        gain = log_marginal[sets | 1 << node] - log_marginal[sets & ~(1 << node)]
        for other in range(num_variables):
            gain = np.maximum(gain, gain[sets & ~(1 << other)])
        gains.append(gain)
    best = np.zeros(len(sets))
    for number in range(1, len(sets)):
        last = [node for node in range(num_variables) if number >> node & 1]
        best[number] = max(best[number & ~(1 << node)] + gains[node][number & ~(1 << node)] for node in last)
    return float(best[-1])


def log_marginals(data: np.ndarray) -> np.ndarray:
    """Return log p(data of Y) for every set Y of variables, [2^variables]; bit j of a set's number stands for j.

    Kuipers, Moffa and Heckerman 2014, eq. 4, with alpha_mu = 1, alpha_w = n + 2, nu = 0 and T = t I.
    """
    num, n = data.shape
    weight_mean, weight_wishart = 1.0, n + 2.0
    prior = weight_mean * (weight_wishart - n - 1) / (weight_mean + 1)  # t, the diagonal of T
    mean = data.mean(0)
    centred = data - mean
    shrunk = num * weight_mean / (num + weight_mean)
    posterior = prior * np.eye(n) + centred.T @ centred + shrunk * np.outer(mean, mean)  # R
    result = np.zeros(2**n)
    for number in range(1, 2**n):
        members = [j for j in range(n) if number >> j & 1]
        size = len(members)
        before, after = weight_wishart - n + size, num + weight_wishart - n + size
        log_det = np.linalg.slogdet(posterior[np.ix_(members, members)])[1]
        result[number] = (
            size / 2 * math.log(weight_mean / (num + weight_mean))
            - size * num / 2 * math.log(math.pi)
            + _log_multigamma(after / 2, size)
            - _log_multigamma(before / 2, size)
            + before / 2 * size * math.log(prior)
            - after / 2 * log_det
        )
    return result


def _log_multigamma(a: float, size: int) -> float:
    """Return log Gamma_size(a) without its power of pi, which cancels in a quotient."""
    return sum(math.lgamma(a - i / 2) for i in range(size))


def _hamming_distance(parents: list[list[int]], others: list[list[int]]) -> int:
    """Return the number of pairs of variables that two graphs join in different ways."""
    edges, others_edges = ({(p, j) for j, of_node in enumerate(g) for p in of_node} for g in (parents, others))
    return len({frozenset(edge) for edge in edges ^ others_edges})
