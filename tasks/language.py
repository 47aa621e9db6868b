"""Recurrent stacks as byte-level language models, scored after a short training on a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
from gflownet.options import POSITIVE, Interval, option
from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.stack_model import RecurrentStack, fit_parameters, num_parameters


@dataclass
class LanguageConfig:
    """The text, and the training and scoring of a stack."""

    text: str = option("", "path of a file or a folder; empty: the source of Python's standard library")
    megabytes: float = option(4.0, "maximum size of the text", POSITIVE)
    num_parameters: int = option(
        293_000, "parameters of every stack, which set its width, if env.recurrent_stack.widths is []", POSITIVE
    )
    budget: Literal["steps", "seconds"] = option(
        "steps", "length of every training: equal steps, or equal seconds of CPU (not repeatable)"
    )
    num_steps: int = option(300, "steps of a training", POSITIVE)
    seconds: float = option(20.0, "CPU seconds of a training, with budget=seconds", POSITIVE)
    sequence_length: int = option(64, "bytes of a training sequence", POSITIVE)
    bottleneck: int = option(16, "bottleneck width of RHN layers", POSITIVE)
    validation_bytes: int = option(16_384, "bytes on which a model is scored", POSITIVE)
    reference: float = option(2.0, "bits per byte of score 1: the unit of the reward", Interval(-100, 100))


class LanguageTask(GFNTask):
    """A stack scores exp(reference - bits per byte) on held-out text: R = exp(-beta (bits per byte - reference)).

    A diverged model, or one worse than a uniform prediction, counts 8 bits. `evaluation.learning_rate` and
    `evaluation.batch_size` set the training.
    """

    Config = LanguageConfig
    environment = "recurrent_stack"

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
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
            raise ValueError(
                f"task_options.sequence_length: expected less than the {shortest} bytes of the shortest part, "
                f"got {options.sequence_length}"
            )

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
        """Return the sizes of a stack; its width is chosen by the search or set by the budget of parameters."""
        stack, options = read_stack(graph), self.config.task_options
        config = StackConfig(layers_of(stack), width=stack.width or 1, bottleneck=options.bottleneck)
        return config if stack.width else fit_parameters(config, options.num_parameters)

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
        """Return bits per byte, at most 8, the bits of a uniform prediction."""
        options = self.config.task_options
        bits = bits_per_byte(model, text, sequence_length=options.sequence_length, num_bytes=options.validation_bytes)
        return bits if bits < UNIFORM_BITS else UNIFORM_BITS

    def _score(self, bits: float) -> float:
        return math.exp(self.config.task_options.reference - bits)


def layers_of(stack: ChosenStack) -> tuple[StackLayer, ...]:
    """Return the layers of a finished stack."""
    return tuple(
        StackLayer(RHN, rank=stack.rank, projections=layer.projections, beta=layer.beta, ratio=stack.ratio)
        if layer.cell == RHN and stack.rank is not None and stack.ratio is not None
        else StackLayer(layer.cell)
        for layer in stack.layers
    )
