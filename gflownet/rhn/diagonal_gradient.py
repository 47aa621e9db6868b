"""The backward pass of one diagonal, in buffers that are used again; `diagonal` has the forward pass.

The letters are those of `diagonal`; the gradient of a tensor is that of the loss by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.diagonal import DiagonalStep, Frame, Projection, silu
from gflownet.rhn.layers import MIN_SQUARED_NORM
from gflownet.rhn.weight_gradients import WeightGradients

_silu_backward = torch.ops.aten.silu_backward.grad_input
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


class _Written:
    """Where the gradients of heads and product go, in the shapes of what they are gradients of."""

    def __init__(self, projection: Projection, heads: Tensor, product: Tensor) -> None:
        """Take apart heads [N, R, P *] and product [N, R, P out] of a slot."""
        shape, columns = projection.shape, projection.columns
        *projected, self.rest = heads.split([shape[2] * sum(columns.sizes), projection.rest.shape[-1]], -1)
        _, a, b, c, self.magnitude = projected[0].unflatten(-1, (shape[2], -1)).split(columns.sizes, -1)
        self.a, self.b, self.c = (part.unflatten(-1, (columns.rank, -1)) for part in (a, b, c))  # [N, R, P, r, *]
        self.rows, self.product = product, product.unflatten(-1, (shape[2], -1))


class ProjectionGradient:
    """Gradients of what a `Projection` reads, from that of its scaled output."""

    def __init__(self, projection: Projection, weight: Tensor, x: Tensor, written: Sequence[_Written]) -> None:
        """Make the buffers.

        Args:
            projection: the forward pass.
            weight: [N, in, P out].
            x: [N, R, in], where the gradient of x goes.
            written: by slot, where the other gradients go.
        """
        forward, shape, columns = projection, projection.shape, projection.columns
        self.x, self._weight = x, weight.mT
        like = forward.plain
        self._norm, self.written = forward.norm, written

        def apart(part: Tensor) -> Tensor:
            return part.unflatten(0, shape)

        self._low, self._changes = torch.empty_like(forward.low), torch.empty_like(forward.changes)
        self._x_and_a = like.new_empty(forward.x_and_a.shape)
        self._low_column = apart(self._low[:, 0]).unsqueeze(-1)
        self._change, self._cross = apart(self._changes)[..., 0, :], apart(self._changes)[..., 1:, :]
        self._each_through_x = apart(self._x_and_a)[..., 0, :].unbind(2)
        self._through_a = apart(self._x_and_a)[..., 1:, :]
        self._scale = like.new_empty(*shape, columns.size_out)
        self._a, self._b = forward.a, forward.b.mT
        self._forward_b, self._forward_x = apart(forward.b), forward.x.unsqueeze(-2)
        self._forward_low = forward.low.mT
        self._through_low = like.new_empty(forward.b.shape)
        self._to_b = apart(self._through_low)
        self._forward_scale, self._forward_product = apart(forward.scale), apart(forward.product)
        if forward.norm == "dora":
            self._inverse_norm, self._squared = apart(forward.inverse_norm), apart(forward.squared)
            self._forward_c, self._scale_row = apart(forward.c), self._scale.unsqueeze(-2)

    def backward(self, y: Tensor, slot: int) -> None:
        """Write the gradients of product and heads into a slot, and that of x.

        Args:
            y: [N, R, P, out], the gradient of the scaled output.
            slot: which one.
        """
        written = self.written[slot]
        torch.mul(y, self._forward_scale, out=written.product)
        torch.mul(y, self._forward_product, out=self._scale)
        self._change.copy_(written.product)
        if self._norm == "dora":
            self._norm_backward(written)
        torch.bmm(self._forward_low, self._changes, out=self._through_low)
        torch.bmm(self._changes, self._b, out=self._low)
        torch.bmm(self._low, self._a, out=self._x_and_a)
        if self._norm == "dora":
            torch.addcmul(self._to_b, self._forward_c, self._scale_row, out=written.b)
            torch.addcmul(self._through_a, self._low_column, self._forward_x, out=written.a)
        else:
            written.magnitude.copy_(self._scale)
            written.b.copy_(self._to_b)
            torch.mul(self._low_column, self._forward_x, out=written.a)
        torch.bmm(written.rows, self._weight, out=self.x)
        for part in self._each_through_x:
            self.x.add_(part)

    def _norm_backward(self, written: _Written) -> None:
        """Write the gradients of the magnitude, of C and, as G is symmetric, half of that of G B: they are one.

        With q = 1 + sum_r B (2 C + G B) the scale is m / sqrt(q), and d = 2 dq = -d(scale) scale / q.
        """
        torch.mul(self._scale, self._inverse_norm, out=written.magnitude)
        torch.mul(written.magnitude, self._forward_scale, out=self._scale)
        self._scale.mul_(self._inverse_norm)
        _threshold_backward(self._scale, self._squared, MIN_SQUARED_NORM, grad_input=self._scale)
        self._scale.neg_()
        torch.mul(self._forward_b, self._scale_row, out=self._cross)
        written.c.copy_(self._cross)


class StepGradient:
    """The gradients of what a `DiagonalStep` reads, once its forward pass has been made."""

    def __init__(self, step: DiagonalStep, gradients: WeightGradients) -> None:
        """Make the buffers; what the gradients of the weights are made of goes to `gradients`."""
        self.step, self._gradients = step, gradients
        slots, weights, like = gradients.slots, step.weights, step.length
        num, rows, hidden = len(weights.exit), step.length.shape[1], step.sizes.hidden
        # Of the inputs; the group's own is nobody's state and the last layer's state nobody's x, which stay 0.
        self._of_x, self._of_states, self._inputs, self._along = like.new_zeros(4, num + 1, rows, hidden).unbind()
        self._gain, self._of_made = F.pad(weights.gain, (0, 0, 0, 1)).unsqueeze(1), self._of_states[1:]
        entries = [_Written(step.entry, slot.entry_heads, slot.entry) for slot in slots]
        exits = [_Written(step.exit, slot.exit_heads, slot.exit) for slot in slots]
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
        """Write the gradients of the states of the diagonal before.

        Args:
            live: the gradients of the states of the diagonal.
            before: where those of the states before go.
            first_token: as in the forward pass.
        """
        step, entry, exit_ = self.step, self._entry, self._exit
        slot = self._gradients.next_slot()
        into = self._gradients.slots[slot]
        copies = [into.states, into.x, into.gated, into.features]
        torch._foreach_copy_(copies, self._read)  # pyright: ignore[reportPrivateImportUsage]
        exit_.backward(live.made.unsqueeze(2), slot)
        torch.mul(exit_.x, step.up, out=self._gated)
        _silu_backward(self._gated, step.gate, grad_input=self._gate)
        silu(step.gate, out=self._gated)
        torch.mul(exit_.x, self._gated, out=self._up)
        torch.sum(self._both, -1, out=exit_.written[slot].rest)
        entry.backward(self._both, slot)
        torch.bmm(into.entry_heads, self._entry_heads, out=self._features)
        self._features.baddbmm_(into.exit_heads, self._exit_heads)
        _silu_backward(self._bottleneck, step.squeezed, grad_input=into.squeeze)
        if first_token is not None:
            into.squeeze[first_token].zero_()
        torch.bmm(into.squeeze, self._squeeze, out=self._of_made)
        self._gradients.add_gain(self._unit, entry.x)
        self._inputs_backward(live, before)

    def _inputs_backward(self, live: Frame, before: Frame) -> None:
        """Write what comes to the states before through their division by |x|, and past it."""
        unit, inputs = self.step.unit, self._inputs
        torch.addcmul(self._of_states, self._of_x, self._gain, out=inputs)
        torch.mul(inputs, unit, out=self._along)
        torch.sum(self._along, -1, keepdim=True, out=self._dot)
        inputs.addcmul_(unit, self._dot, value=-1)
        torch.div(inputs, self.step.length, out=before.states)
        before.x.add_(live.made)
