"""The networks that an RHN is timed on, and how many multiply-adds one of their cells takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.network import RHN


@dataclass(frozen=True)
class Case:
    """A network and how much it reads at once."""

    hidden: int
    intermediate: int
    depth: int
    rank: int
    tokens: int
    rows: int

    def network(self) -> RHN:
        """Return a network whose adapters do something."""
        torch.manual_seed(0)
        sizes = RHNConfig(
            hidden_size=self.hidden, intermediate_size=self.intermediate, depth=self.depth, rank=self.rank
        )
        network = RHN(sizes)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name.endswith((".b", ".delta", ".beta")):
                    parameter.normal_(std=0.05)
        return network

    def embedded(self, tokens: int | None = None) -> Tensor:
        """Return what the first layer reads, (rows, tokens, hidden); all tokens unless fewer are asked for."""
        return torch.randn(self.rows, tokens or self.tokens, self.hidden, generator=torch.Generator().manual_seed(1))

    @property
    def multiply_adds(self) -> int:
        """Of all cells, forward, as the wavefront computes them."""
        hidden, intermediate, rank = self.hidden, self.intermediate, self.rank
        features = RHNConfig.bottleneck + 1
        size_in, size_out = 2 * hidden + intermediate, 2 * intermediate + hidden
        cell = (
            3 * hidden * intermediate  # W x
            + hidden * (features - 1)
            + features * (rank * size_in + 2 * rank * size_out + size_out)  # A, B, C and magnitudes
            + rank * (rank + 1) * size_in  # A A^T and A x
            + rank * (rank + 2) * size_out  # G B, B (2 C + G B) and B A x
        )
        return cell * self.depth * self.tokens * self.rows


CASES = {
    "S": Case(hidden=64, intermediate=128, depth=4, rank=4, tokens=64, rows=8),
    "M": Case(hidden=128, intermediate=256, depth=8, rank=8, tokens=128, rows=4),
    "L": Case(hidden=256, intermediate=512, depth=12, rank=8, tokens=128, rows=1),
    "D12": Case(hidden=64, intermediate=128, depth=12, rank=4, tokens=128, rows=1),
    "D24": Case(hidden=32, intermediate=64, depth=24, rank=4, tokens=64, rows=1),
}
