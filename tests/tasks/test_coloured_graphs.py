"""The reward of coloured graphs, by hand."""

import numpy as np
import pytest
from scipy.stats import kstest

from gflownet.certificate.exact import enumerate_states
from gflownet.config import load_config, with_task_options
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.graphs.canonical import ColouredGraph
from tasks.coloured_graphs import ColouredGraphsTask


@pytest.mark.parametrize(
    ("colours", "edges", "score"),
    [
        ("r", [], 0.5**5),
        ("rb", [(0, 1)], 0.5**4),
        ("rr", [(0, 1)], 0.5**4 * 1 / 2),
        ("rbrbrb", [(i, i + 1) for i in range(5)], 1.0),
        ("rrbbrb", [(i, i + 1) for i in range(5)], 4 / 6),
    ],
)
def test_scores_by_hand(colours, edges, score):
    graph = ColouredGraph(tuple(colours), dict.fromkeys(edges, "edge"), directed=False)
    assert task_of().evaluate(graph, seed=0).value == pytest.approx(score)


def task_of(*overrides: str) -> ColouredGraphsTask:
    return ColouredGraphsTask(with_task_options(load_config("coloured_graphs", overrides), ColouredGraphsTask.Config))


def test_normal_rewards_are_standard_normal_and_belong_to_the_class():
    """All 419 classes: mean, variance and tails of the log-rewards, one value per isomorphism class and seed."""
    env = GraphBuildingEnv(["red", "blue"], max_nodes=5)
    graph = enumerate_states(env)
    graphs = [env.terminal(graph.states, i) for i in graph.terminal.tolist()]
    task = task_of("task_options.reward=normal")
    log_rewards = np.log([task.evaluate(g, seed=0).value for g in graphs]) + 6
    assert abs(log_rewards.mean()) < 0.15
    assert abs(log_rewards.std() - 1) < 0.1
    assert kstest(log_rewards, "norm").pvalue > 0.01
    assert len(set(log_rewards)) == 419
    renamed = ColouredGraph(("blue|", "red|"), {(0, 1): "edge||0"}, directed=False)
    swapped = ColouredGraph(("red|", "blue|"), {(0, 1): "edge||0"}, directed=False)
    assert task.evaluate(renamed, seed=0) == task.evaluate(swapped, seed=1)
    other = task_of("task_options.reward=normal", "task_options.reward_seed=1")
    assert abs(np.corrcoef(log_rewards, np.log([other.evaluate(g, seed=0).value for g in graphs]))[0, 1]) < 0.2
