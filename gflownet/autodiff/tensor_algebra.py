"""The operations of gflownet/autodiff/rules.py on torch tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gflownet.autodiff.functions import Function
from gflownet.autodiff.rules import Labels
from gflownet.autodiff.terms import Extents

# torch.einsum has a letter for each index.
MAX_LETTERS = 52
# Data pointer of tensors without memory, such as those on the meta device.
_NO_ADDRESS = 0


class Tensors:
    """Carries out the operations of gflownet/autodiff/rules.py with torch."""

    def combine(
        self, parts: Sequence[tuple[float, Tensor, Labels]], out: Labels, extents: Extents, dtype: torch.dtype
    ) -> Tensor:
        """Return a linear combination, see `Algebra.combine`."""
        (alpha, first, labels), *further_parts = parts
        total = _scaled(contract([(first, labels)], out, extents), alpha)
        for alpha, tensor, labels in further_parts:
            part = _scaled(contract([(tensor, labels)], out, extents), abs(alpha))
            total = total + part if alpha >= 0 else total - part
        return total

    def multiply(
        self, factors: Sequence[tuple[Tensor, Labels]], out: Labels, extents: Extents, dtype: torch.dtype
    ) -> Tensor:
        """Return a product of two tensors, see `Algebra.multiply`."""
        return contract(factors, out, extents)

    def map(self, function: Function, source: Tensor) -> Tensor:
        """Return a function of every entry."""
        return function(source)

    def cast(self, source: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the entries in another dtype."""
        return source.to(dtype)

    def call(self, function: Any, inputs: Sequence[Tensor]) -> Tensor:
        """Return a function of whole tensors."""
        return function(*inputs)


def contract(operands: Sequence[tuple[Tensor, Labels]], indices: Labels, extents: Extents) -> Tensor:
    """Return the product of one or two tensors with their indices, summed over the indices that the result lacks.

    The result repeats along indices that no operand has; `extents` has at least the indices of the result.
    """
    if len({index for _, array in operands for index in array}) > MAX_LETTERS:
        operands = [_squeezed(*operand) for operand in operands]
    present = {index for _, array in operands for index in array}
    shared = tuple(index for index in indices if index in present)
    result = _reduced(*operands[0], shared) if len(operands) == 1 else _product(operands[0], operands[1], shared)
    for axis, index in enumerate(indices):
        if index not in present:
            result = result.unsqueeze(axis)
    return result.expand([extents[index] for index in indices])


def owned(tensor: Tensor, others: Iterable[Tensor]) -> Tensor:
    """Return a tensor in memory of its own: neither expanded nor a view of other tensors; else a copy."""
    shared = {_NO_ADDRESS, *map(_address, others)}
    is_expanded = any(step == 0 and n > 1 for step, n in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.clone(memory_format=torch.contiguous_format) if is_expanded or _address(tensor) in shared else tensor


def _address(tensor: Tensor) -> int:
    """Return the data pointer of a tensor's storage."""
    try:
        return tensor.untyped_storage().data_ptr()
    except NotImplementedError:  # inside a transformation of torch.func
        return _NO_ADDRESS


def _product(left: tuple[Tensor, Labels], right: tuple[Tensor, Labels], indices: Labels) -> Tensor:
    labels = {index: label for label, index in enumerate(dict.fromkeys([*left[1], *right[1]]))}
    first, second, result = ([labels[index] for index in array] for array in (left[1], right[1], indices))
    return torch.einsum(left[0], first, right[0], second, result)


def _squeezed(tensor: Tensor, labels: Labels) -> tuple[Tensor, Labels]:
    """Return an operand without its axes of extent 1."""
    long = [(n, index) for n, index in zip(tensor.shape, labels, strict=True) if n > 1]
    return tensor.reshape([n for n, _ in long]), tuple(index for _, index in long)


def _reduced(tensor: Tensor, labels: Labels, indices: Labels) -> Tensor:
    """Return the tensor summed over the labels that `indices` lacks, its axes in the order of `indices`."""
    axes = [axis for axis, index in enumerate(labels) if index not in indices]
    if axes:
        tensor = tensor.sum(axes, dtype=tensor.dtype)
    left = [index for index in labels if index in indices]
    return tensor.permute([left.index(index) for index in indices])


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else (tensor * factor).to(tensor.dtype)
