"""What every built-in task promises to the trainer and the evaluator."""

import math

import pytest
import torch

from gflownet.evaluation.randomness import candidate_seed
from gflownet.evaluation.task import GFNTask, Score
from gflownet.evaluation.tasks import TASKS, load_task_class
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from tests.evaluation.candidates import config_with


@pytest.fixture(scope="module", params=TASKS)
def task(request) -> GFNTask:
    return load_task_class(request.param)(config_with(f"task={request.param}", "evaluation.num_epochs=1"))


@pytest.fixture(scope="module")
def graph(task) -> ComputationGraph:
    """The smallest architecture: every input feeds every output."""
    graph = ComputationGraph()
    num_inputs = len(task.input_sizes)
    for node, size in enumerate(task.input_sizes):
        graph.add_node(node, NodeType.INPUT, output_size=size)
    for node, size in enumerate(task.output_sizes, start=num_inputs):
        graph.add_node(node, NodeType.OUTPUT, output_size=size)
        for source in range(num_inputs):
            graph.add_edge(source, node)
    return graph


def test_sizes_are_widths(task):
    for sizes in (task.input_sizes, task.output_sizes):
        assert isinstance(sizes, tuple)
        assert sizes
        assert all(type(size) is int and size > 0 for size in sizes)


def test_score_is_finite_positive_and_explained(task, graph):
    score = task.evaluate(graph, seed=1)
    assert isinstance(score, Score)
    assert math.isfinite(score.value)
    assert score.value > 0
    assert score.num_parameters is None or score.num_parameters >= 0
    assert all(isinstance(value, float) for value in score.metrics.values())


def test_same_seed_same_score_and_nothing_else_matters(task, graph):
    seed = candidate_seed(0, graph.canonical_hash())
    torch.manual_seed(1)
    first, *_ = task.evaluate_many([graph], seeds=[seed])
    torch.manual_seed(2)
    other, again = task.evaluate_many([graph, graph.copy()], seeds=[seed + 1, seed])
    fresh = type(task)(task.config).evaluate(graph, seed=seed)
    assert first == again == fresh
    assert isinstance(other, Score)


def test_evaluation_leaves_graph_and_global_generator_alone(task, graph):
    before, state = graph.to_dict(), torch.get_rng_state()
    list(task.evaluate_many([graph], seeds=[3]))
    assert graph.to_dict() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_test_score_is_a_number_or_absent(task, graph):
    value = task.test(graph, seed=1)
    assert value is None or (isinstance(value, float) and math.isfinite(value))
    assert value == task.test(graph, seed=1)


def test_log_reward_grows_with_score_and_with_nothing_else(task):
    conditioning = task.sample_conditioning(2, generator=torch.Generator().manual_seed(0))
    assert conditioning.encoding.shape == (2, task.num_cond_dim)
    worse, better = task.log_reward(torch.tensor([0.3, 0.6]), conditioning).tolist()
    assert worse < better <= 0
    floored = task.log_reward(torch.tensor([0.0, -1.0]), conditioning)
    assert torch.isfinite(floored).all()
