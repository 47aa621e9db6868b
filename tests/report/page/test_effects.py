"""Effects of features against scipy's test, and features of every kind of architecture."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gflownet.envs.tensor_program import TensorProgram
from gflownet.graphs.canonical import ColouredGraph
from gflownet.report.page import read_run
from gflownet.report.page.effects import MIN_GROUP, effects, effects_of
from gflownet.report.page.features import described
from tests.evaluation.candidates import classifier_graph
from tests.report.page.folders import assignment_of, record, write_run


def random_groups(seed: int, num: int = 200) -> tuple[list[set[str]], list[float]]:
    """Return features and scores; the feature good adds 0.3, the others nothing."""
    generator = np.random.default_rng(seed)
    names = ["good", "idle", "other", "rare"]
    shares = [0.4, 0.5, 0.2, 0.01]
    has = generator.random((num, 4)) < shares
    scores = generator.normal(100.0, 0.2, num) + 0.3 * has[:, 0]
    return [{name for name, one in zip(names, row, strict=True) if one} for row in has], scores.tolist()


def test_effects_equal_student_test():
    features, scores = random_groups(0)
    found = effects(features, scores)
    assert [effect.name for effect in found if effect.name == "rare"] == []
    assert {effect.name for effect in found} == {"good", "idle", "other"}
    for effect in found:
        has = [effect.name in present for present in features]
        inside = [score for score, one in zip(scores, has, strict=True) if one]
        outside = [score for score, one in zip(scores, has, strict=True) if not one]
        interval = stats.ttest_ind(inside, outside).confidence_interval(1 - 0.05 / 3)
        assert (effect.num_with, effect.num_without) == (len(inside), len(outside))
        assert effect.difference == pytest.approx(np.mean(inside) - np.mean(outside))
        assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high))
    assert found[0].name == "good"
    assert found[0].is_clear


def skewed_groups(seed: int, *, num: int = 200) -> tuple[list[set[str]], list[float]]:
    """Return 20 rare features without effect; a tenth of the scores are far below the others."""
    generator = np.random.default_rng(seed)
    is_low = generator.random(num) < 0.1
    scores = generator.normal(np.where(is_low, 0.1, 0.9), 0.02)
    has = generator.random((num, 20)) < 0.04
    return [{str(each) for each in np.flatnonzero(row)} for row in has], scores.tolist()


def test_skewed_scores_without_effects_have_clear_ones_on_few_pages():
    """Welch's intervals are wrong on every such page."""
    pages = [effects(*skewed_groups(seed)) for seed in range(60)]
    assert all(len(page) > 5 for page in pages)
    assert sum(any(effect.is_clear for effect in page) for page in pages) <= 0.3 * 60


def test_strong_effect_is_clear_among_skewed_scores():
    features, scores = skewed_groups(0)
    features = [{*present, "good"} if i % 3 == 0 else present for i, present in enumerate(features)]
    scores = [score + 0.5 * (i % 3 == 0) for i, score in enumerate(scores)]
    assert [effect.name for effect in effects(features, scores) if effect.is_clear] == ["good"]


def test_equal_scores_and_small_groups_have_no_effects():
    features = [{"a"} if i % 2 else set() for i in range(40)]
    assert effects(features, [0.1 + 0.2] * 40) == []
    assert effects([{"a"}] * (MIN_GROUP - 1) + [set()] * 40, list(range(MIN_GROUP + 39))) == []
    assert effects([], []) == []


def test_one_score_in_each_group_has_an_interval_of_no_width():
    (effect,) = effects([{"a"}] * 6 + [set()] * 6, [1.0] * 6 + [0.5] * 6)
    assert (effect.difference, effect.low, effect.high) == (0.5, 0.5, 0.5)
    assert effect.is_clear


def test_effects_of_run_leave_out_failures_and_new_seeds(tmp_path):
    graphs = [assignment_of(kernel="a" if i % 2 else "b") for i in range(20)]
    records = [record(i, 1.0 + i / 100 if i % 2 else 0.5 + i / 100, graph) for i, graph in enumerate(graphs)]
    records += [record(20 + i, None, assignment_of(kernel="b")) for i in range(10)]
    records += [record(30 + i, 9.0, assignment_of(kernel="b"), seed=1) for i in range(10)]
    found = {effect.name: effect for effect in effects_of(read_run(write_run(tmp_path, records)))}
    assert found["kernel = a"].difference == pytest.approx(0.51)
    assert (found["kernel = a"].num_with, found["kernel = a"].num_without) == (10, 10)


def test_features_of_network_are_those_of_hidden_nodes():
    graph = classifier_graph((4, "relu"), (8, "tanh")).to_dict()
    names = described(graph).features
    assert {"activation relu", "activation tanh", "width 4", "width 8", "input → relu", "relu → tanh"} <= names
    assert not any("linear" in name and "activation" in name for name in names)
    assert (described(graph).num_nodes, described(graph).num_edges) == (2, 3)
    assert described(assignment_of(kernel=3)).num_nodes == 0, "choices have no hidden nodes"


def test_features_of_operations_have_their_settings():
    node = {"id": 2, "node_type": "hidden", "operation": {"name": "conv2d", "features": 8}, "aggregation": "sum"}
    ends = [{"id": 0, "node_type": "input"}, {"id": 1, "node_type": "output", "operation": {"name": "head"}}]
    edges = [{"source": 0, "target": 2}, {"source": 2, "target": 1}]
    names = described({"nodes": [*ends, node], "edges": edges}).features
    assert names == {"conv2d", "conv2d: features 8", "aggregation sum", "input → conv2d", "conv2d → output"}


def test_features_of_cells_are_operations_and_places():
    graph = assignment_of(**{"1<-0": "skip", "2<-0": "conv", "2<-1": "skip"})
    assert described(graph).features == {"1<-0 = skip", "2<-0 = conv", "2<-1 = skip", "skip", "conv"}
    assert described(assignment_of(bias=True, depth=3)).features == {"bias = true", "depth = 3"}


def test_features_of_coloured_graph_ignore_the_direction_of_undirected_edges():
    first = ColouredGraph(("red|", "blue|"), {(0, 1): "edge||0"}, directed=False)
    second = ColouredGraph(("blue|", "red|"), {(0, 1): "edge||0"}, directed=False)
    assert described(first.to_dict()) == described(second.to_dict())
    assert described(ColouredGraph(("a", "b"), {(0, 1): "e"}).to_dict()) != described(
        ColouredGraph(("b", "a"), {(0, 1): "e"}).to_dict()
    )


def test_features_of_program_are_its_operations():
    graph = ColouredGraph(("A|", "A.0:4|", "*|relu", "keep|"), {(0, 1): "edge||0", (0, 2): "edge||0"})
    data = {**TensorProgram(graph).graph.to_dict(), "graph": {"program": "t = A * A"}}
    assert described(data).features >= {"A", "* relu", "A → * relu"}
    assert not any(":" in text for text in described(data).features)


@pytest.mark.parametrize("data", [{}, {"nodes": 3}, {"nodes": [{}], "edges": []}, {"nodes": [1], "edges": [2]}])
def test_damaged_graphs_have_no_features(data):
    assert described(data).features == set()
