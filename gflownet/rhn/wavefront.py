"""Run RHN layers along the wavefront: all states with equal n + k at once, in groups whose weights stay in cache.

The state X_{k:n} of token k after layer n needs X_{k:n-1} and X_{k-1:n}, both of the previous diagonal n + k - 1.
N is the number of layers of a group, T of tokens, R of rows, H the hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gflownet.operations.sequences import is_untouched
from gflownet.rhn.config import RHNConfig
from gflownet.rhn.diagonal import DiagonalStep, Frame, StepGradient, WeightGradients
from gflownet.rhn.fold import BlockSizes, Fold, fold, folded_bytes, sizes_of
from gflownet.rhn.layers import BHN, FFN, AdapterHeads, DoraFFN, RHNBlock, RMSNorm

# Maximum size of the folded weights of one group. Every diagonal reads all of them, so they should stay in the shared
# third-level cache. It also bounds the memory of a training pass.
GROUP_BYTES = 24 * 2**20


class Diagonal(NamedTuple):
    """The states with n + k = s: one for each of the layers first .. last of a group, counted from 0."""

    s: int  # from 1
    first: int
    last: int  # included
    starts: bool  # whether its last layer reads the first token

    @property
    def layers(self) -> slice:
        """Index of the layers."""
        return slice(self.first, self.last + 1)


def diagonals(num_layers: int, num_tokens: int) -> Iterator[Diagonal]:
    """Yield the diagonals s = 1 .. T + N - 1."""
    for s in range(1, num_tokens + num_layers):
        yield Diagonal(s, max(0, s - num_tokens), min(num_layers, s) - 1, starts=s <= num_layers)


@dataclass(frozen=True)
class GroupStates:
    """Result of `run_diagonals`."""

    outputs: Tensor  # [T, R, H], of the last layer
    last: Tensor  # [N, R, H], of the last token
    diagonals: Tensor  # [D, N + 1, R, H], diagonal s at index s % D: the input of the group, then the states


def run_diagonals(
    weights: Fold, sizes: BlockSizes, x: Tensor, state: Tensor | None, *, keep: bool = False
) -> GroupStates:
    """Compute the states of a group of N layers for inputs x [T, R, H], without a gradient.

    `state` [N, R, H] belongs to the token before the first; None at the beginning of the sequences. `keep`: return all
    diagonals, for the backward pass, and not only the last two.
    """
    num_layers, (num_tokens, rows, hidden) = len(weights.exit), x.shape
    states = x.new_zeros(num_tokens + num_layers if keep else 2, num_layers + 1, rows, hidden)
    outputs = states[num_layers:, -1] if keep else torch.empty_like(x)
    result = GroupStates(outputs, x.new_empty(num_layers, rows, hidden), states)
    with torch.inference_mode():  # saves a tenth of the time of small layers; the returned tensors are made outside
        _fill(result, DiagonalStep(sizes, weights, rows), x, state, keep=keep)
    return result


def _fill(result: GroupStates, step: DiagonalStep, x: Tensor, state: Tensor | None, *, keep: bool) -> None:
    """Run the diagonals; layers before their first or after their last token compute values that are not used."""
    num_layers, num_tokens, count = len(result.last), len(x), len(result.diagonals)
    frames, tokens = [Frame.of(part) for part in result.diagonals.unbind(0)], x.unbind(0)
    outputs = result.outputs.unbind(0)
    for diagonal in diagonals(num_layers, num_tokens):
        before, current = frames[(diagonal.s - 1) % count], frames[diagonal.s % count]
        if diagonal.first == 0:
            before.first.copy_(tokens[diagonal.s - 1])
        if diagonal.starts and state is not None:
            before.states[diagonal.s] = state[diagonal.last]
        step.forward(before, current.new, diagonal.last if diagonal.starts and state is None else None)
        if diagonal.last == num_layers - 1 and not keep:
            outputs[diagonal.s - num_layers].copy_(current.last)
        if diagonal.s >= num_tokens:
            result.last[diagonal.first] = current.new[diagonal.first]


@dataclass(frozen=True)
class GroupGradients:
    """Result of `differentiate`."""

    x: Tensor  # [T, R, H]
    state: Tensor  # [N, R, H], of the token before the first
    weights: Fold


def differentiate(
    weights: Fold, sizes: BlockSizes, states: Tensor, grad_outputs: Tensor, grad_last: Tensor, *, has_state: bool
) -> GroupGradients:
    """Compute the gradients of the inputs and weights of a group of N layers.

    `states` [T + N, N + 1, R, H] are all diagonals of `run_diagonals`; `grad_outputs` [T, R, H], `grad_last` [N, R, H].
    `has_state`: whether there is a state before the first token.
    """
    rows = grad_last.shape[1]
    gradients, grad_x, grad_state = WeightGradients(weights, rows), torch.empty_like(grad_outputs), grad_last.clone()
    with torch.inference_mode():
        backward = StepGradient(DiagonalStep(sizes, weights, rows), gradients)
        for diagonal, live in _gradients_of_states(backward, states, grad_outputs, grad_last, has_state=has_state):
            if diagonal.first == 0:
                grad_x[diagonal.s - 1] = live.first
            if diagonal.starts:
                grad_state[diagonal.last] = live.new[diagonal.last]
    return GroupGradients(grad_x, grad_state, gradients.total())


def _gradients_of_states(
    backward: StepGradient, states: Tensor, grad_outputs: Tensor, grad_last: Tensor, *, has_state: bool
) -> Iterator[tuple[Diagonal, Frame]]:
    """Yield each diagonal, the last one first, and the gradients of the states of the previous diagonal.

    The intermediate values of a diagonal are recomputed from the states of the previous one. Layers before their first
    or after their last token have gradients of 0.
    """
    num_layers, num_tokens = len(grad_last), len(grad_outputs)
    live, before = (Frame.of(torch.zeros_like(states[0])) for _ in range(2))
    new = torch.empty_like(grad_last)
    for diagonal in reversed(list(diagonals(num_layers, num_tokens))):
        first_token = diagonal.last if diagonal.starts and not has_state else None
        if diagonal.last == num_layers - 1:
            live.last.add_(grad_outputs[diagonal.s - num_layers])
        if diagonal.s >= num_tokens:
            live.new[diagonal.first] += grad_last[diagonal.first]
        backward.step.forward(Frame.of(states[diagonal.s - 1]), new, first_token)
        backward.backward(live, before, first_token)
        live, before = before, live
        yield diagonal, live
        if diagonal.starts:
            live.new[diagonal.last] = 0


class _Group(torch.autograd.Function):
    """One group of layers; only the states are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        result = run_diagonals(fold(blocks), sizes_of(blocks[0]), x, state, keep=True)
        ctx.blocks, ctx.has_state = blocks, state is not None
        # Parameters too, so that torch detects a change of them before the backward pass.
        ctx.save_for_backward(result.diagonals, *parameters)
        return result.outputs, result.last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        states, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            weights = fold(ctx.blocks)
        grads = differentiate(
            weights.detach(), sizes_of(ctx.blocks[0]), states, grad_outputs, grad_last, has_state=ctx.has_state
        )
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        pairs = zip(weights.tensors, grads.weights.tensors, strict=True)
        outputs = [pair for pair in pairs if pair[0].requires_grad]  # computed from at least one trained parameter
        gradients = iter(
            torch.autograd.grad([pair[0] for pair in outputs], trained, [pair[1] for pair in outputs])
            if trained
            else ()
        )
        by_parameter = (next(gradients) if parameter.requires_grad else None for parameter in parameters)
        return None, grads.x, grads.state if ctx.has_state else None, *by_parameter


