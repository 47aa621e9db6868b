"""One training of one model, followed along, and the best of several learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from gflownet.evaluation.byte_text import ByteText
from gflownet.evaluation.language_training import (
    UNIFORM_BITS,
    LanguageDivergedError,
    LanguageTraining,
    bits_per_byte,
    training_steps,
)
from scripts.language.models import Make


@dataclass(frozen=True)
class Point:
    """Where a training was."""

    step: int
    seconds: float  # CPU seconds of the training alone
    bits: float  # per byte, of validation text


@dataclass(frozen=True)
class Trial:
    """A training that has ended; what diverged has 8 bits everywhere."""

    validation: float  # bits per byte
    test: float
    learning_rate: float
    points: Sequence[Point]  # every so many steps where that was asked for, and the last
    model: nn.Module

    @property
    def last(self) -> Point:
        """The end of the training."""
        return self.points[-1]


@dataclass(frozen=True)
class Bench:
    """What all trainings of a comparison have alike."""

    text: ByteText
    training: LanguageTraining
    num_bytes: int  # that a model is scored on at the end
    num_bytes_between: int = 8192  # and along the way

    def train(self, make: Make, *, learning_rate: float, seed: int, every: int = 0) -> Trial:
        """Train a fresh model; `every` so many steps it is scored, 0 for the end alone."""
        torch.manual_seed(seed)
        model, points = make(), []
        options = replace(self.training, learning_rate=learning_rate)
        generator = torch.Generator().manual_seed(seed)
        step = seconds = 0
        try:
            for progress in training_steps(model, self.text.train, options=options, generator=generator):
                step, seconds = progress.step, progress.seconds
                if every and step % every == 0:
                    points.append(Point(step, seconds, self._bits(model, "validation", self.num_bytes_between)))
        except LanguageDivergedError:
            points.append(Point(step, seconds, UNIFORM_BITS))
            return Trial(UNIFORM_BITS, UNIFORM_BITS, learning_rate, points, model)
        scores = [self._bits(model, part, self.num_bytes) for part in ("validation", "test")]
        points.append(Point(step, seconds, scores[0]))
        return Trial(scores[0], scores[1], learning_rate, points, model)

    def best(
        self, makes: Sequence[Make], *, learning_rates: Sequence[float], seed: int, every: int = 0
    ) -> tuple[Make, Trial]:
        """Return what makes the best model on validation text, and its best training.

        All are trained with the first learning rate, the best of them with the others, too.
        """
        first, *others = learning_rates
        trials = [(make, self.train(make, learning_rate=first, seed=seed, every=every)) for make in makes]
        make, trial = min(trials, key=lambda pair: pair[1].validation)
        more = [self.train(make, learning_rate=rate, seed=seed, every=every) for rate in others]
        return make, min([trial, *more], key=lambda each: each.validation)

    def _bits(self, model: nn.Module, part: str, num_bytes: int) -> float:
        length = self.training.sequence_length
        return bits_per_byte(model, getattr(self.text, part), sequence_length=length, num_bytes=num_bytes)
