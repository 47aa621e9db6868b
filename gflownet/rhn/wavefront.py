"""Layers run along the wavefront: all states with equal n + k at once, in groups whose weights stay in cache.

X_{k:n} needs X_{k:n-1} and X_{k-1:n}, both of the diagonal before its own, so that nothing else is kept.
N is the number of layers of a group, T of tokens, R of rows, H the hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gflownet.rhn.cell import CellSizes, cell
from gflownet.rhn.fold import Fold, fold
from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.products import Products

# Runs N blocks over x [T, R, H] from the state [N, R, H] of the token before, None where there is none; returns the
# last block's states of all tokens [T, R, H] and the last token's states of all blocks [N, R, H].
RunGroup = Callable[[Sequence[RHNBlock], Tensor, Tensor | None], tuple[Tensor, Tensor]]

# What the folded weights of one group may take: every diagonal reads all of them, so they should stay in cache.
GROUP_BYTES = 24 * 2**20


@dataclass(frozen=True)
class Diagonal:
    """The states with n + k = s that layers first .. first + len - 1 of a group (counted from 0) make."""

    s: int  # from 1
    first: int
    last: int  # included
    starts: bool  # whether its last layer meets the first token

    @property
    def layers(self) -> slice:
        """The layers, as an index."""
        return slice(self.first, self.last + 1)


def diagonals(num_layers: int, num_tokens: int) -> Iterator[Diagonal]:
    """Yield s = 1 .. T + N - 1."""
    for s in range(1, num_tokens + num_layers):
        yield Diagonal(s, max(0, s - num_tokens), min(num_layers, s) - 1, starts=s <= num_layers)


def sizes_of(block: RHNBlock) -> CellSizes:
    """Return the sizes of a block."""
    down = block.ffn.plain.down_proj
    return CellSizes(down.out_features, down.in_features, block.bhn.gate.a.shape[1], block.norm.epsilon)


def step(inputs: Tensor, diagonal: Diagonal, sizes: CellSizes, products: Products, *, has_state: bool) -> Tensor:
    """Return the states [n, R, H] of a diagonal from those [n + 1, R, H] of the one before that they need.

    Args:
        inputs: X_{s-1-m:m} for m from `first` to `last` + 1; layer `first` + 1 reads the first two, and so on.
        diagonal: which.
        sizes: of the blocks.
        products: by their weights.
        has_state: whether there are states from before the first token.
    """
    has_previous = None
    if diagonal.starts and not has_state:
        has_previous = inputs.new_ones(len(inputs) - 1, 1, 1)
        has_previous[-1] = 0
    return cell(inputs[:-1], inputs[1:], has_previous, sizes, products.of(diagonal.layers))


def inputs_of(diagonal: Diagonal, x: Tensor, live: Tensor) -> Tensor:
    """Return what a diagonal needs: of `live` [N, R, H], the newest state of each layer, and of the group's input x."""
    if diagonal.first == 0:
        return torch.cat([x[diagonal.s - 1].unsqueeze(0), live[: diagonal.last + 1]])
    return live[diagonal.first - 1 : diagonal.last + 1]


def run_group(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run one group under torch.autograd, which keeps what every step made; without it one diagonal is kept."""
    products, sizes = Products(fold(blocks)), sizes_of(blocks[0])
    live = x.new_zeros(len(blocks), *x.shape[1:]) if state is None else state
    outputs = []
    for diagonal in diagonals(len(blocks), len(x)):
        inputs = inputs_of(diagonal, x, live)
        new = step(inputs, diagonal, sizes, products, has_state=state is not None)
        live = torch.cat([live[: diagonal.first], new, live[diagonal.last + 1 :]])
        if diagonal.last == len(blocks) - 1:
            outputs.append(new[-1])
    return torch.stack(outputs), live


def layers_per_group(blocks: Sequence[RHNBlock]) -> int:
    """Return how many layers' folded weights stay in cache, spread evenly over as few groups as that takes."""
    with torch.no_grad(), torch.device("meta"):
        weights = fold([blocks[0]])
    num_bytes = sum(getattr(weights, field.name).nbytes for field in fields(Fold))
    num_groups = math.ceil(len(blocks) / max(1, GROUP_BYTES // num_bytes))
    return math.ceil(len(blocks) / num_groups)


def run_in_groups(
    blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None, *, layers: int, run: RunGroup
) -> tuple[Tensor, Tensor]:
    """Run group after group of so many layers: what a `Stack` takes and returns."""
    dtype = x.dtype
    x = x.transpose(0, 1).to(torch.promote_types(dtype, torch.float32))
    last_states = []
    for first in range(0, len(blocks), layers):
        group = slice(first, first + layers)
        x, last = run(blocks[group], x, None if state is None else state[group].to(x.dtype))
        last_states.append(last)
    return x.transpose(0, 1).to(dtype), torch.cat(last_states).to(dtype)


@dataclass(frozen=True)
class Wavefront:
    """Runs layers along the wavefront; a `Stack` with the same numbers and gradients as `layer_by_layer`."""

    layers: int | None = None  # per group; None: as many as stay in cache

    def __call__(self, blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what the last block makes of x [R, T, H], and the last token's states [depth, R, H]."""
        return run_in_groups(blocks, x, state, layers=self.layers or layers_per_group(blocks), run=run_group)
