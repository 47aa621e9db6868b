"""Contract of every built-in task with the trainer and the evaluator."""

import math
from typing import Any

import pytest
import torch

from gflownet.config import load_config, with_task_options
from gflownet.envs.config import ENVIRONMENTS
from gflownet.evaluation.randomness import candidate_seed
from gflownet.evaluation.task import GFNTask, Score
from gflownet.evaluation.tasks import TASKS
from gflownet.graphs.tensor_shape import Shape
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from tests.benchmark_tables import table_options
from tests.tiny_run import TINY_TASKS

# Names of configs where they differ from the task's.
CONFIGS = {"recorded": "recorded_digits"}


@pytest.fixture(scope="module", params=TASKS)
def task(request, tmp_path_factory) -> GFNTask:
    name: str = request.param
    config_name = CONFIGS.get(name, name)
    options = ["evaluation.num_epochs=1", *table_options(name, tmp_path_factory.mktemp("tables"))]
    config = load_config(config_name, [*options, *TINY_TASKS.get(config_name, ())])
    return TASKS.load(name)(with_task_options(config, TASKS.load(name).Config))


@pytest.fixture(scope="module")
def graph(task) -> Any:
    """A terminal object of the environment that the task's own config names, by a random walk."""
    config: Any = task.config
    context_class: Any = ENVIRONMENTS.load(config.env.name)
    sizes = {"input_sizes": task.input_sizes, "output_sizes": task.output_sizes}
    env: Environment = context_class.from_config(config.env, **sizes, num_cond_dim=task.num_cond_dim).env
    generator = torch.Generator().manual_seed(1)
    states = env.initial_states(1)
    while True:
        action = env.forward_masks(states).sample_uniform(generator)
        if int(action.kind[0]) == GraphActionType.Stop:
            return env.terminal(states, 0)
        states = env.step(states, action)


def test_sizes_are_widths_or_shapes(task):
    """None where the environment needs none."""
    needs_sizes = task.config.env.name == "computation_graph"
    for sizes in (task.input_sizes, task.output_sizes):
        assert isinstance(sizes, tuple)
        assert bool(sizes) or not needs_sizes
        assert all(isinstance(size, Shape) or (type(size) is int and size > 0) for size in sizes)


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
    other, again = task.evaluate_many([graph, type(graph).from_dict(graph.to_dict())], seeds=[seed + 1, seed])
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


def test_cheap_score_is_independent_of_seed(task, graph):
    """The final stage leaves out cheap tasks, because new seeds give the same score."""
    if task.is_cheap:
        assert task.evaluate(graph, seed=1) == task.evaluate(graph, seed=2)


def test_references_have_one_score_per_seed(task):
    for reference in task.references(seeds=[5]):
        assert len(reference.validation) == len(reference.test) == 1
        assert 0 < reference.validation[0] <= task.max_score
