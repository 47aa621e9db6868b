"""The sizes of a Recurrent Hyper Network, and named ones from tiny to 100 million parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

# How an adapted row W_o + B_o A is scaled: "dora" to the length ||W_o|| (1 + delta_o) (Liu et al. 2024), "none" by the
# factor 1 + delta_o alone.
Norm = Literal["dora", "none"]


@dataclass(frozen=True)
class RHNConfig:
    """Sizes of a network.

    Raises:
        ValueError: a size below 1, an epsilon that is not positive, or an unknown norm.
    """

    vocabulary_size: int = 256  # one token per byte
    hidden_size: int = 64
    intermediate_size: int = 128
    depth: int = 4
    rank: int = 4  # of the adapters
    bottleneck: int = 16  # width between a state and the heads that write the adapters
    tied: bool = True  # the unembedding is the embedding
    epsilon: float = 1e-6  # of the RMS norms
    norm: Norm = "dora"

    def __post_init__(self) -> None:
        """Check every size."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("tied", "epsilon", "norm") and value < 1:
                raise ValueError(f"{field.name}: expected at least 1, got {value}")
        if not self.epsilon > 0:
            raise ValueError(f"epsilon: expected a number > 0, got {self.epsilon}")
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm: expected one of {', '.join(get_args(Norm))}, got {self.norm!r}")


CONFIGS = {
    "tiny": RHNConfig(hidden_size=32, intermediate_size=64, depth=2),
    "small": RHNConfig(),
    "medium": RHNConfig(hidden_size=128, intermediate_size=256, depth=8, rank=8),
    "large": RHNConfig(hidden_size=256, intermediate_size=512, depth=12, rank=8),
    "100m": RHNConfig(vocabulary_size=32000, hidden_size=768, intermediate_size=2048, depth=14),
}
