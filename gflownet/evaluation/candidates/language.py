"""Train language models on tokens for a number of steps or CPU seconds, and measure bits per byte.

R is the number of rows of a batch, T of tokens in a row, V of the vocabulary. The tokens of a text are its bytes, or
those of a tokenizer.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.training.optimisers import OptimiserOptions, Schedule, build_optimisers, is_wide, split_parameters
from gflownet.training.precision import Precision, autocast
from gflownet.training.steps import DivergedError, Steps, evaluating


class Batches(ABC):
    """Batches of a text [N] in the order of one training."""

    state: Tensor | None = None  # [L, R, W] before the next batch; None at the beginning of sequences

    def __init__(self, text: Tensor, *, rows: int, length: int) -> None:
        """Take the tokens [N] of a text, the rows of a batch and the tokens of a row."""
        self._text, self._num_rows, self._length = text, rows, length

    @abstractmethod
    def next_rows(self, generator: torch.Generator) -> Tensor:
        """Return the next batch [R, T + 1] int64; the last token of a row is only predicted."""

    def pass_state(self, state: Tensor) -> None:  # noqa: B027 (some batches start without a state)
        """Take the state [L, R, W] after the batch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the text, and the state; nothing where the generator holds the places."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:  # noqa: B027
        """Restore the result of `state_dict`, tensors on a device."""


class RandomBatches(Batches):
    """Sequences from random places; every row starts without a state."""

    def next_rows(self, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(self._text) - self._length, (self._num_rows,), generator=generator)
        return rows_at(self._text, starts, self._length)


class ContiguousBatches(Batches):
    """Row r reads the r-th of R equal sections of the text, and the state passes from batch to batch, without gradient.

    At the end of the sections the next pass starts without a state, at a random offset below T.
    """

    def __init__(self, text: Tensor, *, rows: int, length: int) -> None:
        """Take the same arguments, with more tokens per row than a sequence.

        Raises:
            ValueError: a text with sections that are shorter than a sequence.
        """
        super().__init__(text, rows=rows, length=length)
        self._section = (len(text) - 1) // rows
        if self._section < length:
            raise ValueError(f"expected at least {rows * length + 1} tokens for contiguous batches, got {len(text)}")
        self._place = self._section  # the first batch starts a pass

    def next_rows(self, generator: torch.Generator) -> Tensor:
        if self._place + self._length > self._section:
            largest = min(self._length, self._section - self._length + 1)
            self._place, self.state = int(torch.randint(largest, (), generator=generator)), None
        starts = torch.arange(self._num_rows) * self._section + self._place
        self._place += self._length
        return rows_at(self._text, starts, self._length)

    def pass_state(self, state: Tensor) -> None:
        self.state = state.detach().float()

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._place, "state": self.state}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        self._place = state["place"]
        self.state = None if state["state"] is None else state["state"].to(device)


BATCHES: dict[str, type[Batches]] = {"random": RandomBatches, "contiguous": ContiguousBatches}


def rows_at(text: Tensor, starts: Tensor, length: int) -> Tensor:
    """Return the sequences [R, length + 1] int64 that start at tokens [R] of a text [N]."""
    return text[starts[:, None] + torch.arange(length + 1)].long()


UNIFORM_BITS = 8.0  # per byte, of the uniform distribution; also the result of a diverged model
_ROWS = 64  # of one forward pass in `bits_per_byte`
# Streams of `streamed_loss`: shorter ones would be dominated by their beginnings, where little is known.
_MAX_STREAMS, _MIN_STREAM_TOKENS, _PASS_TOKENS = 64, 512, 128
_EMBEDDING = "embedding"  # in the names of embedding tables, which Muon does not update (Jordan et al. 2024)
_MUON_MOMENTUM = 0.95

BatchOrder = Literal["random", "contiguous"]


class LanguageDivergedError(DivergedError):
    """The training loss or its gradient is not finite, or the loss is too large to recover from."""


@dataclass(frozen=True)
class LanguageTraining:
    """Options of a training."""

    num_steps: int = 300
    seconds: float | None = None  # CPU time; if set, it ends `training_steps` instead of num_steps
    rows: int = 16
    sequence_length: int = 64
    learning_rate: float = 0.005  # maximum
    schedule: Literal["cosine", "linear", "trapezoid", "constant"] = "cosine"
    warm_up: float = 0.1  # share of the training in which the learning rate rises
    last_rate: float = 0.1  # share of the maximum learning rate at the end
    optimiser: Literal["adam", "adamw", "muon"] = "adam"
    weight_decay: float = 0.0  # decoupled, of adamw and muon
    max_gradient_norm: float = 1.0
    accumulation: int = 1  # batches of one step
    precision: Precision = "float32"  # of matrix products
    batches: BatchOrder = "random"  # contiguous: the state passes from batch to batch

    def rate(self, done: float) -> float:
        """Return the learning rate after a fraction of the training."""
        return self.learning_rate * self.rates.factor(done)

    @property
    def rates(self) -> Schedule:
        """The schedule; the first rate is that of a hundredth of the training before its start."""
        first = 0.01 / (self.warm_up + 0.01)
        return Schedule.named(self.schedule, warmup=self.warm_up, first=first, last=self.last_rate)


