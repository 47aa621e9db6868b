"""The backward pass of one diagonal, in buffers that are used again; `diagonal` has the forward pass.

The letters are those of `diagonal`; the gradient of a tensor is that of the loss by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gflownet.rhn.diagonal import DiagonalStep, Projection
from gflownet.rhn.layers import MIN_SQUARED_NORM
from gflownet.rhn.weight_gradients import WeightGradients

_silu = torch.ops.aten.silu.out
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
        self.row = self.product.unsqueeze(-2)


class ProjectionGradient:
    """Gradients of what a `Projection` reads, from that of its scaled output."""

    def __init__(self, projection: Projection, written: Sequence[_Written]) -> None:
        """Make the buffers."""
        forward, shape, columns = projection, projection.shape, projection.columns
        like, rank = forward.plain, columns.rank
        self._forward, self.written = forward, written

        def apart(part: Tensor) -> Tensor:
            return part.unflatten(0, shape)

        self._low, self._changes = torch.empty_like(forward.low), torch.empty_like(forward.changes)
        self._x_and_a = like.new_empty(forward.x_and_a.shape)
        self._low_column = apart(self._low[:, 0]).unsqueeze(-1)
        self._change, self._cross = apart(self._changes)[..., 0, :], apart(self._changes)[..., 1:, :]
        self._through_x, self._through_a = apart(self._x_and_a)[..., 0, :], apart(self._x_and_a)[..., 1:, :]
        self._scale = like.new_empty(*shape, columns.size_out)
        self.x = like.new_empty(*shape[:2], columns.size_in)
        self._b, self._a = forward.b, forward.a
        self._b_transposed = forward.b.mT
        self._forward_b, self._forward_x = apart(forward.b), forward.x.unsqueeze(-2)
        self._forward_low = apart(forward.low[:, 0]).unsqueeze(-1)
        self._forward_scale, self._forward_product = apart(forward.scale), apart(forward.product)
        if forward.norm == "dora":
            self._inverse_norm, self._squared = apart(forward.inverse_norm), apart(forward.squared)
            self._forward_c, self._forward_cross = apart(forward.c), apart(forward.changes)[..., 1:, :]
            self._half = like.new_empty(*shape, rank, columns.size_out)  # C + G B
            self._scale_row = self._scale.unsqueeze(-2)

    def backward(self, y: Tensor, slot: int, weight: Tensor) -> None:
        """Write the gradients of product and heads into a slot, and that of x.

        Args:
            y: [N, R, P, out], the gradient of the scaled output.
            slot: which one.
            weight: [N, in, P out].
        """
        written = self.written[slot]
        torch.mul(y, self._forward_scale, out=written.product)
        torch.mul(y, self._forward_product, out=self._scale)
        torch.mul(self._forward_low, written.row, out=written.b)
        self._change.copy_(written.product)
        if self._forward.norm == "dora":
            self._norm_backward(written)
        else:
            written.magnitude.copy_(self._scale)
        torch.bmm(self._changes, self._b_transposed, out=self._low)
        torch.bmm(self._low, self._a, out=self._x_and_a)
        if self._forward.norm == "dora":
            torch.addcmul(self._through_a, self._low_column, self._forward_x, out=written.a)
        else:
            torch.mul(self._low_column, self._forward_x, out=written.a)
        torch.bmm(written.rows, weight.mT, out=self.x)
        for part in self._through_x.unbind(2):
            self.x.add_(part)

    def _norm_backward(self, written: _Written) -> None:
        """Write what comes through the norm to C, the magnitude and G B, and add it to the gradient of B.

        With q = 1 + sum_r B (2 C + G B) the scale is m / sqrt(q), and d = 2 dq = -d(scale) scale / q.
        """
        torch.mul(self._scale, self._inverse_norm, out=written.magnitude)
        torch.mul(written.magnitude, self._forward_scale, out=self._scale)
        self._scale.mul_(self._inverse_norm)
        _threshold_backward(self._scale, self._squared, MIN_SQUARED_NORM, grad_input=self._scale)
        self._scale.neg_()
        torch.mul(self._forward_b, self._scale_row, out=self._cross)
        written.c.copy_(self._cross)
        torch.add(self._forward_c, self._forward_cross, out=self._half)
        written.b.addcmul_(self._half, self._scale_row)


class StepGradient:
    """The gradients of what a `DiagonalStep` reads, once its forward pass has been made."""

    def __init__(self, step: DiagonalStep, gradients: WeightGradients) -> None:
        """Make the buffers; what the gradients of the weights are made of goes to `gradients`."""
        self.step, self._gradients = step, gradients
        slots = gradients.slots
        self._entry = ProjectionGradient(
            step.entry, [_Written(step.entry, slot.entry_heads, slot.entry) for slot in slots]
        )
        self._exit = ProjectionGradient(step.exit, [_Written(step.exit, slot.exit_heads, slot.exit) for slot in slots])
        self._read = [step.states, step.entry.rows, step.gated, step.features]
        self._both = torch.empty_like(step.both)  # gate and up
        self._gate, self._up = self._both.unbind(2)
        self._gated = torch.empty_like(self._gate)
        self._features = torch.empty_like(step.features)
        self._bottleneck = self._features[..., 2:]
        num, rows, hidden = self._exit.x.shape[0], self._exit.x.shape[1], step.sizes.hidden
        self._states = step.length.new_empty(num, rows, hidden + 1)
        self._inputs = step.length.new_empty(num + 1, rows, hidden)
        self._along = torch.empty_like(self._inputs)
        self._dot = torch.empty_like(step.length)
        self._gain, self._unit = step.weights.gain.unsqueeze(1), step.unit[:-1]

    def backward(self, gradient: Tensor, first_token: int | None) -> Tensor:
        """Return the gradient of the inputs [N + 1, R, H], to be read before the next call.

        Args:
            gradient: of the states, [N, R, H].
            first_token: as in the forward pass.
        """
        step, entry, exit_, weights = self.step, self._entry, self._exit, self.step.weights
        slot = self._gradients.next_slot()
        into = self._gradients.slots[slot]
        copies = [into.states, into.x, into.gated, into.features]
        torch._foreach_copy_(copies, self._read)  # pyright: ignore[reportPrivateImportUsage]
        exit_.backward(gradient.unsqueeze(2), slot, weights.exit)
        torch.mul(exit_.x, step.up, out=self._gated)
        _silu_backward(self._gated, step.gate, grad_input=self._gate)
        _silu(step.gate, out=self._gated)
        torch.mul(exit_.x, self._gated, out=self._up)
        torch.sum(self._gate, -1, keepdim=True, out=exit_.written[slot].rest)
        entry.backward(self._both, slot, weights.entry)
        torch.bmm(into.entry_heads, weights.entry_heads.mT, out=self._features)
        self._features.baddbmm_(into.exit_heads, weights.exit_heads.mT)
        _silu_backward(self._bottleneck, step.squeezed, grad_input=into.squeeze)
        if first_token is not None:
            into.squeeze[first_token].zero_()
        torch.bmm(into.squeeze, weights.squeeze.mT, out=self._states)
        self._gradients.add_gain(self._unit, entry.x)
        return self._inputs_gradient(gradient)

    def _inputs_gradient(self, gradient: Tensor) -> Tensor:
        """Return what comes to the inputs through their division by |x|, and past it."""
        step, inputs = self.step, self._inputs
        torch.mul(self._entry.x, self._gain, out=inputs[:-1])
        inputs[-1].zero_()
        inputs[1:].add_(self._states[..., :-1])
        torch.mul(inputs, step.unit, out=self._along)
        torch.sum(self._along, -1, keepdim=True, out=self._dot)
        inputs.addcmul_(step.unit, self._dot, value=-1).div_(step.length)
        inputs[:-1].add_(gradient)
        return inputs
