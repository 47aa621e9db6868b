"""Products of labelled values as torch calls: mm, mv, dot and mul on views, bmm where there are batch labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from opt_einsum import paths

from gflownet.autodiff import entrywise
from gflownet.autodiff.instructions import Instructions, Value

Labels = tuple[int, ...]
_MAX_OPTIMAL = 5  # factors; the order of more is found greedily


@dataclass(frozen=True)
class Labelled:
    """A value and a label for each of its axes, each once."""

    value: Value
    labels: Labels


@dataclass(frozen=True)
class MatrixProduct:
    """A product of two matrices, or of a matrix and a vector, not emitted yet."""

    left: Value  # [M, K]
    right: Value  # [K, N] or [K]
    labels: Labels  # of the result, M's before N's
    shape: tuple[int, ...]  # of the result, an extent for each label

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """Return the shape with one axis per side."""
        return (self.left.shape[0], *self.right.shape[1:])

    def emitted(self, code: Instructions) -> Labelled:
        """Return the product."""
        name = "mm" if len(self.right.shape) == 2 else "mv"
        flat = code.emit(f"torch.{name}({{0}}, {{1}})", self.left, self.right, shape=self.flat_shape)
        return Labelled(reshape(code, flat, self.shape), self.labels)


def permute(code: Instructions, value: Value, axes: Sequence[int]) -> Value:
    """Return a view with the axes in another order."""
    axes = tuple(axes)
    if axes == tuple(range(len(axes))):
        return value
    if value.template in ("{0}.t()", f"{{0}}.permute{axes}") and len(axes) == 2:
        return value.operands[0]
    template = "{0}.t()" if len(axes) == 2 else f"{{0}}.permute{axes}"
    return code.view(template, value, shape=[value.shape[axis] for axis in axes])


def reshape(code: Instructions, value: Value, shape: Sequence[int]) -> Value:
    """Return a value in another shape, a view where there is one."""
    shape = tuple(shape)
    if shape == value.shape:
        return value
    # declared as a view even where it copies, so that the source is never overwritten
    return code.view(f"{{0}}.reshape({shape})", value, shape=shape)


def aligned(code: Instructions, factor: Labelled, labels: Sequence[int]) -> Value:
    """Return a view that broadcasts to the labels: missing labels are axes of extent 1, leading ones are left out."""
    present = [label for label in labels if label in factor.labels]
    value = permute(code, factor.value, [factor.labels.index(label) for label in present])
    if not present:
        return value
    first = labels.index(present[0])
    shape = list(value.shape)
    for axis, label in enumerate(labels[first:]):
        if label not in factor.labels:
            shape.insert(axis, 1)
            value = code.view(f"{{0}}.unsqueeze({axis})", value, shape=shape)
    return value


def diagonals(code: Instructions, value: Value, labels: Sequence[int]) -> Labelled:
    """Return the diagonals of a value over repeated labels, so that each label occurs once."""
    axis_labels = list(labels)
    while len(set(axis_labels)) < len(axis_labels):
        label = next(label for label in axis_labels if axis_labels.count(label) > 1)
        first = axis_labels.index(label)
        second = axis_labels.index(label, first + 1)
        shape = [n for axis, n in enumerate(value.shape) if axis not in (first, second)] + [value.shape[first]]
        value = code.view(f"{{0}}.diagonal(0, {first}, {second})", value, shape=shape)
        axis_labels = [name for axis, name in enumerate(axis_labels) if axis not in (first, second)] + [label]
    return Labelled(value, tuple(axis_labels))


def summed(code: Instructions, factor: Labelled, out: set[int]) -> Labelled:
    """Return a factor summed over its labels that are not in `out`."""
    axes = [axis for axis, label in enumerate(factor.labels) if label not in out]
    if not axes:
        return factor
    labels = tuple(label for label in factor.labels if label in out)
    shape = [n for axis, n in enumerate(factor.value.shape) if axis not in axes]
    template = f"torch.sum({{0}}, {tuple(axes)})" if labels else "torch.sum({0})"
    return Labelled(code.emit(template, factor.value, shape=shape), labels)


def product(code: Instructions, factors: Sequence[Labelled], out: Labels) -> Labelled:
    """Return the product of at least one factor, summed over labels that `out` lacks; the label order may differ."""
    left, right = two_factors(code, factors, out)
    if right is None:
        return left
    plan = matrix_product(code, left, right, out)
    return plan.emitted(code) if plan else pair(code, left, right, out)


def two_factors(code: Instructions, factors: Sequence[Labelled], out: Labels) -> tuple[Labelled, Labelled | None]:
    """Return the last two factors of a product after multiplying the others in a good order."""
    waiting = [summed(code, factor, _needed(factors, [k], out)) for k, factor in enumerate(factors)]
    while len(waiting) > 2 and (pair_found := _known_pair(code, waiting) or _scaling(waiting)):
        waiting = _multiplied(code, waiting, pair_found, out)
    if len(waiting) == 1:
        return waiting[0], None
    for positions in _path(waiting, out)[:-1]:
        waiting = _multiplied(code, waiting, positions, out)
    return waiting[0], waiting[1]


def _known_pair(code: Instructions, factors: Sequence[Labelled]) -> tuple[int, int] | None:
    """Return two factors with an existing entrywise product."""
    for k, right in enumerate(factors):
        for j, left in enumerate(factors[:k]):
            fits = left.labels == right.labels or not left.labels or not right.labels
            if fits and entrywise.is_multiplied(code, left.value, right.value):
                return j, k
    return None


def _scaling(factors: Sequence[Labelled]) -> tuple[int, int] | None:
    """Return a vector between matrices and the factor to scale with it first: a vector, matrix columns or matrix rows.

    None if the product ends in a vector: scaling that is cheaper.
    """
    counts = Counter(label for factor in factors if len(factor.labels) > 1 for label in factor.labels)
    if any(len(factor.labels) < 2 and any(counts[label] < 2 for label in factor.labels) for factor in factors):
        return None
    which = next((k for k, factor in enumerate(factors) if len(factor.labels) == 1), None)
    if which is None:
        return None
    (label,) = factors[which].labels
    remaining = [k for k, factor in enumerate(factors) if k != which and label in factor.labels]
    smallest = min(remaining, key=lambda k: factors[k].value.size)
    # scaling columns needs no view, which pays for a matrix of up to twice the size
    fits = [k for k in remaining if factors[k].labels[-1] == label and len(factors[k].labels) <= 2]
    best = min(fits, key=lambda k: factors[k].value.size, default=smallest)
    return which, best if factors[best].value.size <= 2 * factors[smallest].value.size else smallest


def _multiplied(
    code: Instructions, factors: Sequence[Labelled], positions: Sequence[int], out: Labels
) -> list[Labelled]:
    """Return the factors with some of them replaced by their product, at the end."""
    operands = [factors[k] for k in positions]
    remaining = [factor for k, factor in enumerate(factors) if k not in positions]
    needed = _needed(factors, positions, out)
    inner = dict.fromkeys(label for factor in operands for label in factor.labels if label in needed)
    order = sorted(inner, key=lambda label: out.index(label) if label in out else len(out))
    return [*remaining, product(code, operands, tuple(order))]


def _needed(factors: Sequence[Labelled], positions: Sequence[int], out: Labels) -> set[int]:
    """Return the labels of a product that the factors at some positions may not lose."""
    return set(out).union(*(factor.labels for k, factor in enumerate(factors) if k not in positions))


def _path(factors: Sequence[Labelled], out: Labels) -> list[tuple[int, ...]]:
    if len(factors) > 2 and all(label in out for factor in factors for label in factor.labels):
        return _entrywise_path(factors)
    return contraction_order([factor.labels for factor in factors], out, _extents(*factors))


def contraction_order(
    inputs: Sequence[Sequence[int]], out: Sequence[int], extents: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """Return the pairs of positions to multiply in turn; each product is appended to the remaining factors.

    `inputs` are the labels of at least two factors, `out` of the result; `extents` are by label.
    """
    if len(inputs) == 2:
        return [(0, 1)]
    search = paths.optimal if len(inputs) <= _MAX_OPTIMAL else paths.greedy
    path = search([frozenset(labels) for labels in inputs], frozenset(out), extents)  # pyright: ignore
    return [tuple(pair) for pair in path]


def _entrywise_path(factors: Sequence[Labelled]) -> list[tuple[int, ...]]:
    """Return the order of a product without sums: smallest factors first."""
    waiting = list(factors)
    path: list[tuple[int, ...]] = []
    while len(waiting) > 1:
        ranked = sorted(range(len(waiting)), key=lambda k: waiting[k].value.size)
        first = ranked[0]
        second = next((k for k in ranked[1:] if waiting[k].labels == waiting[first].labels), ranked[1])
        path.append((first, second))
        larger = waiting[second]
        waiting = [factor for k, factor in enumerate(waiting) if k not in (first, second)] + [larger]
    return path


def matrix_product(code: Instructions, left: Labelled, right: Labelled, out: Labels) -> MatrixProduct | None:
    """Return two factors as a matrix product, None with a batch label or without a summed label."""
    common = [label for label in left.labels if label in right.labels]
    contracted = [label for label in common if label not in out]
    if not contracted or len(contracted) < len(common):
        return None
    rows = [label for label in left.labels if label not in contracted]
    columns = [label for label in right.labels if label not in contracted]
    if not rows and not columns:
        return None
    if not rows or (columns and out.index(columns[0]) < out.index(rows[0])):
        left, right, rows, columns = right, left, columns, rows
    if left.value.size < right.value.size:
        contracted = [label for label in right.labels if label in contracted]
    else:
        contracted = [label for label in left.labels if label in contracted]
    extents = _extents(left, right)
    first = matrix(code, left, rows, contracted)
    second = matrix(code, right, contracted, columns)
    labels = (*rows, *columns)
    return MatrixProduct(first, second, labels, tuple(extents[label] for label in labels))


def _extents(*factors: Labelled) -> dict[int, int]:
    return {label: n for factor in factors for label, n in zip(factor.labels, factor.value.shape, strict=True)}


def matrix(code: Instructions, factor: Labelled, rows: Sequence[int], columns: Sequence[int]) -> Value:
    """Return a factor as a matrix, or as a vector without column labels."""
    extents = dict(zip(factor.labels, factor.value.shape, strict=True))
    height, width = prod(extents[label] for label in rows), prod(extents[label] for label in columns)
    if not columns:
        axes = [factor.labels.index(label) for label in rows]
        return reshape(code, permute(code, factor.value, axes), (height,))
    if factor.labels == (*columns, *rows):
        return permute(code, reshape(code, factor.value, (width, height)), (1, 0))
    axes = [factor.labels.index(label) for label in (*rows, *columns)]
    return reshape(code, permute(code, factor.value, axes), (height, width))


def pair(code: Instructions, left: Labelled, right: Labelled, out: Labels) -> Labelled:
    """Return another product of two factors: entrywise, a dot product, or a batch of matrix products."""
    common = [label for label in left.labels if label in right.labels]
    contracted = [label for label in common if label not in out]
    if not contracted:
        return Labelled(entrywise.multiply(code, aligned(code, left, out), aligned(code, right, out)), out)
    if len(contracted) == len(left.labels) == len(right.labels):
        vectors = [matrix(code, factor, contracted, ()) for factor in (left, right)]
        return Labelled(code.emit("torch.dot({0}, {1})", *vectors, shape=()), ())
    return _batch(code, left, right, [label for label in common if label in out], contracted)


def _batch(
    code: Instructions, left: Labelled, right: Labelled, batch: Sequence[int], contracted: Sequence[int]
) -> Labelled:
    rows, columns = ([k for k in f.labels if k not in batch and k not in contracted] for f in (left, right))
    if not rows and not columns:
        labels = (*batch, *contracted)
        entries = entrywise.multiply(code, aligned(code, left, labels), aligned(code, right, labels))
        return summed(code, Labelled(entries, labels), set(batch))
    extents = _extents(left, right)
    first = _stack(code, left, batch, rows, contracted)
    second = _stack(code, right, batch, contracted, columns)
    shape = (first.shape[0], first.shape[1], second.shape[2])
    flat = code.emit("torch.bmm({0}, {1})", first, second, shape=shape)
    labels = (*batch, *rows, *columns)
    return Labelled(reshape(code, flat, [extents[label] for label in labels]), labels)


def _stack(
    code: Instructions, factor: Labelled, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> Value:
    extents = _extents(factor)
    axes = [factor.labels.index(label) for label in (*batch, *rows, *columns)]
    shape = [prod(extents[label] for label in group) for group in (batch, rows, columns)]
    return reshape(code, permute(code, factor.value, axes), shape)
