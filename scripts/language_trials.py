"""Trainings of language models, each saved as one line of a file, so that an interrupted benchmark continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gflownet.evaluation.candidates.language import (
    UNIFORM_BITS,
    LanguageDivergedError,
    LanguageTraining,
    bits_per_byte,
    training_steps,
)
from gflownet.evaluation.data.byte_text import ByteText
from scripts.language_models import Form

NUM_EXTENSIONS = 2  # of a grid of rates whose best rate is at an edge


@dataclass(frozen=True)
class Trial:
    """A finished training; a diverged one has 8 bits per byte."""

    form: str
    learning_rate: float
    seed: int
    validation: float  # bits per byte
    test: float | None  # None in a training that chooses a form or a rate
    steps: int
    seconds: float  # CPU seconds of the training steps


@dataclass(frozen=True)
class Results:
    """A file of results, one JSON line each with its key."""

    path: Path

    def get(self, key: list[Any]) -> Any:
        """Return the result of a key; None if it is not in the file."""
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            saved = json.loads(line)
            if saved["key"] == key:
                return saved["trial"]
        return None

    def add(self, key: list[Any], result: Any) -> None:
        """Append a result."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "trial": result}) + "\n")


@dataclass(frozen=True)
class Trials:
    """Trainings with the same text and budget."""

    budget: str  # name of the budget; a part of the key of a saved trial
    text: ByteText
    training: LanguageTraining
    num_bytes: int  # scored at the end
    results: Results

    def train(self, form: Form, learning_rate: float, seed: int, *, is_reported: bool = False) -> Trial:
        """Return the saved trial of these arguments, or train a new model and save its trial.

        Args:
            form: the model.
            learning_rate: maximum.
            seed: of the weights and of the order of the text.
            is_reported: whether to measure the bits per byte of the test text.
        """
        key = [self.budget, form.name, learning_rate, seed]
        saved = self.results.get(key)
        if saved is not None:
            return Trial(**saved)
        trial = self._trained(form, learning_rate, seed, is_reported=is_reported)
        self.results.add(key, asdict(trial))
        score = f"validation {trial.validation:.3f}" if trial.test is None else f"test {trial.test:.3f}"
        print(f"{key}: {score} bits per byte, {trial.steps} steps, {trial.seconds:.1f} CPU s", flush=True)
        return trial

    def _trained(self, form: Form, learning_rate: float, seed: int, *, is_reported: bool) -> Trial:
        torch.manual_seed(seed)
        model, steps, seconds = form.make(), 0, 0.0
        options = replace(self.training, learning_rate=learning_rate)
        generator = torch.Generator().manual_seed(seed)
        try:
            for progress in training_steps(model, self.text.train, options=options, generator=generator):
                steps, seconds = progress.step, progress.seconds
        except LanguageDivergedError:
            return Trial(form.name, learning_rate, seed, UNIFORM_BITS, UNIFORM_BITS, steps, seconds)
        validation = self._bits(model, "validation", self.num_bytes)
        test = self._bits(model, "test", self.num_bytes) if is_reported else None
        return Trial(form.name, learning_rate, seed, validation, test, steps, seconds)

    def _bits(self, model: torch.nn.Module, part: str, num_bytes: int) -> float:
        length = self.training.sequence_length
        return bits_per_byte(model, getattr(self.text, part), sequence_length=length, num_bytes=num_bytes)

    def best_rate(self, form: Form, rates: Sequence[float], seed: int) -> float:
        """Return the rate with the best validation score; while it is at an edge of the grid, the grid is extended."""
        bits = {rate: self.train(form, rate, seed).validation for rate in rates}
        for _ in range(NUM_EXTENSIONS):
            best = min(bits, key=lambda rate: bits[rate])
            if min(bits) < best < max(bits):
                break
            rate = best / 2 if best == min(bits) else best * 2
            bits[rate] = self.train(form, rate, seed).validation
        return min(bits, key=lambda rate: bits[rate])
