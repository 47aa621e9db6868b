"""What a stack of recurrent layers is made of: RHN, GRU and LSTM cells, one after the other, of one width."""

from __future__ import annotations

import math
from dataclasses import dataclass

CELLS = ("rhn", "gru", "lstm")
REPEAT = "repeat"  # in place of a cell: the layer before once more, with the same weights
PROJECTIONS = ("gate", "up", "down")  # of a feed-forward network, those that an RHN may adapt


@dataclass(frozen=True)
class StackLayer:
    """One layer; all but the cell is for RHN layers alone.

    Raises:
        ValueError: an unknown cell or projection, or a size that is none.
    """

    cell: str = "rhn"  # of CELLS, or REPEAT
    rank: int = 4  # of the adapters
    projections: tuple[str, ...] = PROJECTIONS  # those that are adapted, in this order
    beta: bool = True  # whether the gate's pre-activation is adapted
    ratio: float = 2.0  # of the feed-forward network's width to the layer's

    def __post_init__(self) -> None:
        """Check every field."""
        object.__setattr__(self, "projections", tuple(self.projections))  # JSON has lists
        if self.cell not in (*CELLS, REPEAT):
            raise ValueError(f"cell: expected one of {', '.join((*CELLS, REPEAT))}, got {self.cell!r}")
        if self.projections != tuple(name for name in PROJECTIONS if name in self.projections):
            raise ValueError(f"projections: expected some of {', '.join(PROJECTIONS)} in order, got {self.projections}")
        if self.rank < 1 or not (math.isfinite(self.ratio) and self.ratio > 0):
            raise ValueError(f"layer: expected rank >= 1 and ratio > 0, got {self.rank} and {self.ratio}")

    def intermediate_size(self, width: int) -> int:
        """Return the width of the feed-forward network."""
        return max(1, round(self.ratio * width))


@dataclass(frozen=True)
class StackConfig:
    """Layers of one width between an embedding and the unembedding that shares its weights.

    Raises:
        ValueError: no layer, a first layer that repeats, or a size below 1.
    """

    layers: tuple[StackLayer, ...]
    width: int = 64
    vocabulary_size: int = 256  # one token per byte
    bottleneck: int = 16  # of RHN layers, between a state and the heads that write the adapters
    epsilon: float = 1e-6  # of the RMS norms

    def __post_init__(self) -> None:
        """Check layers and sizes; layers may come as the dicts that a checkpoint holds."""
        layers = tuple(StackLayer(**layer) if isinstance(layer, dict) else layer for layer in self.layers)
        object.__setattr__(self, "layers", layers)
        if not self.layers or self.layers[0].cell == REPEAT:
            got = "one that repeats" if self.layers else "none"
            raise ValueError(f"layers: expected a first one with a cell of its own, got {got}")
        for name in ("width", "vocabulary_size", "bottleneck"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon: expected a number > 0, got {self.epsilon}")

    @property
    def owners(self) -> tuple[int, ...]:
        """For each layer the place of the one whose weights it has: its own, or that which it repeats."""
        owners: list[int] = []
        for place, layer in enumerate(self.layers):
            owners.append(owners[-1] if layer.cell == REPEAT else place)
        return tuple(owners)

    @property
    def state_width(self) -> int:
        """Numbers that a layer carries from token to token; an LSTM has two vectors, the others are padded."""
        return self.width * (2 if any(layer.cell == "lstm" for layer in self.layers) else 1)
