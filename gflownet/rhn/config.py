"""Sizes of Recurrent Hyper Networks and of stacks of recurrent layers, and stacks from choices by place (no torch)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal, get_args

# Scale of an adapted row W_o + B_o A: "dora" gives it the length ||W_o|| (1 + delta_o) (Liu et al. 2024), "none"
# multiplies it by 1 + delta_o.
Norm = Literal["dora", "none"]
NOTHING = "none"  # value of a place that a stack does not have: `read_stack` reads the candidates of a search


@dataclass(frozen=True)
class RHNConfig:
    """Sizes of a network.

    Raises:
        ValueError: a size that is no whole number of at least 1, an epsilon that is not positive, or an unknown norm.
    """

    vocabulary_size: int = 256  # one token per byte
    hidden_size: int = 64
    intermediate_size: int = 128
    depth: int = 4
    rank: int = 4  # of the adapters
    bottleneck: int = 16  # width between a state and the heads that compute adapters
    epsilon: float = 1e-6  # of the RMS norms
    norm: Norm = "dora"

    def __post_init__(self) -> None:
        sizes = [field.name for field in fields(self) if field.name not in ("epsilon", "norm")]
        _check_sizes(self, *sizes)
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm: expected one of {', '.join(get_args(Norm))}, got {self.norm!r}")

    @property
    def projection_sizes(self) -> tuple[tuple[int, int], ...]:
        """Input and output width of the three projections of a feed-forward network: gate, up, down."""
        hidden, intermediate = self.hidden_size, self.intermediate_size
        return ((hidden, intermediate), (hidden, intermediate), (intermediate, hidden))

    @property
    def step_multiply_adds(self) -> int:
        """Multiply-adds of the matrix products of one layer for one token after the first."""
        width, rank = self.bottleneck + 1, self.rank
        total = self.hidden_size * self.bottleneck
        for size_in, size_out in self.projection_sizes:
            heads = width * (rank * (size_in + size_out) + size_out)
            norm = rank * size_in * size_out + rank * rank * (size_in + size_out)
            total += heads + norm + size_in * size_out + rank * (size_in + size_out)
        return total


GATED_CELLS = ("gru", "lstm")
CELLS = ("rhn", *GATED_CELLS)
REPEAT = "repeat"  # in place of a cell: the previous layer once more, with the same weights
PROJECTIONS = ("gate", "up", "down")  # of a feed-forward network


@dataclass(frozen=True)
class StackLayer:
    """One layer of a stack.

    `rank`, `projections`, `beta` and `ratio` apply to RHN layers only, `residual` and `units` to GRU and LSTM layers.

    Raises:
        ValueError: an unknown cell or projection, a size out of bounds, or residual=False or units of another cell.
    """

    cell: str = "rhn"  # of CELLS, or REPEAT
    rank: int = 4  # of the adapters
    projections: tuple[str, ...] = PROJECTIONS  # adapted projections, in this order
    beta: bool = True  # whether the gate's pre-activation is adapted
    ratio: float = 2.0  # width of the feed-forward network / width of the layer
    residual: bool = True  # whether the input is added to the output; always in RHN layers
    units: int | None = None  # width of the recurrent state, projected back to the stack's width; None: equal to it

    def __post_init__(self) -> None:
        if not isinstance(self.projections, list | tuple):
            raise ValueError(f"projections: expected a list of {', '.join(PROJECTIONS)}, got {self.projections!r}")
        object.__setattr__(self, "projections", tuple(self.projections))  # JSON has lists
        _check_switches(self, "beta", "residual")
        if self.cell not in (*CELLS, REPEAT):
            raise ValueError(f"cell: expected one of {', '.join((*CELLS, REPEAT))}, got {self.cell!r}")
        if self.projections != tuple(name for name in PROJECTIONS if name in self.projections):
            raise ValueError(f"projections: expected some of {', '.join(PROJECTIONS)} in order, got {self.projections}")
        if not (_is_whole(self.rank) and self.rank >= 1 and _is_positive(self.ratio)):
            raise ValueError(f"layer: expected a whole rank >= 1 and ratio > 0, got {self.rank!r} and {self.ratio!r}")
        if self.units is not None and not (_is_whole(self.units) and self.units >= 1):
            raise ValueError(f"units: expected a whole number, at least 1, got {self.units!r}")
        if self.cell not in GATED_CELLS and (not self.residual or self.units is not None):
            expected = f"expected residual=True and no units in a layer of cell {self.cell!r}"
            raise ValueError(f"layer: {expected}, got {self.residual} and {self.units}")

    def intermediate_size(self, width: int) -> int:
        """Return the width of the feed-forward network."""
        return max(1, round(self.ratio * width))

    def state_width(self, width: int) -> int:
        """Return the width of the layer's state in a stack of a width: an LSTM has two vectors."""
        units = self.units or width
        return 2 * units if self.cell == "lstm" else units


