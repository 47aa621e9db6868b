"""Layers run along the wavefront: all states with equal n + k at once, in groups whose weights stay in cache.

X_{k:n} needs X_{k:n-1} and X_{k-1:n}, both of the diagonal before its own, so that nothing else is kept.
N is the number of layers of a group, T of tokens, R of rows, H the hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gflownet.rhn.diagonal import DiagonalStep, Frame
from gflownet.rhn.diagonal_gradient import StepGradient
from gflownet.rhn.fold import BlockSizes, Fold, fold, folded_bytes, sizes_of
from gflownet.rhn.layers import RHNBlock
from gflownet.rhn.weight_gradients import WeightGradients

# What the folded weights of one group may take: every diagonal reads all of them, so they should stay in cache. In that
# of a core if so many layers fit that the steps of more groups pay, else in that which cores share.
CORE_BYTES, FEWEST_LAYERS = 1600 * 2**10, 3
GROUP_BYTES = 24 * 2**20


class Diagonal(NamedTuple):
    """The states with n + k = s that layers first .. last of a group (counted from 0) make."""

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


@dataclass(frozen=True)
class GroupStates:
    """What a group of layers made."""

    outputs: Tensor  # [T, R, H], of the last layer
    last: Tensor  # [N, R, H], of the last token
    diagonals: Tensor  # [D, N + 1, R, H], the states of diagonal s at s % D, the group's input first


def run_diagonals(
    weights: Fold, sizes: BlockSizes, x: Tensor, state: Tensor | None, *, keep: bool = False
) -> GroupStates:
    """Return the states of a group of layers, made without a gradient.

    Args:
        weights: of the N layers.
        sizes: of the blocks.
        x: [T, R, H], what the first layer reads.
        state: [N, R, H] of the token before the first; None where there is none.
        keep: whether all diagonals are kept, not only the last two.
    """
    num_layers, (num_tokens, rows, hidden) = len(weights.exit), x.shape
    states = x.new_zeros(num_tokens + num_layers if keep else 2, num_layers + 1, rows, hidden)
    outputs = states[num_layers:, -1] if keep else torch.empty_like(x)
    made = GroupStates(outputs, x.new_empty(num_layers, rows, hidden), states)
    with torch.inference_mode():  # a tenth of the time of small layers; what is returned was made outside
        _fill(made, DiagonalStep(sizes, weights, rows), x, state, keep=keep)
    return made


def _fill(made: GroupStates, step: DiagonalStep, x: Tensor, state: Tensor | None, *, keep: bool) -> None:
    """Run the diagonals: a layer not begun makes 0 of 0, and what one makes that is done goes nowhere."""
    num_layers, num_tokens, count = len(made.last), len(x), len(made.diagonals)
    frames, tokens, ends = [Frame.of(part) for part in made.diagonals.unbind(0)], x.unbind(0), made.outputs.unbind(0)
    for diagonal in diagonals(num_layers, num_tokens):
        before, own = frames[(diagonal.s - 1) % count], frames[diagonal.s % count]
        if diagonal.first == 0:
            before.first.copy_(tokens[diagonal.s - 1])
        if diagonal.starts and state is not None:
            before.states[diagonal.s] = state[diagonal.last]
        step.forward(before, own.made, diagonal.last if diagonal.starts and state is None else None)
        if diagonal.last == num_layers - 1 and not keep:
            ends[diagonal.s - num_layers].copy_(own.last)
        if diagonal.s >= num_tokens:
            made.last[diagonal.first] = own.made[diagonal.first]


@dataclass(frozen=True)
class GroupGradients:
    """What `differentiate` makes."""

    x: Tensor  # [T, R, H]
    state: Tensor  # [N, R, H], of the token before the first
    weights: Fold


def differentiate(
    weights: Fold, sizes: BlockSizes, states: Tensor, grad_outputs: Tensor, grad_last: Tensor, *, has_state: bool
) -> GroupGradients:
    """Return the gradients of what a group of layers reads.

    Args:
        weights: of the N layers.
        sizes: of the blocks.
        states: [T + N, N + 1, R, H], all diagonals as `run_diagonals` kept them.
        grad_outputs: [T, R, H].
        grad_last: [N, R, H].
        has_state: whether there is a state before the first token.
    """
    rows = grad_last.shape[1]
    gradients, grad_x, grad_state = WeightGradients(weights, rows), torch.empty_like(grad_outputs), grad_last.clone()
    with torch.inference_mode():
        backward = StepGradient(DiagonalStep(sizes, weights, rows), gradients)
        for diagonal, live in _gradients_of_states(backward, states, grad_outputs, grad_last, has_state=has_state):
            if diagonal.first == 0:
                grad_x[diagonal.s - 1] = live.first
            if diagonal.starts:
                grad_state[diagonal.last] = live.made[diagonal.last]
    return GroupGradients(grad_x, grad_state, gradients.total())


def _gradients_of_states(
    backward: StepGradient, states: Tensor, grad_outputs: Tensor, grad_last: Tensor, *, has_state: bool
) -> Iterator[tuple[Diagonal, Frame]]:
    """Yield each diagonal, last one first, and the gradients of the states before it.

    Each is made once more from the states of the one before and differentiated by itself. Layers that are done, or not
    begun, have gradients of 0.
    """
    num_layers, num_tokens = len(grad_last), len(grad_outputs)
    live, before = (Frame.of(torch.zeros_like(states[0])) for _ in range(2))
    made = torch.empty_like(grad_last)
    for diagonal in reversed(list(diagonals(num_layers, num_tokens))):
        first_token = diagonal.last if diagonal.starts and not has_state else None
        if diagonal.last == num_layers - 1:
            live.last.add_(grad_outputs[diagonal.s - num_layers])
        if diagonal.s >= num_tokens:
            live.made[diagonal.first] += grad_last[diagonal.first]
        backward.step.forward(Frame.of(states[diagonal.s - 1]), made, first_token)
        backward.backward(live, before, first_token)
        live, before = before, live
        yield diagonal, live
        if diagonal.starts:
            live.made[diagonal.last] = 0


class _Group(torch.autograd.Function):
    """One group of layers, of which the states alone are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        made = run_diagonals(fold(blocks), sizes_of(blocks[0]), x, state, keep=True)
        ctx.blocks, ctx.has_state = blocks, state is not None
        # Parameters too, so that torch notices when they are changed before the backward pass.
        ctx.save_for_backward(made.diagonals, *parameters)
        return made.outputs, made.last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        states, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            weights = fold(ctx.blocks)
        grads = differentiate(
            weights.detach(), sizes_of(ctx.blocks[0]), states, grad_outputs, grad_last, has_state=ctx.has_state
        )
        asked = [parameter for parameter in parameters if parameter.requires_grad]
        pairs = zip(weights.tensors, grads.weights.tensors, strict=True)
        made = [pair for pair in pairs if pair[0].requires_grad]  # those that a parameter that is not held is in
        found = iter(
            torch.autograd.grad([pair[0] for pair in made], asked, [pair[1] for pair in made]) if asked else ()
        )
        by_parameter = (next(found) if parameter.requires_grad else None for parameter in parameters)
        return None, grads.x, grads.state if ctx.has_state else None, *by_parameter


