"""Networks of cells that are trained on images: their size, and the skeleton as part of the task's identity."""

from typing import Any

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.config import load_config, with_task_options
from gflownet.envs.cells import CellsContext
from gflownet.graphs.assignment import Assignment
from gflownet.operations.tensor_shape import Shape
from tasks.images import ImagesConfig
from tasks.nas_bench_201_train import NasBench201TrainTask

SMALL = "env.cells.skeleton.stages=[{features: 2}, {features: 4}]"


def make_task(*options: str) -> NasBench201TrainTask:
    config = load_config("nas_bench_201_train", ["evaluation.num_epochs=1", SMALL, *options])
    return NasBench201TrainTask(with_task_options(config, ImagesConfig))


@pytest.fixture(scope="module")
def task() -> NasBench201TrainTask:
    return make_task()


def cell_of(*operations: str) -> Assignment:
    return Assignment(("1<-0", "2<-0", "2<-1", "3<-0", "3<-1", "3<-2"), operations)


def test_nas_bench_201_train_cost_is_that_of_the_model(task):
    cell = cell_of("none", "nor_conv_3x3", "skip_connect", "avg_pool_3x3", "nor_conv_1x1", "nor_conv_3x3")
    model, cost = task.build_model(cell), task.cost(cell)
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.num_parameters
    assert task.evaluate(cell, seed=1).num_parameters == cost.num_parameters
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_nas_bench_201_train_caps_count_the_task_s_network(task):
    """The smallest network has 502 parameters on digits, and one 3x3 convolution per stage adds 36 + 4 + 144 + 8."""
    skeleton = task.cost(cell_of(*["none"] * 6)).num_parameters
    config = load_config("nas_bench_201_train", [SMALL, f"env.cells.max_parameters={skeleton + 36 + 4 + 144 + 8}"])
    sizes: dict[str, Any] = {"input_sizes": task.input_sizes, "output_sizes": task.output_sizes}
    assert task.input_sizes == (Shape.of((1, 8, 8)),)
    env = CellsContext.build_env(config.env, **sizes)
    graph = enumerate_states(env, max_states=50_000)
    cells: list[Any] = [env.terminal(graph.states, index) for index in graph.terminal.tolist()[::97]]
    assert max(cell.values.count("nor_conv_3x3") for cell in cells) == 1
    assert all(task.cost(cell).num_parameters <= skeleton + 192 for cell in cells)


def test_nas_bench_201_train_fingerprint_depends_on_the_skeleton(task):
    assert make_task().fingerprint() == task.fingerprint()
    assert make_task("env.cells.skeleton.stages=[{features: 2}, {features: 6}]").fingerprint() != task.fingerprint()


def test_nas_bench_201_train_trains_graphs_of_nas_bench_101():
    task = make_task("env.cells.name=nb101")
    context = CellsContext.from_config(task.config.env, input_sizes=(), output_sizes=(), num_cond_dim=1)
    graph = enumerate_states(context.env, max_states=10_000)
    cell: Any = context.env.terminal(graph.states, int(graph.terminal[40]))
    score = task.evaluate(cell, seed=0)
    assert score.num_parameters == task.cost(cell).num_parameters
    assert 0 < score.value <= 1