@dataclass(frozen=True)
class StackConfig:
    """Layers of one width between an embedding and the unembedding that shares its weights.

    A layer may be given as the values of a `StackLayer` or as the name of its cell.

    Raises:
        ValueError: no layer, a first layer that repeats, another object in place of a layer, or a size that is no whole
            number of at least 1.
    """

    layers: tuple[StackLayer, ...]
    width: int = 64
    vocabulary_size: int = 256  # one token per byte
    bottleneck: int = 16  # of RHN layers, between a state and the heads that compute adapters
    epsilon: float = 1e-6  # of the RMS norms

    def __post_init__(self) -> None:
        if not isinstance(self.layers, list | tuple):
            raise ValueError(f"layers: expected a list of layers, got {self.layers!r:.80}")
        layers = tuple(_layer_of(layer) for layer in self.layers)
        object.__setattr__(self, "layers", layers)  # a checkpoint holds dicts
        if not self.layers or self.layers[0].cell == REPEAT:
            got = f"{REPEAT!r} first" if self.layers else "none"
            raise ValueError(f"layers: expected at least one layer, the first one with a cell, got {got}")
        _check_sizes(self, "width", "vocabulary_size", "bottleneck")

    @property
    def owners(self) -> tuple[int, ...]:
        """Index of the layer that holds the weights of each layer: its own index, or the repeated layer's."""
        owners: list[int] = []
        for place, layer in enumerate(self.layers):
            owners.append(owners[-1] if layer.cell == REPEAT else place)
        return tuple(owners)

    @property
    def state_width(self) -> int:
        """Width of the widest state of a layer; the states of other layers are padded to this width."""
        return max(self.layers[owner].state_width(self.width) for owner in self.owners)


def stack_words(config: StackConfig) -> str:
    """Return a stack in words, first layer first, for example "gru 128 x2 > rhn 128 rank 4".

    "x2" counts a layer and its repetitions. Options with the default of `StackLayer` are left out.
    """
    words = []
    for place, layer in enumerate(config.layers):
        times = config.owners.count(place)
        if times:
            words.append(" ".join([*_layer_words(layer, config.width), *([f"x{times}"] if times > 1 else [])]))
    return " > ".join(words)


def _layer_words(layer: StackLayer, width: int) -> Iterator[str]:
    yield f"{layer.cell} {width}"
    if layer.cell in GATED_CELLS:
        if layer.units is not None:
            yield f"units {layer.units}"
        if not layer.residual:
            yield "residual off"
        return
    yield f"rank {layer.rank}"
    if layer.projections != PROJECTIONS:
        yield "+".join(layer.projections) or "unadapted"
    if not layer.beta:
        yield "beta off"
    if round(layer.ratio, 1) != StackLayer.ratio:  # a budget of parameters changes a ratio by a few units
        yield f"ratio {round(layer.ratio, 1):g}"


def _layer_of(layer: Any) -> StackLayer:
    """Return a layer, which a file gives as the name of its cell or as an object."""
    keys = [field.name for field in fields(StackLayer)]
    match layer:
        case StackLayer():
            return layer
        case str():
            return StackLayer(layer)
        case dict():
            unknown = [key for key in layer if key not in keys]
            if unknown:
                raise ValueError(f"layers: expected objects with {', '.join(keys)}, got one with {unknown[0]!r}")
            return StackLayer(**layer)
    raise ValueError(f"layers: expected names of cells, or objects with {', '.join(keys)}, got {layer!r:.80}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _check_sizes(config: RHNConfig | StackConfig, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not _is_whole(value):
            raise ValueError(f"{name}: expected a whole number, got {value!r:.80}")
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if not _is_positive(config.epsilon):
        raise ValueError(f"epsilon: expected a number > 0, got {config.epsilon!r:.80}")


def _check_switches(config: StackLayer, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(config, name), bool):
            raise ValueError(f"{name}: expected true or false, got {getattr(config, name)!r:.80}")


CONFIGS = {
    "tiny": RHNConfig(hidden_size=32, intermediate_size=64, depth=2),
    "small": RHNConfig(),
    "medium": RHNConfig(hidden_size=128, intermediate_size=256, depth=8, rank=8),
    "large": RHNConfig(hidden_size=256, intermediate_size=512, depth=12, rank=8),
    "100m": RHNConfig(vocabulary_size=32000, hidden_size=768, intermediate_size=2048, depth=14),
}


def read_stack(choices: Mapping[str, Any], *, width: int = 1, bottleneck: int = 16) -> StackConfig:
    """Return a finished stack.

    Args:
        choices: values by place: width, rank, ratio, cell[1], projections[1], beta[1], cell[2].
            "none" or a missing place: not a choice of this stack.
        width: of a stack without a choice of its width.
        bottleneck: of RHN layers.

    Raises:
        ValueError: an invalid or unfinished stack.
    """
    values = {name: str(value) for name, value in choices.items() if value != NOTHING}
    layers = []
    while f"cell[{len(layers) + 1}]" in values:
        layers.append(_layer(values, f"[{len(layers) + 1}]"))
    return StackConfig(tuple(layers), width=int(values.get("width", width)), bottleneck=bottleneck)


def _layer(values: Mapping[str, str], place: str) -> StackLayer:
    cell = values["cell" + place]
    if cell != "rhn":
        return StackLayer(cell)
    missing = [name for name in ("rank", "ratio", "projections" + place, "beta" + place) if name not in values]
    if missing:
        raise ValueError(f"cell{place}: expected {', '.join(missing)} of an rhn layer, got none")
    return StackLayer(
        cell,
        rank=int(values["rank"]),
        projections=tuple(values["projections" + place].split("+")),
        beta=values["beta" + place] == "on",
        ratio=float(values["ratio"]),
    )
