"""Sizes and costs of an rhn node (no torch).

D is the width of the node, I = 2 D the width of its feed-forward network, J = bottleneck + 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from gflownet.rhn.config import PROJECTIONS, RHNConfig


def rhn_config(size: int) -> RHNConfig:
    """Return the sizes of an rhn node of a width: the defaults of `RHNConfig`, a feed-forward network twice as wide."""
    return RHNConfig(hidden_size=size, intermediate_size=2 * size, depth=1)


def projections(config: RHNConfig) -> Iterator[tuple[str, int, int]]:
    """Yield name, input width and output width of the three projections."""
    for name, (size_in, size_out) in zip(PROJECTIONS, config.projection_sizes, strict=True):
        yield name, size_in, size_out


def rhn_matrix_multiply_adds(size: int) -> int:
    """Return the multiply-adds of matrix products of one step of one row."""
    return rhn_config(size).step_multiply_adds


def rhn_elementwise(size: int) -> int:
    """Return the approximate number of elementwise operations of one step of one row: norms, gates and scales."""
    config = rhn_config(size)
    of_projections = sum((3 * config.rank + 6) * size_out for _, _, size_out in projections(config))
    return 8 * size + 3 * config.bottleneck + 4 * config.intermediate_size + of_projections