def layers_per_group(blocks: Sequence[RHNBlock]) -> int:
    """Return how many layers' folded weights stay in cache, spread evenly over as few groups as that takes."""
    num_bytes = folded_bytes(blocks[0])
    layers = CORE_BYTES // num_bytes
    most = layers if layers >= FEWEST_LAYERS else max(1, GROUP_BYTES // num_bytes)
    return math.ceil(len(blocks) / math.ceil(len(blocks) / most))


@dataclass(frozen=True)
class Wavefront:
    """Runs layers along the wavefront; a `Stack` with the same numbers and gradients as `layer_by_layer`."""

    layers: int | None = None  # per group; None: as many as stay in cache

    def __call__(self, blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what the last block makes of x [R, T, H], and the last token's states [depth, R, H]."""
        layers, dtype = self.layers or layers_per_group(blocks), x.dtype
        x = x.transpose(0, 1).to(torch.promote_types(dtype, torch.float32))
        last_states = []
        for first in range(0, len(blocks), layers):
            group = blocks[first : first + layers]
            given = None if state is None else state[first : first + layers].to(x.dtype)
            if torch.is_grad_enabled():
                parameters = dict.fromkeys(parameter for block in group for parameter in block.parameters())
                x, last = _Group.apply(group, x, given, *parameters)
            else:
                made = run_diagonals(fold(group), sizes_of(group[0]), x, given)
                x, last = made.outputs, made.last
            last_states.append(last)
        return x.transpose(0, 1).to(dtype), torch.cat(last_states).to(dtype)
