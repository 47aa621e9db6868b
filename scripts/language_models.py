"""Language models of equal numbers of parameters: RHNs, recurrent stacks, narrow GRUs, transformers.

R is the number of rows, T of tokens, W the width, D the width of an attention head.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.envs.skeleton import read_steps
from gflownet.errors import UserError
from gflownet.evaluation.candidates.language import (
    UNIFORM_BITS,
    LanguageDivergedError,
    LanguageTraining,
    bits_per_byte,
    training_steps,
)
from gflownet.evaluation.data.byte_text import ByteText
from gflownet.rhn.cell_network import CellConfig, CellNetwork, largest_cell
from gflownet.rhn.checkpoint import model_of
from gflownet.rhn.config import RHNConfig, StackConfig, StackLayer
from gflownet.rhn.layers import RMSNorm, embedding_table
from gflownet.rhn.network import RHN, RecurrentStack, fit_parameters
from tasks.language import block_graph

HEADS = 4
_ROTARY_BASE = 10_000.0  # Su et al. 2021, section 3.2.2
_EPSILON = 1e-6
_MAX_WIDTH = 1024

Make = Callable[[], nn.Module]


@dataclass(frozen=True)
class Form:
    """A model of fixed sizes."""

    name: str
    make: Make  # maps tokens [R, T] to a tuple that starts with logits [R, T, V]
    num_parameters: int
    state_floats: int  # of one sequence; of a transformer those of one token, times the length of the context


def form(name: str, make: Make, state_floats: int) -> Form:
    """Return a form with its number of parameters."""
    return Form(name, make, parameters_of(make), state_floats)


def parameters_of(make: Make) -> int:
    """Return the number of parameters of a model without initialising it."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


def nearest(make: Callable[[int], nn.Module], widths: range, num_parameters: int) -> int:
    """Return the width whose number of parameters is nearest."""
    place = bisect_left(widths, num_parameters, key=lambda width: parameters_of(partial(make, width)))
    candidates = widths[max(0, place - 1) : place + 1]
    return min(candidates, key=lambda width: abs(parameters_of(partial(make, width)) - num_parameters))


def rhn(num_parameters: int, config: RHNConfig, *, ratio: float = 2.0) -> Form:
    """Return an RHN with the depth, rank, bottleneck and norm of a config; `ratio` is intermediate / hidden."""

    def sized(width: int) -> RHNConfig:
        return replace(config, hidden_size=width, intermediate_size=round(ratio * width))

    width = nearest(lambda width: RHN(sized(width)), range(4, _MAX_WIDTH), num_parameters)
    norm = "" if config.norm == "dora" else " no norm"
    name = f"rhn {config.depth} x {width} rank {config.rank} bottleneck {config.bottleneck}{norm}"
    return form(name, partial(RHN, sized(width)), config.depth * width)


def stack(num_parameters: int, layers: tuple[StackLayer, ...], *, vocabulary_size: int = 256) -> Form:
    """Return a stack of recurrent layers."""
    config = fit_parameters(StackConfig(layers, vocabulary_size=vocabulary_size), num_parameters)
    cells = " > ".join(layer.cell if layer.cell != "rhn" else f"rhn rank {layer.rank}" for layer in layers)
    widths = (config.width * (2 if layer.cell == "lstm" else 1) for layer in layers)
    return form(f"{cells}, width {config.width}", partial(RecurrentStack, config), sum(widths))


def from_search(path: Path) -> Form:
    """Return the best recurrent stack of a search: the first entry of its top_architectures.json.

    Raises:
        UserError: the entry describes no language model.
    """
    entry = json.loads(path.read_text(encoding="utf-8"))[0]
    if "language_model" not in entry:
        raise UserError(f"{path}: rank 0 is not a language model: expected the field language_model")
    make = partial(model_of, entry["language_model"], str(path))
    with torch.device("meta"):
        return form(entry["words"], make, math.prod(make().state_shape))


def narrow_state(num_parameters: int, *, state: int, depth: int = 1, vocabulary_size: int = 256) -> Form:
    """Return GRU layers of `state` units, a feed-forward network after each, in the widest residual stream."""
    network = {"name": "feed_forward", "expansion": 2, "gated": True, "activation": "silu", "bias": False}
    declared = {"gru": [{"name": "gru", "features": state, "carry": True}, {"name": "linear", "bias": False}]}
    steps = {name: read_steps(each, name) for name, each in {**declared, "network": network}.items()}

    def at(width: int) -> CellConfig:
        blocks = {name: block_graph(each, width) for name, each in steps.items()}
        return CellConfig(blocks, [*blocks], repeat=depth, vocabulary_size=vocabulary_size)

    config = largest_cell(at, num_parameters)
    name = f"gru {depth} x {state} and feed-forward, width {config.width}"
    return form(name, partial(CellNetwork, config), depth * state)


class AttentionBlock(nn.Module):
    """Causal self-attention with rotary positions and a SwiGLU network, each on a normalised residual stream."""

    def __init__(self, width: int, depth: int, intermediate: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(RMSNorm(width, _EPSILON) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.entry = nn.Linear(width, 2 * intermediate, bias=False)
        self.exit = nn.Linear(intermediate, width, bias=False)
        for inner in (self.qkv, self.entry):
            nn.init.normal_(inner.weight, std=width**-0.5)
        for last in (self.mix, self.exit):
            nn.init.normal_(last.weight, std=(last.in_features * 2 * depth) ** -0.5)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return x [R, T, W] after both; `rotation` is the cosine and sine [T, D / 2] of the positions."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads.unbind(0)
        queries, keys = rotated(queries, rotation), rotated(keys, rotation)
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        gate, up = self.entry(self.norms[1](x)).chunk(2, -1)
        return x + self.exit(F.silu(gate) * up)


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the halves of heads [R, heads, T, D] by their positions (Su et al. 2021, equation 34)."""
    cosine, sine = rotation
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class Transformer(nn.Module):
    """A decoder with rotary positions and an unembedding that shares the weights of the embedding."""

    def __init__(self, width: int, *, depth: int, intermediate: int, vocabulary_size: int = 256) -> None:
        super().__init__()
        self.embedding = embedding_table(vocabulary_size, width)
        self.blocks = nn.ModuleList(AttentionBlock(width, depth, intermediate) for _ in range(depth))
        self.norm = RMSNorm(width, _EPSILON)
        self._half = width // HEADS // 2

    def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
        """Return the logits [R, T, V]; there is no state to continue from."""
        rates = _ROTARY_BASE ** -(torch.arange(self._half, device=tokens.device) / self._half)
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * rates
        rotation, x = (angles.cos(), angles.sin()), F.embedding(tokens, self.embedding)
        for block in self.blocks:
            x = block(x, rotation)
        return F.linear(self.norm(x), self.embedding), None


def transformer(num_parameters: int, *, depth: int, vocabulary_size: int = 256) -> Form:
    """Return a transformer whose feed-forward networks are about twice as wide as the residual stream."""
    make = partial(Transformer, depth=depth, vocabulary_size=vocabulary_size)
    widths = range(2 * HEADS, _MAX_WIDTH, 2 * HEADS)
    width = nearest(lambda width: make(width, intermediate=2 * width), widths, num_parameters)
    size = nearest(lambda size: make(width, intermediate=size), range(1, 4 * _MAX_WIDTH), num_parameters)
    return form(f"transformer {depth} x {width}", partial(make, width, intermediate=size), 2 * depth * width)


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
