"""Byte-level language models out of recurrent stacks: which one learns a real text best in a short training?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch

from gflownet.envs.recurrent_stack import RHN, ChosenStack, read_stack
from gflownet.evaluation.byte_text import read_bytes
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.language_training import (
    UNIFORM_BITS,
    LanguageDivergedError,
    LanguageTraining,
    bits_per_byte,
    train_language_model,
)
from gflownet.evaluation.randomness import seeded
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.stack_model import RecurrentStack, fit_parameters, num_parameters


@dataclass
class LanguageConfig:
    """The text, and how a stack is trained on it and scored."""

    text: str = field(
        default="", metadata={"help": "path of a file or a folder; empty: the source of Python's standard library"}
    )
    megabytes: float = field(default=4.0, metadata={"help": "most of the text that is read"})
    num_parameters: int = field(
        default=293_000,
        metadata={"help": "of every stack, if env.recurrent_stack.widths is []: sets its width"},
    )
    budget: Literal["steps", "seconds"] = field(
        default="steps", metadata={"help": "what trainings have alike: steps, or seconds of CPU (not repeatable)"}
    )
    num_steps: int = field(default=300, metadata={"help": "steps of a training"})
    seconds: float = field(default=20.0, metadata={"help": "CPU seconds of a training, with budget=seconds"})
    sequence_length: int = field(default=64, metadata={"help": "bytes that a model reads at a time"})
    bottleneck: int = field(default=16, metadata={"help": "of RHN layers, what adapters are written from"})
    validation_bytes: int = field(default=16_384, metadata={"help": "bytes that a model is scored on"})
    reference: float = field(default=2.0, metadata={"help": "bits per byte of score 1; the reward's unit, no more"})


class LanguageTask(GFNTask):
    """A stack scores exp(reference - bits per byte) on held-out text: R = exp(-beta (bits per byte - reference)).

    What diverges, or is worse than no knowledge, counts 8 bits. `evaluation.learning_rate` and `evaluation.batch_size`
    are those of the training.
    """

    Config = LanguageConfig

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        if config.env.name != "recurrent_stack":
            raise ValueError(f"env.name: expected recurrent_stack with this task, got {config.env.name}")
        options = config.task_options
        _check(options)
        self.text = read_bytes(
            str(options.text),
            megabytes=float(options.megabytes),
            split_seed=config.evaluation.split_seed,
            key="task_options.text",
        )
        shortest = min(len(part) for part in (self.text.train, self.text.validation, self.text.test))
        if shortest <= options.sequence_length:
            raise ValueError(
                f"task_options.sequence_length: expected less than the {shortest} bytes of the shortest part, "
                f"got {options.sequence_length}"
            )

    @property
    def training(self) -> LanguageTraining:
        """How every stack is trained."""
        options, evaluation = self.config.task_options, self.config.evaluation
        return LanguageTraining(
            num_steps=options.num_steps,
            seconds=options.seconds if options.budget == "seconds" else None,
            rows=evaluation.batch_size,
            sequence_length=options.sequence_length,
            learning_rate=evaluation.learning_rate,
        )

    def evaluate(self, graph: Assignment, *, seed: int) -> Score:
        """Return the score after training; metrics are bits per byte, steps taken, width, and whether it diverged."""
        model, num_steps = self._trained(graph, seed=seed)
        bits = UNIFORM_BITS if num_steps is None else self._bits(model, self.text.validation)
        metrics = {
            "bits_per_byte": bits,
            "num_steps": float(num_steps or 0),
            "width": float(model.config.width),
            "diverged": float(num_steps is None),
        }
        return Score(self._score(bits), num_parameters=num_parameters(model.config), metrics=metrics)

    def test(self, graph: Assignment, *, seed: int) -> float | None:
        """Return the score on the test text after the same training."""
        model, num_steps = self._trained(graph, seed=seed)
        return self._score(UNIFORM_BITS if num_steps is None else self._bits(model, self.text.test))

    def config_of(self, graph: Assignment) -> StackConfig:
        """Return the sizes of a stack: as wide as its own choice, or the budget of parameters, says."""
        chosen, options = read_stack(graph), self.config.task_options
        config = StackConfig(layers_of(chosen), width=chosen.width or 1, bottleneck=options.bottleneck)
        return config if chosen.width else fit_parameters(config, options.num_parameters)

    def _trained(self, graph: Assignment, *, seed: int) -> tuple[RecurrentStack, int | None]:
        """Return a model after its training and the number of steps, None if it diverged."""
        with seeded(seed):
            model = RecurrentStack(self.config_of(graph))
        generator = torch.Generator().manual_seed(seed)
        try:
            last = train_language_model(model, self.text.train, options=self.training, generator=generator)
        except LanguageDivergedError:
            return model, None
        return model, last.step

    def _bits(self, model: RecurrentStack, text: torch.Tensor) -> float:
        """Return bits per byte, at most those of no knowledge."""
        options = self.config.task_options
        bits = bits_per_byte(model, text, sequence_length=options.sequence_length, num_bytes=options.validation_bytes)
        return bits if bits < UNIFORM_BITS else UNIFORM_BITS

    def _score(self, bits: float) -> float:
        return math.exp(self.config.task_options.reference - bits)


def layers_of(chosen: ChosenStack) -> tuple[StackLayer, ...]:
    """Return the layers of a finished stack as a model takes them."""
    return tuple(
        StackLayer(RHN, rank=chosen.rank, projections=layer.projections, beta=layer.beta, ratio=chosen.ratio)
        if layer.cell == RHN and chosen.rank is not None and chosen.ratio is not None
        else StackLayer(layer.cell)
        for layer in chosen.layers
    )


def _check(options: LanguageConfig) -> None:
    """Raise ValueError naming the first option whose value makes no sense."""
    for name in ("megabytes", "seconds", "num_parameters", "num_steps", "sequence_length", "bottleneck"):
        value = getattr(options, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"task_options.{name}: expected a number > 0, got {value}")
    if options.validation_bytes < options.sequence_length:
        raise ValueError(
            f"task_options.validation_bytes: expected at least sequence_length={options.sequence_length}, "
            f"got {options.validation_bytes}"
        )
    if not math.isfinite(options.reference):
        raise ValueError(f"task_options.reference: expected a number, got {options.reference}")
