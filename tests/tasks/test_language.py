"""LanguageTask: stacks and cells, equal parameters, scores from bits per byte, diverged models, invalid options."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.config import load_config, with_task_options
from gflownet.envs.choice_places import read_places
from gflownet.envs.choices import ChoicesEnv
from gflownet.envs.computation_graph import ComputationGraphEnvContext
from gflownet.evaluation.execution import restored, run_job
from gflownet.evaluation.job import Job, Outcome
from gflownet.evaluation.task import Cost
from gflownet.graphs.assignment import Assignment
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.environment import Environment
from gflownet.rhn.cell_network import CellNetwork
from gflownet.rhn.checkpoint import model_of
from gflownet.rhn.config import StackConfig, StackLayer, stack_words
from gflownet.rhn.network import RecurrentStack
from tasks.language import LanguageConfig, LanguageTask
from tasks.recurrent_stacks import RecurrentStackEnv

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


# Of attention: below the length of the tests' sequences, so that the oldest keys are dropped.
SHORT_WINDOWS = tuple(f"task_options.blocks.{name}.window=9" for name in ("attention", "grouped"))
BLOCKS = ("attention", "window", "grouped", "lstm", "gru", "rhn", "scan", "gated", "convolution")
# With keys and values of a window, a cell's state, a state of a scan, no state.
FAST_BLOCKS = ("grouped", "lstm", "scan", "gated")
# The mixed, repeated and shared blocks of the tests.
MIXED = {"depth": 3, "repeat": 2, "block1": "window", "block2": "scan", "block3": "gated", "weights": "own"}


def model_of_blocks(task: LanguageTask, **places: Any) -> CellNetwork:
    """Return an untrained model in float64; places by name, by default one block."""
    torch.manual_seed(0)
    config: Any = task.config_of(Assignment.of({"depth": 1, "repeat": 1, **places}))
    model = CellNetwork(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # adapters of RHN layers start at zero
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


RHN = {"rank": "2", "ratio": "2", "cell1": "rhn", "projections1": "gate+down", "beta1": "off"}


@pytest.fixture(scope="module")
def task() -> LanguageTask:
    return make_task()


@pytest.fixture(scope="module")
def blocks() -> LanguageTask:
    return make_task(*SHORT_WINDOWS, config="text_blocks")


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


def test_words_name_cells_sizes_and_repetitions(task: LanguageTask) -> None:
    width = stack_config(task, stack(task, **RHN, cell2="repeat", cell3="lstm")).width
    words = task.words(stack(task, **RHN, cell2="repeat", cell3="lstm"))
    assert words == f"rhn {width} rank 2 gate+down beta off x2 > lstm {width}"
    layers = (StackLayer("gru", residual=False), StackLayer("lstm", units=3), StackLayer(ratio=1.0))
    assert stack_words(StackConfig(layers, width=8)) == "gru 8 residual off > lstm 8 units 3 > rhn 8 rank 4 ratio 1"


def test_different_stacks_have_different_words() -> None:
    task = make_task()
    words = {task.words(candidate): candidate for candidate in walked(task, 20)}
    assert len(words) == len(set(words.values())) > 10


def test_description_builds_the_model(task: LanguageTask, cells: LanguageTask, blocks: LanguageTask) -> None:
    stacked = (task, RecurrentStack, stack(task, **RHN))
    mixed = (blocks, CellNetwork, Assignment.of(MIXED))
    for each, kind, graph in (stacked, mixed, (cells, CellNetwork, walked(cells, 1)[0])):
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


@pytest.mark.parametrize("space", ["stacks", pytest.param("cells", marks=pytest.mark.slow)])
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
    if config.env.name == "choices":
        return ChoicesEnv(read_places(config.env.choices.places))
    sizes = {"input_sizes": task.input_sizes, "output_sizes": task.output_sizes}
    return ComputationGraphEnvContext.build_env(config.env, **sizes)


def walked(task: LanguageTask, num: int) -> list[Any]:
    env = environment(task)
    states = uniform_states(env, num, generator=torch.Generator().manual_seed(0))
    return [env.terminal(states, index) for index in range(num)]


@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=[pytest.mark.slow] * (block not in FAST_BLOCKS)) for block in BLOCKS]
)
def test_block_is_causal_and_generates_from_its_state(block: str, blocks: LanguageTask) -> None:
    """No logit depends on a later byte; byte by byte from the state, beyond the windows, they equal those at once."""
    model = model_of_blocks(blocks, block1=block)
    tokens = torch.randint(256, (2, 24), generator=torch.Generator().manual_seed(0))
    whole, last = model(tokens)
    for place in (0, 11, 23):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 256
        moved = (model(changed)[0] - whole).abs().amax((0, 2))
        assert moved[:place].sum() == 0
        assert moved[place] > 1e-6
        assert place != 11 or (moved[12] > 1e-6) == (block != "gated")  # the only one without memory
    decoder, state = model.decoder(), torch.full_like(last, 7.0)
    for place in range(tokens.shape[1]):
        logits, state = decoder.step(tokens[:, place], state, torch.tensor([True, True]) if not place else None)
        torch.testing.assert_close(logits, whole[:, place], rtol=0, atol=1e-9)
    torch.testing.assert_close(decoder.prefill(tokens, None)[0], whole[:, -1], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "operations",
    [
        "[{name: lstm, carry: true}, {name: self_attention}]",
        "[{name: gru, carry: true}, {name: to_signal}, {name: depthwise_conv1d}, {name: to_sequence}]",
        "{name: 'torch.nn:Linear', out_features: 16}",  # as wide as the model that is checked first
        "{name: self_attention, heads: 4, head_size: 8}",  # without a state it would see one position
    ],
)
def test_block_that_is_not_causal_is_refused(operations: str) -> None:
    with pytest.raises(ValueError, match=r"^task_options.blocks.mine: expected (a causal block with carry|an output)"):
        make_task(f"task_options.blocks.mine={operations}", config="text_blocks")


def test_blocks_are_repeated_with_own_or_shared_weights(blocks: LanguageTask) -> None:
    own, shared = (model_of_blocks(blocks, **{**MIXED, "weights": weights}) for weights in ("own", "shared"))
    for model in (own, shared):
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        assert num_parameters <= 9_000 < num_parameters + 1_000
        assert model.config.layers == ["window", "scan", "gated"]
        keys_and_values, of_scan = 2 * 4 * 16 * 24 + 16, (4 + 3) * model.config.width
        assert model.state_shape == (1, 2 * (keys_and_values + of_scan))  # of both passes
    assert [len(model.stack.layers) for model in (own, shared)] == [6, 3]
    assert shared.config.width > own.config.width
    words = [blocks.words(Assignment.of({**MIXED, "weights": weights})) for weights in ("own", "shared")]
    assert words[0] == f"(window > scan > gated) x2, width {own.config.width}"
    assert words[1] == f"(window > scan > gated) x2 shared, width {shared.config.width}"


def test_bits_and_cache_are_objectives(blocks: LanguageTask) -> None:
    score = blocks.evaluate(Assignment.of({"depth": 1, "repeat": 1, "block1": "lstm"}), seed=0)
    width = score.metrics["width"]
    assert score.metrics["cache_bytes"] == 4 * 2 * width
    assert blocks.directions() == {"bits_per_byte": "min", "cache_bytes": "min"}
    assert blocks.utilities(score) == pytest.approx((score.value, 1 / (1 + 8 * width / 16_384)))


@pytest.mark.parametrize("space", ["stacks", pytest.param("cells", marks=pytest.mark.slow), "blocks"])
def test_candidates_of_random_walks_are_scored(space: str, cells: LanguageTask, blocks: LanguageTask) -> None:
    options = ("task_options.num_steps=1",)
    task = {"stacks": make_task(*options), "cells": cells, "blocks": blocks}[space]
    starts = {"stacks": ("rhn", "gru", "lstm"), "cells": ("cell ",), "blocks": ("(", *BLOCKS)}[space]
    for candidate in walked(task, 3):
        assert task.evaluate(candidate, seed=0).value > 0
        assert task.words(candidate).startswith(starts)


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
        ("task_options.megabytes=0.0001", "task_options.text: expected parts longer than .*_length=16, got 9 bytes"),
    ],
)
def test_invalid_language_options_raise(option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(option)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("env.choices.places.width=[8]", "env.choices.places: expected block1, block2, .*, got width"),
        (
            "env.choices.places.block1=[lstn]",
            "env.choices.places.block1: expected values out of attention, .* got lstn",
        ),
        (
            "env.choices.places.weights.values=[mine]",
            "env.choices.places.weights: expected values out of own, shared, got mine",
        ),
        ("task_options.blocks.lstm.name=lstn", "task_options.blocks.lstm: .*lstn"),
        ("task_options.blocks.attention.heads=0", "task_options.blocks.attention: .*heads"),
        ("task_options.blocks.attention.head_size=null", "blocks.attention: .*features divisible by heads=4, got 17"),
        (
            "task_options.blocks.mine={name: 'torch.nn:MultiheadAttention', num_heads: 4}",
            "blocks.mine: torch.nn:MultiheadAttention: expected an operation with one input, got query, key",
        ),
        (
            "task_options.num_parameters=300",
            r"task_options.num_parameters: expected at least [\d,]+, those of the block",
        ),
    ],
)
def test_invalid_blocks_raise(option: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(option, config="text_blocks")
