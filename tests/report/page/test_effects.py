"""Effects of features against scipy's Welch test, and features of every kind of architecture."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from gflownet.envs.tensor_program import TensorProgram
from gflownet.graphs.canonical import ColouredGraph
from gflownet.report.page import read_run
from gflownet.report.page.effects import MAX_SCORES, MIN_GROUP, clear_features, effects, effects_of
from gflownet.report.page.features import features_of, size_of
from tests.evaluation.candidates import classifier_graph
from tests.report.page.folders import assignment_of, record, write_run


def random_groups(seed: int, num: int = 200) -> tuple[list[set[tuple[str, str]]], list[float]]:
    """Return features and scores; the feature good adds 0.3, the others nothing."""
    generator = np.random.default_rng(seed)
    names = ["good", "idle", "other", "rare"]
    shares = [0.4, 0.5, 0.2, 0.01]
    has = generator.random((num, 4)) < shares
    scores = generator.normal(100.0, 0.2, num) + 0.3 * has[:, 0]
    return [{("kind", name) for name, one in zip(names, row, strict=True) if one} for row in has], scores.tolist()


def test_effects_equal_welch_test():
    features, scores = random_groups(0)
    found = effects(features, scores)
    assert [effect.name for effect in found if effect.name == "rare"] == []
    assert {effect.name for effect in found} == {"good", "idle", "other"}
    for effect in found:
        has = [("kind", effect.name) in present for present in features]
        inside = [score for score, one in zip(scores, has, strict=True) if one]
        outside = [score for score, one in zip(scores, has, strict=True) if not one]
        test = stats.ttest_ind(inside, outside, equal_var=False)
        interval = test.confidence_interval(0.95)
        assert (effect.num_with, effect.num_without) == (len(inside), len(outside))
        assert effect.mean_with == pytest.approx(np.mean(inside))
        assert effect.difference == pytest.approx(np.mean(inside) - np.mean(outside))
        assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high))
    assert found[0].name == "good"
    assert found[0].is_certain


def skewed_groups(seed: int, *, num: int = 200) -> tuple[list[set[tuple[str, str]]], list[float]]:
    """Return 20 rare features without effect; a tenth of the scores are far below the others."""
    generator = np.random.default_rng(seed)
    is_low = generator.random(num) < 0.1
    scores = generator.normal(np.where(is_low, 0.1, 0.9), 0.02)
    has = generator.random((num, 20)) < 0.04
    return [{("kind", str(each)) for each in np.flatnonzero(row)} for row in has], scores.tolist()


def test_skewed_scores_without_effects_have_certain_ones_on_few_pages():
    """Welch's intervals at Šidák's level are wrong on nearly every such page."""
    pages = [effects(*skewed_groups(seed)) for seed in range(60)]
    assert all(len(page) > 5 for page in pages)
    assert sum(any(effect.is_certain for effect in page) for page in pages) <= 0.15 * 60


def test_strong_effect_is_certain_among_skewed_scores():
    features, scores = skewed_groups(0)
    features = [{*present, ("kind", "good")} if i % 3 == 0 else present for i, present in enumerate(features)]
    scores = [score + 0.5 * (i % 3 == 0) for i, score in enumerate(scores)]
    assert [effect.name for effect in effects(features, scores) if effect.is_certain] == ["good"]


@pytest.mark.parametrize("seed", [4, 6])
def test_clear_features_equal_a_slow_permutation_test(seed):
    generator = np.random.default_rng(seed)
    scores = generator.exponential(size=60)
    is_present = generator.random((60, 8)) < 0.3
    scores[is_present[:, 0]] += 1.5
    clear = clear_features(is_present, scores, level=0.95, generator=np.random.default_rng(0))

    def largest(values: np.ndarray) -> float:
        return max(abs(np.corrcoef(values, one)[0, 1]) for one in is_present.T)

    null = [largest(generator.permutation(scores)) for _ in range(60)]
    observed = [abs(np.corrcoef(scores, one)[0, 1]) for one in is_present.T]
    slow = [np.mean([value >= one for value in null]) for one in observed]
    assert [share < 0.05 for share in slow] == clear.tolist() == [True] + [False] * 7
    assert all(abs(share - 0.05) > 0.02 for share in slow), "no feature is at the limit, where chance decides"


def test_clear_features_of_many_scores_are_those_of_a_sample():
    generator = np.random.default_rng(0)
    is_present = generator.random((MAX_SCORES + 1000, 3)) < 0.5
    scores = generator.normal(size=len(is_present)) + 0.5 * is_present[:, 1]
    assert clear_features(is_present, scores, level=0.95, generator=generator).tolist() == [False, True, False]


def test_intervals_of_idle_features_cover_zero_in_most_runs():
    intervals = [effect for seed in range(60) for effect in effects(*random_groups(seed)) if effect.name == "idle"]
    share = np.mean([effect.low <= 0 <= effect.high for effect in intervals])
    assert 0.88 <= share <= 1.0
    assert not all(effect.low <= 0 <= effect.high for effect in intervals)


def test_equal_scores_and_small_groups_have_no_effects():
    features = [{("kind", "a")} if i % 2 else set() for i in range(40)]
    assert effects(features, [0.1 + 0.2] * 40) == []
    assert effects([{("kind", "a")}] * (MIN_GROUP - 1) + [set()] * 40, list(range(MIN_GROUP + 39))) == []
    assert effects([], []) == []


def test_one_score_in_each_group_has_an_interval_of_no_width():
    (effect,) = effects([{("kind", "a")}] * 6 + [set()] * 6, [1.0] * 6 + [0.5] * 6)
    assert (effect.difference, effect.low, effect.high) == (0.5, 0.5, 0.5)
    assert effect.is_certain


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
    names = {text for _, text in features_of(graph)}
    assert {"activation relu", "activation tanh", "width 4", "width 8", "input → relu", "relu → tanh"} <= names
    assert not any("linear" in name and "activation" in name for name in names)
    assert size_of(graph) == (2, 3)
    assert size_of(assignment_of(kernel=3)) == (0, 0), "choices have no hidden nodes"


def test_features_of_operations_have_their_settings():
    node = {"id": 2, "node_type": "hidden", "operation": {"name": "conv2d", "features": 8}, "aggregation": "sum"}
    ends = [{"id": 0, "node_type": "input"}, {"id": 1, "node_type": "output", "operation": {"name": "head"}}]
    edges = [{"source": 0, "target": 2}, {"source": 2, "target": 1}]
    names = {text for _, text in features_of({"nodes": [*ends, node], "edges": edges})}
    assert names == {"conv2d", "conv2d: features 8", "aggregation sum", "input → conv2d", "conv2d → output"}


def test_features_of_cells_are_operations_and_places():
    graph = assignment_of(**{"1<-0": "skip", "2<-0": "conv", "2<-1": "skip"})
    assert {text for _, text in features_of(graph)} == {"1<-0 = skip", "2<-0 = conv", "2<-1 = skip", "skip", "conv"}
    assert {text for _, text in features_of(assignment_of(bias=True, depth=3))} == {"bias = true", "depth = 3"}


def test_features_of_coloured_graph_ignore_the_direction_of_undirected_edges():
    first = ColouredGraph(("red|", "blue|"), {(0, 1): "edge||0"}, directed=False)
    second = ColouredGraph(("blue|", "red|"), {(0, 1): "edge||0"}, directed=False)
    assert features_of(first.to_dict()) == features_of(second.to_dict())
    assert features_of(ColouredGraph(("a", "b"), {(0, 1): "e"}).to_dict()) != features_of(
        ColouredGraph(("b", "a"), {(0, 1): "e"}).to_dict()
    )


def test_features_of_program_are_its_operations():
    graph = ColouredGraph(("A|", "A.0:4|", "*|relu", "keep|"), {(0, 1): "edge||0", (0, 2): "edge||0"})
    data = {**TensorProgram(graph).graph.to_dict(), "graph": {"program": "t = A * A"}}
    assert {text for _, text in features_of(data)} >= {"A", "* relu", "A → * relu"}
    assert not any(":" in text for _, text in features_of(data))


@pytest.mark.parametrize("data", [{}, {"nodes": 3}, {"nodes": [{}], "edges": []}, {"nodes": [1], "edges": [2]}])
def test_damaged_graphs_have_no_features(data):
    assert features_of(data) == set()
    json.dumps(size_of(data))
