"""Recurrent stacks, cells and blocks of text as byte-level language models, scored after a short training on a text."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch

from gflownet.envs.choice_places import read_places
from gflownet.envs.skeleton import NetworkWriter, Step, read_steps
from gflownet.evaluation.candidates.language import (
    UNIFORM_BITS,
    LanguageDivergedError,
    LanguageModelTraining,
    LanguageTraining,
    bits_per_byte,
    continue_language_model,
    train_language_model,
)
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.data.byte_text import read_bytes
from gflownet.evaluation.store.fingerprint import data_digest
from gflownet.evaluation.task import CandidateTraining, Cost, GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.operations.tensor_shape import Shape
from gflownet.operations.values import thawed
from gflownet.operations.vocabulary import short_name
from gflownet.options import AT_LEAST_ONE, POSITIVE, Interval, option
from gflownet.rhn.cell_network import CellConfig, CellLayer, CellNetwork, largest_cell, num_cell_parameters
from gflownet.rhn.checkpoint import description_of
from gflownet.rhn.config import StackConfig, read_stack, stack_words
from gflownet.rhn.network import RecurrentNetwork, RecurrentStack, fit_parameters, num_parameters
from gflownet.training.random_states import seeded
from gflownet.training.steps import evaluating
from gflownet.translation.graph_summary import GraphSummary, summary
from gflownet.translation.model import to_pytorch_model

ENVIRONMENTS = ("recurrent_stack", "computation_graph", "choices")
Candidate = Assignment | ComputationGraph  # a stack or blocks, or a cell
# Places of blocks: the layers in the order of their numbers; passes through them; whether passes share their weights.
_BLOCK = re.compile(r"block(\d+)")
_DEPTH, _REPEAT, _WEIGHTS, _SHARED = "depth", "repeat", "weights", "shared"
_CHECKED_WIDTHS = 16, 17, 1  # of blocks when they are checked: the budget of parameters sets the width
# Sequences on which blocks are checked: their number, and the lengths of the parts in which they are read.
_CHECKED_ROWS, _CHECKED_PARTS = 2, (5, 1, 7)
_CHECKED_LENGTH = sum(_CHECKED_PARTS)
_CHECKED_NOISE = 0.1  # in weights
_TOLERANCE = 1e-4
_FLOAT_BYTES = 4
# Points of the learning curve of a full training.
_CURVE_POINTS = 8


@dataclass
class LanguageConfig:
    """The text, and the training and scoring of a stack."""

    text: str = option("", "path of a file or a folder; empty: the source of Python's standard library")
    megabytes: float = option(4.0, "maximum size of the text", POSITIVE)
    num_parameters: int = option(
        293_000, "parameters of every model, which set its width, if env.recurrent_stack.widths is []", POSITIVE
    )
    blocks: Any = option(
        {}, "env.name=choices: blocks by name, each an operation or a list of them: {lstm: {name: lstm, carry: true}}"
    )
    target_cache: int = option(16_384, "bytes of the state of a generated sequence with utility 1/2", AT_LEAST_ONE)
    budget: Literal["steps", "seconds"] = option(
        "steps", "length of every training: equal steps, or equal seconds of CPU (not repeatable)"
    )
    num_steps: int = option(300, "steps of a training", POSITIVE)
    seconds: float = option(20.0, "CPU seconds of a training, with budget=seconds", POSITIVE)
    sequence_length: int = option(64, "bytes of a training sequence", POSITIVE)
    bottleneck: int = option(16, "bottleneck width of RHN layers", POSITIVE)
    cell_layers: int = option(1, "layers of a recurrent cell, each with its own weights", AT_LEAST_ONE)
    validation_bytes: int = option(16_384, "bytes on which a model is scored", POSITIVE)
    reference: float = option(2.0, "bits per byte of score 1: the unit of the reward", Interval(-100, 100))


class StackTraining(CandidateTraining):
    """The training of one candidate of a LanguageTask."""

    model: RecurrentNetwork

    def __init__(self, task: LanguageTask, model: RecurrentNetwork, training: LanguageModelTraining) -> None:
        self._task, self._training = task, training
        self.fidelity, self.model = training.step, model
        self.curve = tuple(task.value(bits) for _, bits in training.curve)

    def score(self) -> Score:
        return self._task.score_of(self.model, num_steps=None if self._training.has_diverged else self.fidelity)

    def test(self) -> float:
        return self._task.test_score_of(self.model, has_diverged=self._training.has_diverged)

    def state_dict(self) -> dict[str, Any]:
        training = self._training
        return {
            "model": self.model.state_dict(),
            "optimiser": training.optimiser,
            "generator": training.generator.get_state(),
            "step": training.step,
            "has_diverged": training.has_diverged,
            "curve": list(training.curve),
        }


class LanguageTask(GFNTask):
    """A stack, cell or blocks score exp(reference - bits) on held-out text: R = exp(-beta (bits per byte - reference)).

    A diverged model, or one worse than a uniform prediction, counts 8 bits. `evaluation.learning_rate` and
    `evaluation.batch_size` set the training.
    """

    Config = LanguageConfig
    fidelity_unit = "steps"
    objectives = ("bits_per_byte", "cache_bytes")
    metric_name = "bits per byte"

    def __init__(self, config: TaskConfig) -> None:
        self.costs = {"cache_bytes": config.task_options.target_cache}
        super().__init__(config)
        if config.env.name not in ENVIRONMENTS:
            expected = f"{', '.join(ENVIRONMENTS[:-1])} or {ENVIRONMENTS[-1]}"
            raise ValueError(f"env.name: expected {expected} with this task, got {config.env.name}")
        if config.env.name == "choices":
            self._check_blocks()
        if config.env.name == "computation_graph":
            # Relative to this width: num_parameters sets the width of every cell.
            self.input_sizes = self.output_sizes = (max(config.env.output_sizes),)
        if not config.evaluation.batch_size:
            raise ValueError("evaluation.batch_size: expected 1 or more with this task, got 0")
        options = config.task_options
        if options.validation_bytes < options.sequence_length:
            raise ValueError(
                f"task_options.validation_bytes: expected at least sequence_length={options.sequence_length}, "
                f"got {options.validation_bytes}"
            )
        self.text = read_bytes(
            str(options.text),
            megabytes=float(options.megabytes),
            split_seed=config.evaluation.split_seed,
            key="task_options.text",
        )
        shortest = min(len(part) for part in (self.text.train, self.text.validation, self.text.test))
        if shortest <= options.sequence_length:
            expected = f"parts longer than task_options.sequence_length={options.sequence_length}"
            raise ValueError(f"task_options.text: expected {expected}, got {shortest:,} bytes in the shortest")
        self.max_fidelity = 0 if options.budget == "seconds" else int(options.num_steps)

    def fingerprint(self) -> str:
        """Return a digest of the text."""
        return data_digest([self.text.train, self.text.validation, self.text.test])

    @property
    def training(self) -> LanguageTraining:
        """The training of every stack."""
        options, evaluation = self.config.task_options, self.config.evaluation
        return LanguageTraining(
            num_steps=options.num_steps,
            seconds=options.seconds if options.budget == "seconds" else None,
            rows=evaluation.batch_size,
            sequence_length=options.sequence_length,
            learning_rate=evaluation.learning_rate,
        )

    def evaluate(self, graph: Candidate, *, seed: int) -> Score:
        """Return the score after training; metrics are bits per byte, steps taken, width, and whether it diverged."""
        model, num_steps = self._trained(graph, seed=seed)
        return self.score_of(model, num_steps=num_steps)

    def train_many(
        self,
        graphs: Sequence[Candidate],
        *,
        seeds: Sequence[int],
        fidelity: int,
        schedule: int,
        states: Sequence[Mapping[str, Any] | None],
    ) -> Iterator[StackTraining | Exception]:
        """Yield the training of each stack up to a step, see GFNTask.train_many."""
        for graph, seed, state in zip(graphs, seeds, states, strict=True):
            try:
                yield self._continued(graph, seed=seed, state=state, fidelity=fidelity, schedule=schedule)
            except Exception as error:
                yield error

    def test(self, graph: Candidate, *, seed: int) -> float | None:
        """Return the score on the test text after the same training."""
        model, num_steps = self._trained(graph, seed=seed)
        return self.test_score_of(model, has_diverged=num_steps is None)

    def score_of(self, model: RecurrentNetwork, *, num_steps: int | None) -> Score:
        """Return the score of a model after its training; `num_steps` is None if it diverged."""
        bits = UNIFORM_BITS if num_steps is None else self._bits(model, self.text.validation)
        metrics = {
            "bits_per_byte": bits,
            "num_steps": float(num_steps or 0),
            "width": float(model.config.width),
            "cache_bytes": float(_FLOAT_BYTES * math.prod(model.state_shape)),
            "diverged": float(num_steps is None),
        }
        return Score(self.value(bits), num_parameters=_size(model.config), metrics=metrics)

    def test_score_of(self, model: RecurrentNetwork, *, has_diverged: bool) -> float:
        """Return the score of a trained model on the test text."""
        return self.value(UNIFORM_BITS if has_diverged else self._bits(model, self.text.test))

    def value(self, bits: float) -> float:
        """Return the score of bits per byte."""
        return math.exp(self.config.task_options.reference - bits)

    def metric_of(self, score: float) -> float:
        """Return the bits per byte of a score."""
        return self.config.task_options.reference - math.log(score) if score > 0 else math.nan

    def utility(self, objective: str, value: float) -> float:
        """Return the score of bits per byte, or 1 / (1 + cache_bytes / task_options.target_cache)."""
        return self.value(value) if objective == "bits_per_byte" else super().utility(objective, value)

    def cost(self, graph: Candidate) -> Cost:
        """Return the size of a model; a byte takes about one multiply-add per parameter and pass."""
        config = self.config_of(graph)
        passes = replace(config, shared=False) if isinstance(config, CellConfig) else config
        return Cost(num_parameters=_size(config), flops=2 * _size(passes))

    def words(self, candidate: Candidate) -> str:
        """Return layers such as "gru 128 > rhn 128 rank 4", or the width of a cell and its formulas."""
        config = self.config_of(candidate)
        if isinstance(candidate, Assignment) and isinstance(config, CellConfig):
            return config.words
        if isinstance(candidate, Assignment):  # the chosen ratio, not the one adjusted to the budget of parameters
            return stack_words(read_stack(candidate.as_dict(), width=config.width))
        num_layers = self.config.task_options.cell_layers
        layers = f" x{num_layers}" if num_layers > 1 else ""
        return f"cell {config.width}{layers}: {formulas(candidate)}"

    def description(self, candidate: Candidate) -> Mapping[str, Any]:
        """Return kind and config of the model, for `gflownet.load` and `gflownet.language --from`."""
        module = {"build": "gflownet.rhn.checkpoint:model_of", "of": "language_model"}
        return {"language_model": description_of(self.config_of(candidate)), "module": module}

    def next_step(self, candidate: Candidate, folder: Path) -> str:
        """Return the command that trains the model on a text."""
        command = f"python -m gflownet.language TEXT --from {shlex.quote(str(folder))} rank=0"
        return f"Train one on a text and serve it: {command}"

    def config_of(self, candidate: Candidate) -> StackConfig | CellConfig:
        """Return the sizes of a model; its width is chosen by the search or set by the budget of parameters."""
        options = self.config.task_options
        if isinstance(candidate, ComputationGraph):
            cell = candidate.with_translation(self.translation_settings).to_dict()
            layers = ["cell"] * options.cell_layers
            return fit_cell_parameters(CellConfig({"cell": cell}, layers), options.num_parameters)
        if self.config.env.name == "choices":
            return self._blocks_of(candidate.as_dict())
        config = read_stack(candidate.as_dict(), bottleneck=options.bottleneck)
        return config if self.config.env.recurrent_stack.widths else fit_parameters(config, options.num_parameters)

    @cached_property
    def _steps(self) -> Mapping[str, Sequence[Step]]:
        """Return the operations of each block. Raises UserError for invalid ones."""
        declared = thawed(self.config.task_options.blocks)
        return {str(name): read_steps(value, f"task_options.blocks.{name}") for name, value in declared.items()}

    def _check_blocks(self) -> None:
        """Raise ValueError for places without a meaning, or a block that is unknown or not causal."""
        for place in read_places(self.config.env.choices.places).places:
            is_block = _BLOCK.fullmatch(place.name)
            if not (is_block or place.name in (_DEPTH, _REPEAT, _WEIGHTS)):
                expected = f"block1, block2, ..., {_DEPTH}, {_REPEAT} and {_WEIGHTS} with this task"
                raise ValueError(f"env.choices.places: expected {expected}, got {place.name}")
            allowed = self._steps if is_block else ("own", _SHARED) if place.name == _WEIGHTS else place.values
            if unknown := [value for value in place.values if value not in allowed]:
                names = ", ".join(map(str, allowed)) or "task_options.blocks"
                raise ValueError(f"env.choices.places.{place.name}: expected values out of {names}, got {unknown[0]}")
        budget = self.config.task_options.num_parameters
        for name, steps in self._steps.items():
            try:
                of_widths = [block_graph(steps, width) for width in _CHECKED_WIDTHS]
                longer = block_graph(steps, _CHECKED_WIDTHS[0], length=_CHECKED_LENGTH)
                check_causal(ComputationGraph.from_dict(of_widths[0]), longer=ComputationGraph.from_dict(longer))
            except (ValueError, RuntimeError) as error:
                raise ValueError(f"task_options.blocks.{name}: {error}") from None
            if (num := num_cell_parameters(CellConfig({name: of_widths[-1]}, [name]))) > budget:
                text = f"expected at least {num:,}, those of the block {name} at width 1"
                raise ValueError(f"task_options.num_parameters: {text}, got {budget:,}")

    def _blocks_of(self, values: Mapping[str, Any]) -> CellConfig:
        """Return the largest model of some blocks within the budget of parameters."""
        places = sorted((name for name in values if _BLOCK.fullmatch(name)), key=lambda name: int(name[len("block") :]))
        layers = [str(values[place]) for place in places]

        def at(width: int) -> CellConfig:
            blocks = {name: block_graph(self._steps[name], width) for name in dict.fromkeys(layers)}
            repeat, shared = int(values.get(_REPEAT, 1)), values.get(_WEIGHTS) == _SHARED
            return CellConfig(blocks, layers, repeat=repeat, shared=shared)

        return largest_cell(at, self.config.task_options.num_parameters)

    def _trained(self, graph: Candidate, *, seed: int) -> tuple[RecurrentNetwork, int | None]:
        """Return a model after its training and the number of steps, None if it diverged."""
        model, generator = self._new_model(graph, seed=seed)
        try:
            last = train_language_model(model, self.text.train, options=self.training, generator=generator)
        except LanguageDivergedError:
            return model, None
        return model, last.step

    def _continued(
        self, graph: Candidate, *, seed: int, state: Mapping[str, Any] | None, fidelity: int, schedule: int
    ) -> StackTraining:
        """Return the training of a stack up to a step, from a saved state if there is one."""
        model, generator = self._new_model(graph, seed=seed)
        training = LanguageModelTraining(model, generator)
        if state is not None:
            model.load_state_dict(state["model"])
            generator.set_state(state["generator"])
            training.step, training.has_diverged = state["step"], state["has_diverged"]
            training.optimiser, training.curve = state["optimiser"], list(state["curve"])
        if training.step > fidelity:
            raise ValueError(f"expected a training of at most {fidelity} steps, got {training.step}")
        continue_language_model(
            training,
            self.text.train,
            options=replace(self.training, num_steps=schedule),
            num_steps=fidelity,
            measure_every=max(1, self.max_fidelity // _CURVE_POINTS),
            measure=lambda _: self._bits(model, self.text.validation),
        )
        return StackTraining(self, model, training)

    def _new_model(self, graph: Candidate, *, seed: int) -> tuple[RecurrentNetwork, torch.Generator]:
        """Return an untrained model and the generator of its training."""
        config = self.config_of(graph)
        with seeded(seed):
            model = RecurrentStack(config) if isinstance(config, StackConfig) else CellNetwork(config)
        return model.to(self.device), torch.Generator().manual_seed(seed)

    def _bits(self, model: RecurrentNetwork, text: torch.Tensor) -> float:
        """Return bits per byte, at most 8, the bits of a uniform prediction."""
        options = self.config.task_options
        bits = bits_per_byte(model, text, sequence_length=options.sequence_length, num_bytes=options.validation_bytes)
        return bits if bits < UNIFORM_BITS else UNIFORM_BITS


def _size(config: StackConfig | CellConfig) -> int:
    return num_parameters(config) if isinstance(config, StackConfig) else num_cell_parameters(config)


def block_graph(steps: Sequence[Step], width: int, *, length: int = 1) -> dict[str, Any]:
    """Return the graph of a block of a width. Raises ValueError where an operation cannot be applied."""
    shape = Shape.of((length, width))
    writer = NetworkWriter(shape)
    writer.chain([step.at(width) for step in steps])
    if writer.shape != shape:
        raise ValueError(f"expected an output {shape}, got {writer.shape}")
    return writer.finish()


_SIGNS = {"sum": " + ", "Product": " * "}
_PLAIN = ("linear", "identity")


def formulas(graph: ComputationGraph) -> str:
    """Return a formula per node, for example "a = tanh(x + a'); y = a"; weights and biases are left out.

    x are inputs, y outputs, a, b, c hidden nodes in the order of computation; a' is the value of the step before.
    """
    order = graph.topological_sort()
    names = _names(graph, order)
    is_recurrent = set(graph.detect_cycles())
    texts = []
    for node_id in order:
        node = graph.nodes[node_id]
        if node.node_type is NodeType.INPUT:
            continue
        edges = [edge for edge in graph.in_edges(node_id) if edge.enabled]
        marks = ["'" if edge.edge_id in is_recurrent or edge.attributes.get("is_recurrent") else "" for edge in edges]
        terms = [names[edge.source] + mark for edge, mark in zip(edges, marks, strict=True)]
        aggregation = short_name(node.aggregation)
        is_joined = aggregation in _SIGNS or len(terms) == 1
        inner = _SIGNS.get(aggregation, "").join(terms) if is_joined else f"{aggregation.lower()}({', '.join(terms)})"
        activation = short_name(node.activation_function)
        texts.append(f"{names[node_id]} = {inner if activation in _PLAIN else f'{activation}({inner})'}")
    return "; ".join(texts)


def _names(graph: ComputationGraph, order: list[int]) -> dict[int, str]:
    """Return the name of every node."""
    names = {}
    for kind, letter in ((NodeType.INPUT, "x"), (NodeType.OUTPUT, "y")):
        ids = sorted(node_id for node_id, node in graph.nodes.items() if node.node_type is kind)
        names |= {node_id: letter if len(ids) == 1 else f"{letter}{place}" for place, node_id in enumerate(ids, 1)}
    hidden = [node_id for node_id in order if graph.nodes[node_id].node_type is NodeType.HIDDEN]
    letters = "abcdefghijklmnopqrstuvw"
    return names | {
        node_id: letters[place] if place < len(letters) else f"n{place}" for place, node_id in enumerate(hidden)
    }


def fit_cell_parameters(config: CellConfig, budget: int) -> CellConfig:
    """Return the network of cells with the width for which the number of parameters is nearest to `budget`.

    The widths of all neurons are scaled by the same factor, and rounded.
    """
    low = largest_cell(lambda width: _scaled(config, width), budget)
    both = low, _scaled(config, low.width + 1)
    return min(both, key=lambda candidate: abs(num_cell_parameters(candidate) - budget))


def _scaled(config: CellConfig, width: int) -> CellConfig:
    """Return the network of a width."""
    factor = width / config.width
    return replace(config, blocks={name: _scaled_graph(graph, factor) for name, graph in config.blocks.items()})


def _scaled_graph(graph: Mapping[str, Any], factor: float) -> dict[str, Any]:
    nodes = [{**node, "output_size": max(1, round(node["output_size"] * factor))} for node in graph["nodes"]]
    return {**graph, "nodes": nodes}


def check_causal(graph: ComputationGraph, *, longer: ComputationGraph) -> None:
    """Check that a block reads sequences in parts, with its state, as it reads them at once: it sees no later position.

    Args:
        graph: of the block, on a sequence [1, W].
        longer: of the same block on a sequence of _CHECKED_LENGTH positions, without which one that lacks its state
            would pass.

    Raises:
        ValueError: another result, or a model that cannot be built.
    """
    (shape,) = cast(GraphSummary, summary(graph)).inputs
    with seeded(0), torch.no_grad():
        layer = CellLayer(graph, shape.channels, CellConfig.epsilon)
        for parameter in layer.parameters():  # some start at zero, without effect
            parameter.add_(_CHECKED_NOISE * torch.randn_like(parameter))
        x = torch.randn(_CHECKED_ROWS, _CHECKED_LENGTH, shape.channels)
    with evaluating(layer), torch.no_grad():
        whole, state, parts = layer(x, None)[0], None, []
        if not layer.slots:  # the layer reads every position alone
            at_once = to_pytorch_model(longer).eval()
            at_once.load_state_dict(layer.cell.state_dict())
            whole = x + at_once(layer.norm(x))
        for part in x.split(_CHECKED_PARTS, 1):
            y, state = layer(part, state)
            parts.append(y)
    error = float((torch.cat(parts, 1) - whole).abs().max())
    if not error <= _TOLERANCE:
        raise ValueError(
            "expected a causal block with carry, whose outputs do not change with later positions, got outputs of a "
            f"sequence in parts that differ by {error:.2g}"
        )
