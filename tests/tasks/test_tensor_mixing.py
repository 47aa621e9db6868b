"""Layers for images of digits: trained by symbolic gradients as torch would train them, and scores above poor ones."""

import pytest
import torch

from gflownet.autodiff.text import parse
from gflownet.config import load_config, with_task_options
from gflownet.envs.tensor_program import TensorProgram, program_of
from gflownet.training.random_states import seeded
from tasks.tensor_mixing import NUM_CLASSES, SIDE, TensorMixingConfig, TensorMixingTask

ATTENTION = """
    q[t,k] = sum_c X[t,c] P[c,k]; s[t,u] = sum_k q[t,k] X[u,k]; a[t,u] = sigmoid(s[t,u]); y[t,c] = sum_u a[t,u] X[u,c]
"""


def make_task(*overrides: str) -> TensorMixingTask:
    return TensorMixingTask(with_task_options(load_config("tensor_mixing", [*overrides]), TensorMixingConfig))


def read(task: TensorMixingTask, text: str) -> TensorProgram:
    return program_of(parse(text.replace(";", "\n")).node(task.inputs), task.inputs)


def score(task: TensorMixingTask, text: str):
    with seeded(1):
        return task.evaluate(read(task, text), seed=1)


def test_mixing_scores_above_adding():
    task = make_task()
    found = {
        text: score(task, text)
        for text in ("y = sum_tc X[t,c]", "y[t] = sum_c P[t,c]", "q[t,k] = sum_c X[t,c] P[c,k]; r[t,k] = relu(q[t,k])")
    }
    total, blind, layer = found.values()
    assert total.value < 0.25
    assert (blind.value, blind.num_parameters) == (1 / NUM_CLASSES, 0)
    assert layer.value > 0.85
    assert layer.num_parameters == SIDE * SIDE + SIDE * SIDE * NUM_CLASSES + NUM_CLASSES


def test_training_equals_torch():
    """The same steps of Adam with the gradient of torch.autograd end in the same parameters."""
    task = make_task("task_options.num_steps=5")
    graph = read(task, ATTENTION)
    with seeded(3):
        trained = task._trained(graph)
    assert trained is not None
    ours, scale, _ = trained
    images, targets = task._arrays(task._splits.train)
    with seeded(3):
        matrix = torch.randn(SIDE, SIDE) / SIDE**0.5
    values = [matrix, torch.zeros(SIDE, SIDE, NUM_CLASSES), torch.zeros(NUM_CLASSES)]
    values = [value.requires_grad_() for value in values]
    optimiser = torch.optim.Adam(values, lr=task.config.task_options.learning_rate)
    for _ in range(5):
        matrix, weight, bias = values
        weights = torch.sigmoid(torch.einsum("ntc,ck,nuk->ntu", images, matrix, images))
        layer = scale * torch.einsum("ntu,nuc->ntc", weights, images)
        logits = torch.einsum("ntc,tcz->nz", layer, weight) + bias
        loss = torch.nn.functional.cross_entropy(logits, targets.argmax(1))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    theirs = [value.detach() for value in values]
    # The layer's axes, and with them the weight's, are in the order of the canonical form.
    theirs[1] = min(theirs[1], theirs[1].transpose(0, 1), key=lambda weight: float((weight - ours[1]).abs().max()))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def test_test_score_is_of_the_same_training():
    task = make_task()
    graph = read(task, "r[t,k] = sum_c X[t,c] P[c,k]")
    found = task.test(graph, seed=4)
    assert found is not None
    assert found > 0.8
    assert found == task.test(graph, seed=4)
    assert task.test(read(task, "y[t] = sum_c P[t,c]"), seed=4) is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task_options.num_steps=0", "task_options.num_steps: expected a number >= 1, got 0"),
        ("task_options.learning_rate=0", "task_options.learning_rate: expected a number > 0, got 0"),
        ("env.tensor_graph.inputs=['X[4,4]']", r"env.tensor_graph.inputs: expected X\[8,8\]"),
    ],
)
def test_invalid_training_options_raise(override, message):
    with pytest.raises(ValueError, match=message):
        make_task(override)
