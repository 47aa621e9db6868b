"""One diagonal of the wavefront: a step of several layers at once, each on its own token, in reused buffers.

The tensors of a diagonal are small and diagonals are many, so the overhead of calls is much of the time. Every call
writes into a buffer, the views of the buffers are made once, and products with the same factor are one product: gate
and up are one matrix, and x is a row above A. `RHNBlock.step` defines the result. No adapted matrix is made.

`grad` of a tensor is the gradient of the loss with respect to it. A step has few rows: gradients of weights are
gathered over many steps and added up in one product, because a product per step would read and write all of them.

N is the number of layers, R of rows, H the hidden size, I the intermediate size, r the rank, J = bottleneck + 1; P is 2
for gate and up, 1 for down, and M is N R P.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.fold import BlockSizes, Fold, HeadColumns
from gflownet.rhn.layers import MIN_SQUARED_NORM

# Takes half the time of torch.ops.aten.silu.out.
silu = torch._C._nn.silu  # pyright: ignore[reportAttributeAccessIssue]
_silu_backward = torch.ops.aten.silu_backward.grad_input
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True)
class Frame:
    """States of one diagonal, and views of them."""

    states: Tensor  # [N + 1, R, H], the input of the first layer, then the states of the layers
    x: Tensor  # [N, R, H], inputs of the layers on the next diagonal
    new: Tensor  # [N, R, H], states of the layers
    first: Tensor  # [R, H], the input of the first layer
    last: Tensor  # [R, H], of the last layer

    @classmethod
    def of(cls, states: Tensor) -> Frame:
        """Return the frame of states [N + 1, R, H]."""
        return cls(states, states[:-1], states[1:], states[0], states[-1])


class Projection:
    """Apply projections adapted row by row: y = scale (W x + B A x)."""

    def __init__(self, columns: HeadColumns, shape: tuple[int, int, int], *, extra: int, like: Tensor) -> None:
        """Allocate the buffers, with the dtype and device of `like`.

        `shape` is N, R and P, `extra` the number of additional columns of the heads.
        """
        rank, size_in, size_out = columns.rank, columns.size_in, columns.size_out
        num = math.prod(shape)
        self.columns, self.norm, self.shape = columns, columns.norm, shape
        heads = like.new_empty(num, sum(columns.sizes) + extra)
        x, a, b, c, self.magnitude, extra_heads = heads.split([*columns.sizes, extra], -1)
        self.heads, self.extra = heads.view(*shape[:2], -1), extra_heads.view(*shape[:2], -1)
        self.x = x.view(*shape, size_in)  # written after the heads
        self.rows = self.x[:, :, 0]  # [N, R, in], multiplied by W
        self.a, self.b = a.view(num, rank, size_in), b.view(num, rank, size_out)
        height = rank + 1 if self.norm == "dora" else 1
        self.x_and_a = heads[:, : height * size_in].view(num, height, size_in)
        self.low = like.new_empty(num, height, rank)  # A x and G = A A^T
        self.changes = like.new_empty(num, height, size_out)  # B A x and G B
        self.plain = like.new_empty(*shape[:2], shape[2] * size_out)  # W x
        self.product = like.new_empty(num, size_out)  # W x + B A x
        self.scale = self.magnitude
        self._a_transposed, self._change, self._plain = self.a.mT, self.changes[:, 0], self.plain.view(num, size_out)
        if self.norm == "dora":
            self.c, self._cross = c.view(num, rank, size_out), self.changes[:, 1:]
            self._terms = like.new_ones(num, rank + 1, size_out)  # 1 and B (2 C + G B): their sum is the squared norm
            self._norm_terms = self._terms[:, 1:]
            self.squared, self.inverse_norm, self.scale = like.new_empty(3, num, size_out).unbind()

    def adapt(self, features: Tensor, heads: Tensor) -> None:
        """Compute the adapters for features [N, R, J + 1]."""
        torch.bmm(features, heads, out=self.heads)

    def multiply(self, weight: Tensor) -> None:
        """Compute the product of x, and its scale."""
        torch.bmm(self.x_and_a, self._a_transposed, out=self.low)
        torch.bmm(self.low, self.b, out=self.changes)
        if self.norm == "dora":
            torch.add(self._cross, self.c, alpha=2, out=self._norm_terms).mul_(self.b)
            torch.sum(self._terms, 1, out=self.squared)
            torch.clamp_min(self.squared, MIN_SQUARED_NORM, out=self.inverse_norm).rsqrt_()
            torch.mul(self.magnitude, self.inverse_norm, out=self.scale)
        torch.bmm(self.rows, weight, out=self.plain)
        torch.add(self._plain, self._change, out=self.product)


class DiagonalStep:
    """Compute the states of one diagonal from the states of the previous one."""

    def __init__(self, sizes: BlockSizes, weights: Fold, rows: int) -> None:
        """Allocate the buffers for the layers of `weights`; `rows` is R."""
        num, width = len(weights.exit), weights.squeeze.shape[-1]
        hidden, intermediate = sizes.hidden, sizes.intermediate
        like = weights.exit
        self.sizes, self.weights = sizes, weights
        self.root = sizes.root(like)
        self.length = like.new_empty(num + 1, rows, 1)  # |x|, with epsilon
        unit = like.new_ones(num + 1, rows, hidden + 1)  # x / |x| and 1
        self.unit, self.states = unit[..., :hidden], unit[1:]
        unit_x = self.unit[:-1, :, None].expand(num, rows, 2, hidden)
        self.unit_x, self.gain = unit_x, weights.gain[:, None, None]
        self.squeezed = like.new_empty(num, rows, width)
        self.features = like.new_ones(num, rows, width + 2)  # 1, then u
        self._bottleneck = self.features[..., 2:]
        self.entry = Projection(sizes.entry, (num, rows, 2), extra=0, like=like)
        self.exit = Projection(sizes.exit, (num, rows, 1), extra=2, like=like)
        self.both = like.new_empty(num, rows, 2, intermediate)  # gate and up
        self.gate, self.up = self.both.unbind(2)
        self._beta, self.gated = self.exit.extra.unsqueeze(-1), self.exit.rows
        self._entry_y, self._entry_scale = (
            part.view(self.both.shape) for part in (self.entry.product, self.entry.scale)
        )
        self._exit_y, self._exit_scale = (part.view(num, rows, hidden) for part in (self.exit.product, self.exit.scale))
        self._first_token: int | None = None

    def forward(self, before: Frame, out: Tensor, first_token: int | None) -> None:
        """Write the states [N, R, H] of the diagonal after `before` to `out`.

        The layer `first_token`, counted from 0, reads its first token and is not adapted; None: no such layer.
        """
        entry, exit_, weights = self.entry, self.exit, self.weights
        torch.linalg.vector_norm(before.states, dim=-1, keepdim=True, out=self.length)
        torch.hypot(self.length, self.root, out=self.length)
        torch.div(before.states, self.length, out=self.unit)
        torch.bmm(self.states, weights.squeeze, out=self.squeezed)
        silu(self.squeezed, out=self._bottleneck)
        self._mark(first_token)
        entry.adapt(self.features, weights.entry_heads)
        exit_.adapt(self.features, weights.exit_heads)
        torch.mul(self.unit_x, self.gain, out=entry.x)
        entry.multiply(weights.entry)
        torch.addcmul(self._beta, self._entry_y, self._entry_scale, out=self.both)
        silu(self.gate, out=self.gated).mul_(self.up)
        exit_.multiply(weights.exit)
        torch.addcmul(before.x, self._exit_y, self._exit_scale, out=out)

    def _mark(self, first_token: int | None) -> None:
        """Set the features of a layer to 0, and reset the features of the previous such layer to 1."""
        if self._first_token is not None:
            self.features[self._first_token, :, 1] = 1
        if first_token is not None:
            self.features[first_token, :, 1:] = 0
        self._first_token = first_token


@dataclass(frozen=True)
class Slot:
    """Buffers for one step: the factors of the weights of a fold, and the gradients of the products."""

    states: Tensor  # [N, R, H + 1], factor of squeeze
    x: Tensor  # [N, R, H], factor of entry
    gated: Tensor  # [N, R, I], factor of exit
    features: Tensor  # [N, R, J + 1], factor of both heads
    squeeze: Tensor  # [N, R, J - 1], gradient of the product, as the following ones
    entry: Tensor  # [N, R, 2 I]
    exit: Tensor  # [N, R, H]
    entry_heads: Tensor  # [N, R, 2 *]
    exit_heads: Tensor  # [N, R, * + 2]


# Factor of each weight.
INPUTS = {"squeeze": "states", "entry": "x", "exit": "gated", "entry_heads": "features", "exit_heads": "features"}


class WeightGradients:
    """Sum up the gradients of a `Fold` over one backward pass."""

    def __init__(self, weights: Fold, rows: int) -> None:
        """Allocate the buffers; `rows` is R."""
        self._sums = {name: torch.zeros_like(getattr(weights, name)) for name in INPUTS}
        self._gain = weights.gain.new_zeros(len(weights.gain), rows, weights.gain.shape[-1])
        widths = {INPUTS[name]: weight.shape[1] for name, weight in self._sums.items()}
        widths |= {name: weight.shape[2] for name, weight in self._sums.items()}
        # The slots are then about as large as the gradients, which bounds memory and memory traffic.
        num_weights = sum(weight[0].numel() for weight in self._sums.values())
        num_steps = max(1, num_weights // (rows * sum(widths.values())))
        like = weights.exit
        self._buffers = {name: like.new_zeros(len(like), num_steps, rows, width) for name, width in widths.items()}
        self._count = 0
        self.slots = [
            Slot(**{name: part[:, step] for name, part in self._buffers.items()}) for step in range(num_steps)
        ]

    def next_slot(self) -> int:
        """Return the index of a free slot."""
        if self._count == len(self.slots):
            self._flush()
        self._count += 1
        return self._count - 1

    def add_gain(self, unit: Tensor, gradient: Tensor) -> None:
        """Add the contribution of a step to the gradient of the gain: [N, R, H] both."""
        self._gain.addcmul_(unit, gradient)

    def _flush(self) -> None:
        """Add the filled slots to the sums."""
        rows = {name: part[:, : self._count].flatten(1, 2) for name, part in self._buffers.items()}
        for name, total in self._sums.items():
            total.baddbmm_(rows[INPUTS[name]].mT, rows[name])
        self._count = 0

    def total(self) -> Fold:
        """Return the gradients, at the end of the backward pass."""
        self._flush()
        return Fold(gain=self._gain.sum(1), **self._sums)


class _Outputs:
    """Views of a slot: gradients of the heads and of the product, in the shapes of the forward pass."""

    def __init__(self, projection: Projection, heads: Tensor, product: Tensor) -> None:
        """Split heads [N, R, P *] and product [N, R, P out] of a slot."""
        shape, columns = projection.shape, projection.columns
        projected, self.extra = heads.split([shape[2] * sum(columns.sizes), projection.extra.shape[-1]], -1)
        _, a, b, c, self.magnitude = projected.unflatten(-1, (shape[2], -1)).split(columns.sizes, -1)
        self.a, self.b, self.c = (part.unflatten(-1, (columns.rank, -1)) for part in (a, b, c))  # [N, R, P, r, *]
        self.rows, self.product = product, product.unflatten(-1, (shape[2], -1))


class ProjectionGradient:
    """Compute the gradients of the inputs of a `Projection` from the gradient of its scaled output."""

    def __init__(self, projection: Projection, weight: Tensor, x: Tensor, outputs: Sequence[_Outputs]) -> None:
        """Allocate the buffers for a forward pass with weight [N, in, P out].

        The gradient of x is written to `x` [N, R, in], the other ones to `outputs`, by slot.
        """
        forward, shape, columns = projection, projection.shape, projection.columns
        self.x, self._weight = x, weight.mT
        like = forward.plain
        self._norm, self.outputs = forward.norm, outputs

        def by_shape(part: Tensor) -> Tensor:
            return part.unflatten(0, shape)

        self._low, self._changes = torch.empty_like(forward.low), torch.empty_like(forward.changes)
        self._x_and_a = like.new_empty(forward.x_and_a.shape)
        self._low_column = by_shape(self._low[:, 0]).unsqueeze(-1)
        self._change, self._cross = by_shape(self._changes)[..., 0, :], by_shape(self._changes)[..., 1:, :]
        self._each_through_x = by_shape(self._x_and_a)[..., 0, :].unbind(2)
        self._through_a = by_shape(self._x_and_a)[..., 1:, :]
        self._scale = like.new_empty(*shape, columns.size_out)
        self._a, self._b = forward.a, forward.b.mT
        self._forward_b, self._forward_x = by_shape(forward.b), forward.x.unsqueeze(-2)
        self._forward_low = forward.low.mT
        self._through_low = like.new_empty(forward.b.shape)
        self._to_b = by_shape(self._through_low)
        self._forward_scale, self._forward_product = by_shape(forward.scale), by_shape(forward.product)
        if forward.norm == "dora":
            self._inverse_norm, self._squared = by_shape(forward.inverse_norm), by_shape(forward.squared)
            self._forward_c, self._scale_row = by_shape(forward.c), self._scale.unsqueeze(-2)

    def backward(self, y: Tensor, slot: int) -> None:
        """Write the gradients of product and heads into a slot, and the gradient of x, from the scaled output's.

        `y` is [N, R, P, out].
        """
        out = self.outputs[slot]
        torch.mul(y, self._forward_scale, out=out.product)
        torch.mul(y, self._forward_product, out=self._scale)
        self._change.copy_(out.product)
        if self._norm == "dora":
            self._norm_backward(out)
        torch.bmm(self._forward_low, self._changes, out=self._through_low)
        torch.bmm(self._changes, self._b, out=self._low)
        torch.bmm(self._low, self._a, out=self._x_and_a)
        if self._norm == "dora":
            torch.addcmul(self._to_b, self._forward_c, self._scale_row, out=out.b)
            torch.addcmul(self._through_a, self._low_column, self._forward_x, out=out.a)
        else:
            out.magnitude.copy_(self._scale)
            out.b.copy_(self._to_b)
            torch.mul(self._low_column, self._forward_x, out=out.a)
        torch.bmm(out.rows, self._weight, out=self.x)
        for part in self._each_through_x:
            self.x.add_(part)

    def _norm_backward(self, out: _Outputs) -> None:
        """Write the gradients of the magnitude, of C and of G B (half of it: equal to the gradient of C).

        With q = 1 + sum_r B (2 C + G B) the scale is m / sqrt(q), and d = 2 dq = -d(scale) scale / q.
        """
        torch.mul(self._scale, self._inverse_norm, out=out.magnitude)
        torch.mul(out.magnitude, self._forward_scale, out=self._scale)
        self._scale.mul_(self._inverse_norm)
        _threshold_backward(self._scale, self._squared, MIN_SQUARED_NORM, grad_input=self._scale)
        self._scale.neg_()
        torch.mul(self._forward_b, self._scale_row, out=self._cross)
        out.c.copy_(self._cross)


class StepGradient:
    """Compute the gradients of the inputs of a `DiagonalStep` after its forward pass."""

    def __init__(self, step: DiagonalStep, gradients: WeightGradients) -> None:
        """Allocate the buffers; `gradients` sums up the gradients of the weights."""
        self.step, self._gradients = step, gradients
        slots, weights, like = gradients.slots, step.weights, step.length
        num, rows, hidden = len(weights.exit), step.length.shape[1], step.sizes.hidden
        # One row more than layers: the input of the group is no state, and the last state no input; both stay 0.
        self._of_x, self._of_states, self._inputs, self._along = like.new_zeros(4, num + 1, rows, hidden).unbind()
        self._gain, self._of_new = F.pad(weights.gain, (0, 0, 0, 1)).unsqueeze(1), self._of_states[1:]
        entries = [_Outputs(step.entry, slot.entry_heads, slot.entry) for slot in slots]
        exits = [_Outputs(step.exit, slot.exit_heads, slot.exit) for slot in slots]
        self._entry = ProjectionGradient(step.entry, weights.entry, self._of_x[:-1], entries)
        self._exit = ProjectionGradient(step.exit, weights.exit, torch.empty_like(step.up), exits)
        self._read = [step.states, step.entry.rows, step.gated, step.features]
        self._both = torch.empty_like(step.both)  # gate and up
        self._gate, self._up = self._both.unbind(2)
        self._gated = torch.empty_like(step.up)
        self._features = torch.empty_like(step.features)
        self._bottleneck = self._features[..., 2:]
        self._dot = torch.empty_like(step.length)
        self._unit = step.unit[:-1]
        self._squeeze = weights.squeeze[:, :-1].mT
        self._entry_heads, self._exit_heads = weights.entry_heads.mT, weights.exit_heads.mT

    def backward(self, live: Frame, before: Frame, first_token: int | None) -> None:
        """Write the gradients of the states of the previous diagonal, `before`, from those of the diagonal, `live`.

        `first_token` as in the forward pass.
        """
        step, entry, exit_ = self.step, self._entry, self._exit
        slot = self._gradients.next_slot()
        into = self._gradients.slots[slot]
        copies = [into.states, into.x, into.gated, into.features]
        torch._foreach_copy_(copies, self._read)  # pyright: ignore[reportPrivateImportUsage]
        exit_.backward(live.new.unsqueeze(2), slot)
        torch.mul(exit_.x, step.up, out=self._gated)
        _silu_backward(self._gated, step.gate, grad_input=self._gate)
        silu(step.gate, out=self._gated)
        torch.mul(exit_.x, self._gated, out=self._up)
        torch.sum(self._both, -1, out=exit_.outputs[slot].extra)
        entry.backward(self._both, slot)
        torch.bmm(into.entry_heads, self._entry_heads, out=self._features)
        self._features.baddbmm_(into.exit_heads, self._exit_heads)
        _silu_backward(self._bottleneck, step.squeezed, grad_input=into.squeeze)
        if first_token is not None:
            into.squeeze[first_token].zero_()
        torch.bmm(into.squeeze, self._squeeze, out=self._of_new)
        self._gradients.add_gain(self._unit, entry.x)
        self._inputs_backward(live, before)

    def _inputs_backward(self, live: Frame, before: Frame) -> None:
        """Write the gradients through the division of the states by |x|, and through the residual connection."""
        unit, inputs = self.step.unit, self._inputs
        torch.addcmul(self._of_states, self._of_x, self._gain, out=inputs)
        torch.mul(inputs, unit, out=self._along)
        torch.sum(self._along, -1, keepdim=True, out=self._dot)
        inputs.addcmul_(unit, self._dot, value=-1)
        torch.div(inputs, self.step.length, out=before.states)
        before.x.add_(live.new)
