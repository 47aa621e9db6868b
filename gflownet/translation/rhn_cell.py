"""The cell of an rhn node: one step of it, and a chain of them over whole sequences along the wavefront.

x is what the node aggregates, its pre-activation; the result is x plus the adapted feed-forward network of it. B is the
batch, T the number of time steps, N of nodes in a chain, D their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.rhn.cell import cell
from gflownet.rhn.fold import fold, sizes_of
from gflownet.rhn.layers import Adapter, Adapters, RHNBlock
from gflownet.rhn.wavefront import Diagonal, diagonals


def rhn_step(block: RHNBlock, x: Tensor, state: Tensor, token: Tensor) -> Tensor:
    """Return the node's output [B, D], which is its new state.

    Args:
        block: the node's weights.
        x: [B, D].
        state: [B, D], the output of the step before; anything finite where there was none.
        token: [B, 1], 1 where there was a step before, 0 where not: no adapter then, the plain feed-forward network.
    """
    made = block.bhn(state)
    gate, up, down = (
        Adapter(each.a, each.b * token.unsqueeze(-1), each.delta * token) for each in (made.gate, made.up, made.down)
    )
    return x + block.ffn(block.norm(x), Adapters(gate, up, down, made.beta * token))


@dataclass(frozen=True)
class Links:
    """How each node of a chain but the first reads the one before: weight * (P x) + bias."""

    weights: Sequence[Tensor]  # 0-d each
    projections: Sequence[Tensor | None]  # [D, D] each, None where there is none
    biases: Sequence[Tensor]  # 0-d each


def rhn_chain(
    blocks: Sequence[RHNBlock], links: Links, x: Tensor, states: Sequence[Tensor], tokens: Sequence[Tensor]
) -> list[Tensor]:
    """Return the outputs [T B, D] of every node of a chain, time by time.

    Args:
        blocks: N of them.
        links: N - 1 of each.
        x: [T B, D], the first node's pre-activation of all time steps.
        states: [B, D] each.
        tokens: [B, 1] each, as in `rhn_step`.
    """
    dtype, batch = x.dtype, len(tokens[0])
    exact = torch.promote_types(dtype, torch.float32)
    moments, live = x.view(-1, batch, x.shape[-1]).to(exact), torch.stack(list(states)).to(exact)
    weights, sizes = fold(blocks), sizes_of(blocks[0])
    matrices, biases = _matrices(links, moments), _numbers(links.biases, moments)
    outputs: list[list[Tensor]] = [[] for _ in blocks]
    for diagonal in diagonals(len(blocks), len(moments)):
        inputs = _inputs(diagonal, moments, live, matrices, biases)
        mask = _mask(diagonal, tokens[diagonal.last].to(exact)) if diagonal.starts else None
        new = cell(inputs, live[diagonal.layers], mask, sizes, weights.of(diagonal.layers))
        live = torch.cat([live[: diagonal.first], new, live[diagonal.last + 1 :]])
        for place, made in enumerate(new.unbind(0), start=diagonal.first):
            outputs[place].append(made)
    return [torch.cat(of_node).to(dtype) for of_node in outputs]


def _matrices(links: Links, like: Tensor) -> Tensor:
    """Return [N - 1, D, D], transposed, or [N - 1, 1, 1] where no edge is projected."""
    weights = _numbers(links.weights, like)
    if all(matrix is None for matrix in links.projections):
        return weights
    unit = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    stacked = [unit if matrix is None else matrix.mT.to(like.dtype) for matrix in links.projections]
    return weights * torch.stack(stacked)


def _numbers(values: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return 0-d tensors as [N - 1, 1, 1]."""
    return torch.stack([*values]).to(like.dtype).view(-1, 1, 1) if values else like.new_zeros(0, 1, 1)


def _inputs(diagonal: Diagonal, moments: Tensor, live: Tensor, matrices: Tensor, biases: Tensor) -> Tensor:
    """Return what the nodes of a diagonal aggregate, [n, B, D]."""
    between = slice(max(diagonal.first - 1, 0), diagonal.last)
    read, matrix = live[between], matrices[between]
    linked = read * matrix if matrix.shape[1:] == (1, 1) else torch.bmm(read, matrix)
    linked = linked + biases[between]
    return torch.cat([moments[diagonal.s - 1].unsqueeze(0), linked]) if diagonal.first == 0 else linked


def _mask(diagonal: Diagonal, token: Tensor) -> Tensor:
    """Return [n, B, 1]: of its nodes the last one meets the first time step."""
    ones = torch.ones_like(token).expand(diagonal.last - diagonal.first, *token.shape)
    return torch.cat([ones, token.unsqueeze(0)])
