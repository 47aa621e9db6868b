"""Train small language models on bytes for a number of steps or CPU seconds, and measure bits per byte.

R is the number of rows of a batch, T of bytes in a row.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.optimisers import Adam

UNIFORM_BITS = 8.0  # per byte, of the uniform distribution; also the result of a diverged model
_DIVERGED_LOSS = 1_000.0  # nats per byte; a training that still learns stays far below
_WARM_UP = 0.1  # share of the training in which the learning rate rises
_LAST_RATE = 0.1  # of the largest learning rate
_MAX_GRADIENT_NORM = 1.0
_ROWS = 64  # of one forward pass in `bits_per_byte`


class LanguageDivergedError(RuntimeError):
    """The training loss is not finite or too large to recover from."""


@dataclass(frozen=True)
class LanguageTraining:
    """Options of a training with Adam, a warm-up and cosine schedule, and sequences from random places."""

    num_steps: int = 300
    seconds: float | None = None  # CPU time; if set, it ends the training instead of num_steps
    rows: int = 16
    sequence_length: int = 64
    learning_rate: float = 0.005  # maximum

    def rate(self, done: float) -> float:
        """Return the learning rate after a fraction of the training (Loshchilov and Hutter 2017, equation 5)."""
        falling = (min(done, 1.0) - _WARM_UP) / (1 - _WARM_UP)
        low = self.learning_rate * _LAST_RATE
        cosine = low + (self.learning_rate - low) * (1 + math.cos(math.pi * falling)) / 2
        return self.learning_rate * (done + 0.01) / (_WARM_UP + 0.01) if done < _WARM_UP else cosine


@dataclass(frozen=True)
class Progress:
    """State after one step."""

    step: int  # from 1
    loss: float  # nats per byte of its batch, before the step
    seconds: float  # CPU seconds of all steps so far, without the time of the caller


@dataclass(eq=False)
class LanguageModelTraining:
    """A language model and the state of its training, to train on from."""

    model: nn.Module  # maps tokens [R, T] to a tuple that starts with logits [R, T, 256]
    generator: torch.Generator  # of the random places
    step: int = 0  # done
    optimiser: dict[str, Any] | None = None  # state dict of Adam; None before the first step
    has_diverged: bool = False
    curve: list[tuple[int, float]] = field(default_factory=list)  # measured steps, bits per byte


def training_steps(
    model: nn.Module, text: Tensor, *, options: LanguageTraining, generator: torch.Generator
) -> Iterator[Progress]:
    """Train a model in place, step by step.

    Args:
        model: maps tokens [R, T] to a tuple that starts with logits [R, T, 256].
        text: [N] uint8, longer than a sequence.
        options: of the training.
        generator: of the random places.

    Raises:
        LanguageDivergedError: the loss is not finite or too large.
    """
    optimiser = Adam(model.parameters(), lr=options.learning_rate, fused=True)
    model.train()
    step, seconds, done = 0, 0.0, 0.0
    while done < 1:
        start = time.process_time()
        loss = _step(model, text, optimiser, options=options, done=done, generator=generator)
        step, seconds = step + 1, seconds + time.process_time() - start
        _check_loss(loss, step=step)
        yield Progress(step, loss, seconds)
        done = step / options.num_steps if options.seconds is None else seconds / options.seconds


def continue_language_model(
    training: LanguageModelTraining,
    text: Tensor,
    *,
    options: LanguageTraining,
    num_steps: int,
    measure_every: int,
    measure: Callable[[nn.Module], float],
) -> None:
    """Train a model in place up to a step of the training of `options`; stop where it diverges.

    Args:
        training: the model and its state.
        text: [N] uint8, longer than a sequence.
        options: of the whole training; its `seconds` are not used.
        num_steps: number of steps after which to stop.
        measure_every: steps between two points of the curve.
        measure: returns the bits per byte of a model for the curve.
    """
    model = training.model
    optimiser = Adam(model.parameters(), lr=options.learning_rate, fused=True)
    if training.optimiser is not None:
        optimiser.load_state_dict(copy.deepcopy(training.optimiser))
    model.train()
    while training.step < num_steps and not training.has_diverged:
        done = training.step / options.num_steps
        loss = _step(model, text, optimiser, options=options, done=done, generator=training.generator)
        training.step += 1
        training.has_diverged = not loss <= _DIVERGED_LOSS
        if training.step % measure_every == 0 and not training.has_diverged:
            training.curve.append((training.step, measure(model)))
            model.train()
    training.optimiser = optimiser.state_dict()


def train_language_model(
    model: nn.Module, text: Tensor, *, options: LanguageTraining, generator: torch.Generator
) -> Progress:
    """Train a model in place and return the last step. Raises as `training_steps`."""
    *_, last = training_steps(model, text, options=options, generator=generator)
    return last


@torch.no_grad()
def bits_per_byte(model: nn.Module, text: Tensor, *, sequence_length: int, num_bytes: int) -> float:
    """Return the mean bits per byte, conditional on the previous bytes of a sequence, over evenly spaced sequences.

    Args:
        model: as for `training_steps`.
        text: [N] uint8.
        sequence_length: number of predicted bytes of a sequence.
        num_bytes: total number of predicted bytes, rounded up to whole sequences, at most the length of the text.
    """
    model.eval()
    num = max(1, min(math.ceil(num_bytes / sequence_length), (len(text) - 1) // sequence_length))
    starts = torch.linspace(0, len(text) - sequence_length - 1, num, dtype=torch.float64).long()
    total = 0.0
    for part in starts.split(_ROWS):
        rows = _rows(text, part, sequence_length)
        total += float(_cross_entropy(model, rows, reduction="sum").double())
    return total / (num * sequence_length * math.log(2))


def _check_loss(loss: float, *, step: int) -> None:
    if not loss <= _DIVERGED_LOSS:
        raise LanguageDivergedError(f"step {step}: expected a loss <= {_DIVERGED_LOSS:g}, got {loss:g}")


def _step(
    model: nn.Module,
    text: Tensor,
    optimiser: torch.optim.Optimizer,
    *,
    options: LanguageTraining,
    done: float,
    generator: torch.Generator,
) -> float:
    """Take one step after a fraction of the training and return the loss before it."""
    for group in optimiser.param_groups:
        group["lr"] = options.rate(done)
    rows = _random_rows(text, options, generator)
    optimiser.zero_grad()
    loss = _cross_entropy(model, rows, reduction="mean")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRADIENT_NORM)
    optimiser.step()
    return float(loss.detach())


def _cross_entropy(model: nn.Module, rows: Tensor, *, reduction: str) -> Tensor:
    """Return the cross-entropy of rows [R, T + 1], without the first byte."""
    logits = model(rows[:, :-1])[0]
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction=reduction)


def _random_rows(text: Tensor, options: LanguageTraining, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - options.sequence_length, (options.rows,), generator=generator)
    return _rows(text, starts, options.sequence_length)


def _rows(text: Tensor, starts: Tensor, length: int) -> Tensor:
    """Return [R, length + 1] int64."""
    return text[starts[:, None] + torch.arange(length + 1)].long()
