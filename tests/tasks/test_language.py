"""LanguageTask: stacks and cells, equal parameters, scores from bits per byte, diverged models, invalid options."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.config import load_config, with_task_options
from gflownet.envs.computation_graph import ComputationGraphEnvContext
from gflownet.envs.recurrent_stack import RecurrentStackEnv
from gflownet.evaluation.execution import restored, run_job
from gflownet.evaluation.job import Job, Outcome
from gflownet.evaluation.task import Cost
from gflownet.graphs.assignment import Assignment
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.rhn.checkpoint import model_of
from gflownet.rhn.config import StackConfig, StackLayer, stack_words
from gflownet.rhn.network import RecurrentStack, fit_parameters, num_parameters
from gflownet.translation.cell_network import CellNetwork
from tasks.language import LanguageConfig, LanguageTask

TINY = (
    f"task_options.text={__file__}",
    "task_options.num_steps=6",
    "task_options.num_parameters=9000",
    "task_options.sequence_length=16",
    "task_options.validation_bytes=128",
    "evaluation.batch_size=8",
    "evaluation.learning_rate=0.02",
    "evaluation.halving.min_fidelity=0",
)


def make_task(*overrides: str, config: str = "language") -> LanguageTask:
    return LanguageTask(with_task_options(load_config(config, [*TINY, *overrides]), LanguageConfig))


def stack(task: LanguageTask, **chosen: str) -> Assignment:
    """Return a stack from choices by place, cell1 for cell[1]."""
    config: Any = task.config
    names = RecurrentStackEnv(config.env.recurrent_stack).vocabulary.node_types
    return Assignment(names, tuple(chosen.get(name.replace("[", "").replace("]", ""), "none") for name in names))


def stack_config(task: LanguageTask, candidate: Assignment) -> StackConfig:
    config = task.config_of(candidate)
    assert isinstance(config, StackConfig)
    return config


RHN = {"rank": "2", "ratio": "2", "cell1": "rhn", "projections1": "gate+down", "beta1": "off"}


@pytest.fixture(scope="module")
def task() -> LanguageTask:
    return make_task()


@pytest.fixture(scope="module")
def cells() -> LanguageTask:
    return make_task("env.max_hidden_nodes=3", "env.max_edges=7", config="language_cells")


def test_config_of_returns_the_chosen_layers(task: LanguageTask) -> None:
    config = stack_config(task, stack(task, **RHN, cell2="repeat", cell3="lstm"))
    first = config.layers[0]
    assert [layer.cell for layer in config.layers] == ["rhn", "repeat", "lstm"]
    assert (first.rank, first.projections, first.beta) == (2, ("gate", "down"), False)
    assert first.ratio == pytest.approx(2, abs=8 / config.width)
    assert config.bottleneck == 16


def test_chosen_width_replaces_the_budget() -> None:
    task = make_task("env.recurrent_stack.widths=[8,24]")
    assert stack_config(task, stack(task, **RHN, width="24")).width == 24


def cells_without_rhn(max_depth: int) -> Iterator[tuple[str, ...]]:
    for depth in range(1, max_depth + 1):
        for rest in itertools.product(("gru", "lstm", "repeat"), repeat=depth - 1):
            yield from ((first, *rest) for first in ("gru", "lstm"))


def test_parameter_budget_is_met_within_one_per_cent() -> None:
    """Cells of the config; stacks with RHN layers have finer sizes to choose from."""
    chance, budget = random.Random(0), 59_000
    stacks = [tuple(map(StackLayer, each)) for each in chance.sample(list(cells_without_rhn(3)), 4)]
    for depth in (1, 3):
        rank, ratio = chance.choice((2, 8)), chance.choice((1.0, 4.0))
        names = ["rhn", *(chance.choice(("rhn", "gru", "lstm", "repeat")) for _ in range(depth - 1))]
        stacks.append(tuple(StackLayer(cell, rank=rank, ratio=ratio) for cell in names))
    stacks.append((StackLayer("gru", units=20, residual=False), StackLayer("lstm", units=90)))
    for layers in stacks:
        fitted = fit_parameters(StackConfig(layers), budget)
        assert num_parameters(fitted) == pytest.approx(budget, rel=0.01), [layer.cell for layer in layers]


def test_words_name_cells_sizes_and_repetitions(task: LanguageTask) -> None:
    width = stack_config(task, stack(task, **RHN, cell2="repeat", cell3="lstm")).width
    words = task.words(stack(task, **RHN, cell2="repeat", cell3="lstm"))
    assert words == f"rhn {width} rank 2 gate+down beta off x2 > lstm {width}"
    layers = (StackLayer("gru", residual=False), StackLayer("lstm", units=3), StackLayer(ratio=1.0))
    assert stack_words(StackConfig(layers, width=8)) == "gru 8 residual off > lstm 8 units 3 > rhn 8 rank 4 ratio 1"


def test_different_stacks_have_different_words() -> None:
    task = make_task("env.recurrent_stack.residuals=[on,off]", "env.recurrent_stack.units=[16]")
    words = {task.words(candidate): candidate for candidate in walked(task, 20)}
    assert len(words) == len(set(words.values())) > 10


def test_description_builds_the_model(task: LanguageTask, cells: LanguageTask) -> None:
    stacked = (task, RecurrentStack, stack(task, **RHN))
    for each, kind, graph in (stacked, (cells, CellNetwork, walked(cells, 1)[0])):
        description = json.loads(json.dumps(each.description(graph)["language_model"]))
        model = model_of(description, "here")
        assert isinstance(model, kind)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        assert each.evaluate(graph, seed=0).num_parameters == num_parameters
        assert each.cost(graph) == Cost(num_parameters, 2 * num_parameters)


def test_score_is_a_function_of_bits_per_byte(task: LanguageTask) -> None:
    score = task.evaluate(stack(task, cell1="gru"), seed=1)
    bits = score.metrics["bits_per_byte"]
    assert 4 < bits < 8
    assert score.value == pytest.approx(math.exp(4 - bits))
    assert score.metrics["num_steps"] == 6
    assert score.metrics["diverged"] == 0
    assert score.num_parameters == pytest.approx(9_000, rel=0.03)
    other = make_task("task_options.reference=3").evaluate(stack(task, cell1="gru"), seed=1)
    assert math.log(score.value) - math.log(other.value) == pytest.approx(1)


def trained(task: LanguageTask, graphs: list[Any], *fidelities: int, schedule: int = 6) -> list[Outcome]:
    """Return the outcomes of trainings up to each fidelity in turn, saved and restored in between."""
    outcomes: list[Outcome] = []
    for fidelity in fidelities:
        job = Job(
            tuple(graphs),
            tuple(range(1, 1 + len(graphs))),
            fidelity=fidelity,
            schedule=schedule,
            trainings=tuple(outcome.training for outcome in outcomes),
            saves_training=True,
            tests=True,
        )
        outcomes = run_job(task, job)
    return outcomes


@pytest.mark.parametrize("space", ["stacks", "cells"])
def test_training_in_parts_equals_full_training_and_evaluate(
    task: LanguageTask, cells: LanguageTask, space: str
) -> None:
    task = task if space == "stacks" else cells
    graphs = [stack(task, **RHN, cell2="lstm"), stack(task, cell1="gru")] if space == "stacks" else walked(cells, 1)
    outcomes = zip(trained(task, graphs, 6), trained(task, graphs, 1, 6), strict=True)
    for seed, (graph, (full, parts)) in enumerate(zip(graphs, outcomes, strict=True), start=1):
        assert (full.score, full.curve, full.test) == (parts.score, parts.curve, parts.test)
        one, other = restored(full.training), restored(parts.training)
        assert one is not None
        assert other is not None
        assert all(torch.equal(value, other["model"][name]) for name, value in one["model"].items())
        assert full.score == task.evaluate(graph, seed=seed) != task.evaluate(graph, seed=9)
        assert full.test == task.test(graph, seed=seed)
        assert len(full.curve) == task.max_fidelity == 6
        assert full.score is not None
        assert full.curve[-1] == full.score.value


def test_seconds_are_a_budget() -> None:
    task = make_task("task_options.budget=seconds", "task_options.seconds=0.1")
    assert task.max_fidelity == 0
    steps = [
        task.evaluate(graph, seed=1).metrics["num_steps"] for graph in (stack(task, cell1="lstm"), stack(task, **RHN))
    ]
    assert steps[0] > steps[1] > 0


def environment(task: LanguageTask) -> Environment:
    config: Any = task.config
    if config.env.name == "recurrent_stack":
        return RecurrentStackEnv(config.env.recurrent_stack)
    sizes = {"input_sizes": task.input_sizes, "output_sizes": task.output_sizes}
    return ComputationGraphEnvContext.build_env(config.env, **sizes)


def walked(task: LanguageTask, num: int) -> list[Any]:
    env, generator = environment(task), torch.Generator().manual_seed(0)
    states, candidates = env.initial_states(num), []
    while len(states):
        actions = env.forward_masks(states).sample_uniform(generator)
        stops = actions.kind == GraphActionType.Stop
        candidates += [env.terminal(states, index) for index in stops.nonzero().flatten().tolist()]
        states = env.step(states[~stops], actions[~stops])
    return candidates


@pytest.mark.parametrize("space", ["stacks", "cells"])
def test_candidates_of_random_walks_are_scored(space: str, cells: LanguageTask) -> None:
    options = ("task_options.num_steps=1", "env.recurrent_stack.residuals=[on,off]", "env.recurrent_stack.units=[5]")
    task = make_task(*options) if space == "stacks" else cells
    for candidate in walked(task, 3):
        assert task.evaluate(candidate, seed=0).value > 0
        assert task.words(candidate).startswith("cell " if space == "cells" else ("rhn", "gru", "lstm"))


def test_text_of_the_user_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("abcdefgh" * 500)
    task = make_task(f"task_options.text={path}", "task_options.num_steps=20", "evaluation.learning_rate=0.05")
    assert task.evaluate(stack(task, cell1="gru"), seed=0).metrics["bits_per_byte"] < 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("env.name=hypergrid", "env.name: expected recurrent_stack, computation_graph or choices with this task"),
        ("task_options.text=nowhere", "task_options.text: no such file or folder: nowhere"),
        ("task_options.num_steps=0", "task_options.num_steps: expected a number > 0, got 0"),
        ("task_options.seconds=.nan", "task_options.seconds: expected a number, got '.nan'"),
        ("task_options.reference=.inf", "task_options.reference: expected a number, got '.inf'"),
        ("task_options.validation_bytes=8", "validation_bytes: expected at least sequence_length=16, got 8"),
        ("evaluation.batch_size=0", "evaluation.batch_size: expected 1 or more with this task, got 0"),
        ("task_options.megabytes=0.0001", "task_options.sequence_length: expected less than the 9 bytes"),
    ],
)
def test_invalid_language_options_raise(option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(option)
