"""The hidden program scores 1; programs that share some of its indices score less."""

import numpy as np
import pytest
import torch

from gflownet.autodiff.text import parse
from gflownet.config import load_config, with_task_options
from gflownet.envs.tensor_graph import TensorGraphContext
from gflownet.envs.tensor_program import TensorProgram, program_of
from gflownet.mdp.action import GraphActionType
from gflownet.training.random_states import seeded
from tasks.tensor_program import TensorProgramConfig, TensorProgramTask, best_explained

MATRIX_PRODUCT = "y[i,k] = sum_j A[i,j] B[j,k]"


def make_task(*overrides: str) -> TensorProgramTask:
    config = load_config("tensor_program", [*overrides])
    return TensorProgramTask(with_task_options(config, TensorProgramConfig))


def read(task, text: str) -> TensorProgram:
    return program_of(parse(text.replace(";", "\n")).node(task.inputs), task.inputs)


def test_the_hidden_program_is_exact_and_parts_of_it_score_in_between():
    task = make_task()
    scores = [
        task.evaluate(read(task, text), seed=0).value
        for text in (
            "y[i] = sum_jk (A[i,j] - A[k,i])",
            "a[i] = sum_j A[i,j]",  # the rows, but not the columns
            "y[i,k] = sum_jl A[i,j] B[l,k]",  # rows and columns, but summed apart
            MATRIX_PRODUCT,
        )
    ]
    assert scores == sorted(scores)
    assert scores[0] < 0.05 < scores[1] < scores[2] < 0.95
    assert scores[3] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "is_exact", "is_hidden"),
    [
        (MATRIX_PRODUCT, 1, 1),
        ("y[k,i] = sum_j B[j,i] A[k,j]", 1, 1),  # other names, exchanged operands, another layout
        ("t[j,i] = A[i,j]; y[i,k] = sum_j t[j,i] B[j,k]", 1, 0),  # another program that computes it
        ("y[i,k] = sum_j A[j,i] B[j,k]", 0, 0),
        ("t[i,k] = sum_j A[i,j] B[j,k]; y[i,k] = t[i,k] + A[i,k]", 0, 0),
    ],
)
def test_equivalent_programs_are_exact(text, is_exact, is_hidden):
    task = make_task()
    metrics = task.evaluate(read(task, text), seed=0).metrics
    assert (metrics["exact"], metrics["hidden"]) == (is_exact, is_hidden)


def test_a_factor_and_an_offset_cost_nothing_and_a_function_does():
    target = torch.rand(5, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert best_explained(1 - 3 * target, target) == pytest.approx(1)
    assert best_explained(target.transpose(1, 2), target) == pytest.approx(1)
    assert 0.5 < best_explained(target.sqrt(), target) < 0.95


def test_axes_that_are_missing_or_spare_cost_a_share():
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    target = rows[:, :, None].expand(6, 3, 4)
    assert best_explained(rows, target) == pytest.approx(0.7)
    spare = rows[:, None, :, None].expand(6, 5, 3, 4)
    assert best_explained(spare, target) == pytest.approx(0.7)


def test_explained_share_equals_numpy():
    """1 - sqrt(1 - R^2) of the best factor and offset, over both orders of the axes, by least squares."""
    rng = np.random.default_rng(0)
    result, target = rng.random((7, 3, 3)), rng.random((7, 3, 3)) + 1
    shares = []
    for aligned in (result, result.transpose(0, 2, 1)):
        columns = np.stack([aligned.ravel(), np.ones(aligned.size)], 1)
        residual = target.ravel() - columns @ np.linalg.lstsq(columns, target.ravel(), rcond=None)[0]
        shares.append(1 - np.linalg.norm(residual) / np.linalg.norm(target - target.mean()))
    found = best_explained(torch.from_numpy(result), torch.from_numpy(target))
    assert max(shares) > 0
    assert found == pytest.approx(max(shares))


def test_a_constant_explains_nothing():
    target = torch.rand(6, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for constant in (0.0, 0.1, 1e12, float("nan"), float("inf")):
        assert best_explained(torch.full((6, 3, 4), constant, dtype=torch.float64), target) == 0
        assert best_explained(torch.full((6,), constant, dtype=torch.float64), target) == 0


def test_every_program_of_the_space_has_a_score():
    task = make_task("env.tensor_graph.max_operations=3")
    env = TensorGraphContext.build_env(task.config.env, input_sizes=(), output_sizes=())
    generator, states, scores = torch.Generator().manual_seed(1), env.initial_states(50), []
    while len(states):
        actions = env.forward_masks(states).sample_uniform(generator)
        stops = actions.kind == int(GraphActionType.Stop)
        ended = states[stops]
        scores += [task.evaluate(env.terminal(ended, i), seed=0).value for i in range(len(ended))]
        states = env.step(states[~stops], actions[~stops])
    assert len(scores) == 50
    assert all(0 < score <= 1 + 1e-12 for score in scores)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task_options.target='y[i] = sum_j D[i,j]'"], "task_options.target: .*D"),
        (["task_options.target='y[i] = sum_j 2.0 * A[i,j]'"], "task_options.target: .*without a factor"),
        (["task_options.num_examples=0"], "task_options.num_examples: expected a number >= 1"),
    ],
)
def test_invalid_targets_raise(overrides, message):
    with pytest.raises(ValueError, match=message):
        make_task(*overrides)


def test_a_program_on_other_inputs_is_refused():
    other = make_task("env.tensor_graph.inputs=['A[2,3]','B[3,2]']")
    with pytest.raises(ValueError, match="expected a program on"):
        make_task().evaluate(read(other, "y[i] = sum_j A[i,j]"), seed=0)


def test_the_hidden_program_is_reached_by_the_environment():
    task = make_task()
    env = TensorGraphContext.build_env(task.config.env, input_sizes=(), output_sizes=())
    hidden = read(task, MATRIX_PRODUCT)
    with seeded(0):
        assert env.terminal(env.states_of([hidden]), 0) == hidden
