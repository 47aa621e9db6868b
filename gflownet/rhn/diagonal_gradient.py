"""The backward pass of one diagonal, in buffers that are used again; `diagonal` has the forward pass.

The letters are those of `diagonal`; the gradient of a tensor is that of the loss by it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gflownet.rhn.diagonal import DiagonalStep, Projection
from gflownet.rhn.layers import MIN_SQUARED_NORM

_silu = torch.ops.aten.silu.out
_silu_backward = torch.ops.aten.silu_backward.grad_input
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


class ProjectionGradient:
    """Gradients of what a `Projection` reads, from that of its scaled output."""

    def __init__(self, projection: Projection) -> None:
        """Make the buffers."""
        forward, columns = projection, projection.columns
        like, rank = forward.heads, columns.rank
        num, _, across = forward.b.shape
        self._forward = forward
        self.heads = torch.empty_like(like)  # of A, B, C and magnitudes
        sizes = [*columns.sizes, forward.rest.shape[-1]]
        a, b, c, self._magnitude, self.rest = self.heads.split(sizes, -1)
        self._a, self._b = (part.unflatten(-1, (rank, -1)).flatten(0, 1) for part in (a, b))
        self.product = torch.empty_like(forward.product)
        self._scale = torch.empty_like(forward.product)
        self._low = torch.empty_like(forward.low)
        self._through_a = like.new_empty(num, rank, columns.size_in)
        self.x = like.new_empty(*forward.product.shape[:2], columns.size_in)
        self._x = self.x.view(num, 1, columns.size_in)
        self._row = self.product.view(num, 1, across)
        if forward.norm == "dora":
            self._c = c.unflatten(-1, (rank, across)).flatten(0, 1)
            self._change = torch.empty_like(forward.cross)
            self._gram = torch.empty_like(forward.gram)
            self._squared = self._scale.view(num, 1, across)

    def backward(self, y: Tensor, x: Tensor, weight: Tensor) -> None:
        """Write the gradients of product, x and heads.

        Args:
            y: [P, R, out], the gradient of the scaled output.
            x: [P, R, in], what was multiplied.
            weight: [P, in, out].
        """
        forward = self._forward
        torch.mul(y, forward.scale, out=self.product)
        torch.mul(y, forward.product, out=self._scale)
        torch.bmm(forward.b, self._row.mT, out=self._low)
        torch.bmm(self.product, weight.mT, out=self.x)
        self._x.baddbmm_(self._low.mT, forward.a)
        torch.mul(self._low, x.view_as(self._x), out=self._a)
        torch.mul(forward.low, self._row, out=self._b)
        if forward.norm == "dora":
            self._norm_backward()
        else:
            self._magnitude.copy_(self._scale)

    def _norm_backward(self) -> None:
        """Add what comes through the norm to the gradients of A and B, and write those of C and of the magnitude.

        With q = 1 + sum_r B (2 C + G B) the scale is m / sqrt(q), and d = -2 dq = -d(scale) scale / q.
        """
        forward = self._forward
        torch.mul(self._scale, forward.inverse_norm, out=self._magnitude)
        torch.mul(self._magnitude, forward.scale, out=self._scale)
        self._scale.mul_(forward.inverse_norm)
        _threshold_backward(self._scale, forward.squared, MIN_SQUARED_NORM, grad_input=self._scale)
        self._scale.neg_()
        torch.mul(forward.b, self._squared, out=self._c)
        torch.sub(forward.cross, forward.c, out=self._change)
        self._b.addcmul_(self._change, self._squared)
        torch.bmm(self._c, forward.b.mT, out=self._gram)
        torch.bmm(self._gram, forward.a, out=self._through_a)
        self._a.add_(self._through_a)


class StepGradient:
    """The gradients of what a `DiagonalStep` reads, once its forward pass has been made."""

    def __init__(self, step: DiagonalStep) -> None:
        """Make the buffers."""
        self._step = step
        num, rows, hidden = step.x.shape[0], step.x.shape[2], step.sizes.hidden
        self._entry, self._exit = ProjectionGradient(step.entry), ProjectionGradient(step.exit)
        self._both = torch.empty_like(step.both)  # gate and up
        self._gate, self._up, self._flat_both = self._both[:, 0], self._both[:, 1], self._both.flatten(0, 1)
        self._gated = torch.empty_like(step.gated)
        self._entry_features = torch.empty_like(step.entry_features)
        self._exit_features = torch.empty(step.exit_features.shape, dtype=step.x.dtype, device=step.x.device)
        halves = self._entry_features.view_as(step.features)
        self._bottlenecks = [part[..., 2:] for part in (self._exit_features, halves[:, 0], halves[:, 1])]
        self._squeezed = torch.empty_like(step.squeezed)
        self._states = step.x.new_empty(num, rows, hidden + 1)
        self._halves_of_x = self._entry.x.view_as(step.x).unbind(1)
        self._x = step.x.new_empty(num, rows, hidden)
        self._inputs = step.x.new_empty(num + 1, rows, hidden)
        self._along = torch.empty_like(self._inputs)
        self._dot = torch.empty_like(step.length)
        # What rows were multiplied by the weights of a fold, and the gradient of what became of them.
        self.pairs = {
            "squeeze": (step.states, self._squeezed),
            "entry": (step.x, self._entry.product.view_as(step.both)),
            "exit": (step.gated, self._exit.product),
            "entry_heads": (step.features, self._entry.heads.unflatten(0, (num, 2))),
            "exit_heads": (step.exit_features, self._exit.heads),
        }
        self.gain_pair = step.unit_x[:, 0], self._x

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs [N + 1, R, H], to be read before the next call, from that of the states."""
        step, entry, exit_ = self._step, self._entry, self._exit
        exit_.backward(gradient, step.gated, step.weights.exit)
        torch.mul(exit_.x, step.up, out=self._gated)
        _silu_backward(self._gated, step.gate, grad_input=self._gate)
        _silu(step.gate, out=self._gated)
        torch.mul(exit_.x, self._gated, out=self._up)
        torch.sum(self._gate, -1, keepdim=True, out=exit_.rest)
        entry.backward(self._flat_both, step.entry_x, step.entry_weight)
        torch.bmm(entry.heads, step.entry_heads.mT, out=self._entry_features)
        torch.bmm(exit_.heads, step.weights.exit_heads.mT, out=self._exit_features)
        bottleneck, *others = self._bottlenecks
        for other in others:
            bottleneck.add_(other)
        _silu_backward(bottleneck, step.squeezed, grad_input=self._squeezed)
        if step.starts:
            self._squeezed[-1].zero_()
        torch.bmm(self._squeezed, step.weights.squeeze.mT, out=self._states)
        torch.add(*self._halves_of_x, out=self._x)
        return self._inputs_gradient(gradient)

    def _inputs_gradient(self, gradient: Tensor) -> Tensor:
        """Return what comes to the inputs through their division by |x|, and past it."""
        step, inputs = self._step, self._inputs
        torch.mul(self._x, step.weights.gain.unsqueeze(1), out=inputs[:-1])
        inputs[-1].zero_()
        inputs[1:].add_(self._states[..., :-1])
        unit = step.unit[..., :-1]
        torch.mul(inputs, unit, out=self._along)
        torch.sum(self._along, -1, keepdim=True, out=self._dot)
        inputs.addcmul_(unit, self._dot, value=-1).div_(step.length)
        inputs[:-1].add_(gradient)
        return inputs