@dataclass(frozen=True)
class Progress:
    """State after one step."""

    step: int  # from 1
    loss: float  # nats per token of its batch, before the step
    seconds: float  # CPU seconds of all steps so far, without the time of the caller


@dataclass(frozen=True)
class Step:
    """Figures of one step."""

    loss: float  # nats per token, before the step
    gradient_norm: float  # before clipping
    rate: float  # learning rate


class LanguageSteps:
    """The steps of one training: optimiser, places in the text and number of steps."""

    def __init__(
        self, model: nn.Module, text: Tensor, *, options: LanguageTraining, generator: torch.Generator
    ) -> None:
        """Begin a training in place.

        Args:
            model: maps tokens [R, T], and with contiguous batches a state, to logits [R, T, V] and a state.
            text: [N] tokens, more than a sequence.
            options: of the training; `num_steps` and `seconds` are those of the caller.
            generator: of the random places.
        """
        self.model, self.options, self.generator = model, options, generator
        self.batches = BATCHES[options.batches](text, rows=options.rows, length=options.sequence_length)
        self.optimisation = Steps(
            _optimisers(model, options),
            list(model.parameters()),
            schedule=options.rates,
            max_norm=options.max_gradient_norm,
        )
        self._device = next(model.parameters()).device

    @property
    def step(self) -> int:
        """The number of steps done."""
        return self.optimisation.number

    def take(self, done: float) -> Step:
        """Take one step after a fraction of the training.

        Raises:
            LanguageDivergedError: the loss is not finite or too large, or the gradient not finite; the weights are
                those before the step.
        """
        loss, norm = self.optimisation.compute_gradients(self._differentiate)
        LanguageDivergedError.check(loss, f"step {self.step}")
        norm = math.nan if norm is None else float(norm)
        if not math.isfinite(norm):
            raise LanguageDivergedError(f"step {self.step}: expected a finite gradient, got one of norm {norm:g}")
        self.optimisation.update(done)
        return Step(loss, norm, self.options.rate(done))

    def state_dict(self) -> dict[str, Any]:
        """Return the state without the weights, as tensors and plain containers."""
        generator = self.generator.get_state()
        return {**self.optimisation.state_dict(), "generator": generator, "batches": self.batches.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`: the next step is the same, bit for bit."""
        self.optimisation.load_state_dict(state)
        self.generator.set_state(state["generator"])
        self.batches.load_state_dict(state["batches"], self._device)

    def _differentiate(self) -> float:
        return sum(self._differentiate_batch() for _ in range(self.options.accumulation)) / self.options.accumulation

    def _differentiate_batch(self) -> float:
        rows = self.batches.next_rows(self.generator).to(self._device)
        state = self.batches.state
        with autocast(self._device, self.options.precision):
            logits, last = self.model(*((rows[:, :-1],) if state is None else (rows[:, :-1], state)))
        loss = F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        (loss / self.options.accumulation).backward()
        self.batches.pass_state(last)
        return float(loss.detach())


@dataclass(eq=False)
class LanguageModelTraining:
    """A language model and the state of its training, to train on from."""

    model: nn.Module  # maps tokens [R, T] to a tuple that starts with logits [R, T, V]
    generator: torch.Generator  # of the random places
    step: int = 0  # done
    optimiser: dict[str, Any] | None = None  # state of Adam; None before the first step
    has_diverged: bool = False
    curve: list[tuple[int, float]] = field(default_factory=list)  # measured steps, bits per byte


def training_steps(
    model: nn.Module, text: Tensor, *, options: LanguageTraining, generator: torch.Generator
) -> Iterator[Progress]:
    """Train a model in place, step by step.

    Args:
        model: maps tokens [R, T] to a tuple that starts with logits [R, T, V].
        text: [N] tokens, more than a sequence.
        options: of the training.
        generator: of the random places.

    Raises:
        LanguageDivergedError: the loss is not finite or too large.
    """
    steps = LanguageSteps(model, text, options=options, generator=generator)
    model.train()
    seconds, done = 0.0, 0.0
    while done < 1:
        start = time.process_time()
        loss = steps.take(done).loss
        seconds += time.process_time() - start
        yield Progress(steps.step, loss, seconds)
        done = steps.step / options.num_steps if options.seconds is None else seconds / options.seconds


def continue_language_model(
    training: LanguageModelTraining,
    text: Tensor,
    *,
    options: LanguageTraining,
    num_steps: int,
    measure_every: int,
    measure: Callable[[nn.Module], float],
) -> None:
    """Train a model in place with Adam up to a step of the training of `options`; stop where it diverges.

    Args:
        training: the model and its state.
        text: [N] tokens, more than a sequence.
        options: of the whole training, with random batches; its `seconds` are not used.
        num_steps: number of steps after which to stop.
        measure_every: steps between two points of the curve.
        measure: returns the bits per byte of a model for the curve.
    """
    steps = LanguageSteps(training.model, text, options=options, generator=training.generator)
    if training.optimiser is not None:
        steps.optimisation.load_state_dict({"step": training.step, "optimisers": [training.optimiser]})
    training.model.train()
    while steps.step < num_steps and not training.has_diverged:
        try:
            steps.take(steps.step / options.num_steps)
        except LanguageDivergedError:
            training.has_diverged = True
        if steps.step % measure_every == 0 and not training.has_diverged:
            training.curve.append((steps.step, measure(training.model)))
            training.model.train()
    training.step, (training.optimiser,) = steps.step, steps.optimisation.state_dict()["optimisers"]


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
        text: [N] bytes.
        sequence_length: number of predicted bytes of a sequence.
        num_bytes: total number of predicted bytes, rounded up to whole sequences, at most the length of the text.
    """
    model.eval()
    device = next(model.parameters()).device
    num = max(1, min(math.ceil(num_bytes / sequence_length), (len(text) - 1) // sequence_length))
    starts = torch.linspace(0, len(text) - sequence_length - 1, num, dtype=torch.float64).long()
    total = 0.0
    for part in starts.split(_ROWS):
        rows = rows_at(text, part, sequence_length).to(device)
        total += float(_cross_entropy(model, rows, reduction="sum").double())
    return total / (num * sequence_length * math.log(2))


@torch.no_grad()
def streamed_loss(
    model: nn.Module, text: Tensor, *, num_tokens: int, is_stopped: Callable[[], bool] = lambda: False
) -> float:
    """Return the mean cross-entropy in nats per token over evenly spaced streams, through which the state passes.

    Args:
        model: maps tokens [R, T] and a state to logits and a state.
        text: [N] tokens, at least two.
        num_tokens: predicted tokens, rounded down to equal streams, at most N - 1.
        is_stopped: asked before each pass; a stopped computation returns nan.
    """
    device = next(model.parameters()).device
    total = min(num_tokens, len(text) - 1)
    num_streams = max(1, min(_MAX_STREAMS, total // _MIN_STREAM_TOKENS))
    length = total // num_streams
    starts = torch.linspace(0, len(text) - 1 - length, num_streams, dtype=torch.float64).long()
    state, loss = None, 0.0
    with evaluating(model):
        for first in range(0, length, _PASS_TOKENS):
            if is_stopped():
                loss = math.nan
                break
            rows = rows_at(text, starts + first, min(_PASS_TOKENS, length - first)).to(device)
            logits, state = model(rows[:, :-1]) if state is None else model(rows[:, :-1], state)
            loss += float(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum").double())
    return loss / (num_streams * length)


def bits_per_byte_of(loss: float, *, num_tokens: int, num_bytes: int) -> float:
    """Return bits per byte for a mean loss in nats per token on a text of so many tokens and bytes."""
    return loss * num_tokens / num_bytes / math.log(2)


def _optimisers(model: nn.Module, options: LanguageTraining) -> list[torch.optim.Optimizer]:
    """Return the optimisers that together update every parameter once; Adam without weight decay."""
    uses_muon, decays = options.optimiser == "muon", options.optimiser != "adam"
    matrices, decayed, others = split_parameters(
        model, for_muon=lambda name, each: uses_muon and is_wide(each) and _EMBEDDING not in name, decays=decays
    )
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    settings = OptimiserOptions(
        options.optimiser, options.learning_rate, weight_decay=options.weight_decay, muon_momentum=_MUON_MOMENTUM
    )
    wide = [{"params": matrices}] if matrices else []
    # Muon comes last in checkpoints.
    return build_optimisers(wide, [group for group in groups if group["params"]], settings)[::-1]


def _cross_entropy(model: nn.Module, rows: Tensor, *, reduction: str) -> Tensor:
    """Return the cross-entropy of rows [R, T + 1], without the first byte."""
    logits = model(rows[:, :-1])[0]
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction=reduction)