def layers_per_group(blocks: Sequence[RHNBlock]) -> int:
    """Return the number of layers per group whose folded weights stay in cache, with groups of even sizes."""
    max_layers = max(1, GROUP_BYTES // folded_bytes(blocks[0]))
    return math.ceil(len(blocks) / math.ceil(len(blocks) / max_layers))


def along_wavefront(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run layers of equal sizes along the wavefront; a `Stack` with the results and gradients of `layer_by_layer`.

    Return the outputs [R, T, H] of the last block and the states [depth, R, H] of the last token, for x [R, T, H] and
    the state [depth, R, H] of the token before the first, None at the beginning of the sequences.
    """
    return in_groups(blocks, x, state, layers=layers_per_group(blocks))


def in_groups(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None, *, layers: int) -> tuple[Tensor, Tensor]:
    """Run groups of a number of layers one after the other, each along the wavefront; else as `along_wavefront`."""
    dtype = x.dtype
    x = x.transpose(0, 1).to(torch.promote_types(dtype, torch.float32))
    last_states = []
    for first in range(0, len(blocks), layers):
        group = blocks[first : first + layers]
        before = None if state is None else state[first : first + layers].to(x.dtype)
        if torch.is_grad_enabled():
            parameters = dict.fromkeys(parameter for block in group for parameter in block.parameters())
            x, last = _Group.apply(group, x, before, *parameters)
        else:
            result = run_diagonals(fold(group), sizes_of(group[0]), x, before)
            x, last = result.outputs, result.last
        last_states.append(last)
    return x.transpose(0, 1).to(dtype), torch.cat(last_states).to(dtype)


class RHNCell(RHNBlock):
    """An RHN layer that a network calls with a token, or with a whole sequence."""

    def sequence(self, x: Tensor, hidden: Tensor, token: Tensor) -> Tensor:
        """Return the outputs [T R, H] of x [T R, H], by time, from a state [R, H] of the rows with token [R, 1] = 1."""
        if not len(hidden):
            return x
        moments = x.view(-1, *hidden.shape)
        if _runs_by_token(self, x):
            return self(moments.transpose(0, 1), hidden, token)[0].transpose(0, 1).flatten(0, 1)
        first = self.step(moments[0], hidden, token)
        if len(moments) == 1:
            return first
        later, _ = along_wavefront([self], moments[1:].transpose(0, 1), first.unsqueeze(0))
        return torch.cat([first, later.transpose(0, 1).flatten(0, 1)])


_LAYERS = {RHNCell, RHNBlock, RMSNorm, BHN, AdapterHeads, DoraFFN, FFN, nn.Linear}


def _runs_by_token(block: RHNBlock, x: Tensor) -> bool:
    """Return whether the definition computes a block: for programs, empty tensors, and modules that must be called."""
    return x.is_meta or torch.compiler.is_compiling() or not len(x) or not is_untouched(block, _LAYERS.__contains__)


class RHNLayer(nn.Module):
    """A layer of a Recurrent Hyper Network over sequences [R, T, H] that start without a state."""

    def __init__(self, config: RHNConfig) -> None:
        super().__init__()
        self.block = RHNCell(config)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states of all tokens [R, T, H]."""
        if _runs_by_token(self.block, x):
            return self.block(x)[0]
        return along_wavefront([self.block], x, None)[0]


class CarriedRHNLayer(RHNLayer):
    """An RHN layer that continues from the state of the call before."""

    def forward(self, x: Tensor, hidden: Tensor, token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the states of all tokens [R, T, H], the last of them, and ones [R, 1]: the next call has a state.

        `hidden` [R, H] is the state of the token before x [R, T, H], where `token` is 1.
        """
        if _runs_by_token(self.block, x):
            y = self.block(x, hidden, token)[0]
        else:
            rows = x.transpose(0, 1).flatten(0, 1)
            y = self.block.sequence(rows, hidden, token).unflatten(0, (-1, len(x))).transpose(0, 1)
        return y, y[:, -1], torch.ones_like(token)
