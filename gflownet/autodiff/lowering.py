"""Lower terms to instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from gflownet.autodiff import contraction, entrywise
from gflownet.autodiff.contraction import Labelled, Labels, MatrixProduct, aligned, diagonals
from gflownet.autodiff.instructions import Instructions, Value
from gflownet.autodiff.terms import Alias, Apply, Cast, Einsum, Leaf, Map, Sum, Term, View, ordered

_MAX_FACTORS = 12  # of a flattened product: with more, finding an order takes longer than it saves


def lowered(
    outputs: Sequence[Term], arguments: Iterable[tuple[tuple[int, ...], torch.dtype]]
) -> tuple[Instructions, list[Value]]:
    """Return the instructions that compute terms, and the output values, which share no memory with arguments.

    `arguments` are shape and dtype by `Leaf.slot`.
    """
    lowering = _Lowering(outputs, Instructions(arguments))
    lowering.lower(outputs)
    values = [lowering.owned(term) for term in outputs]
    return lowering.code, values


class _Lowering:
    def __init__(self, outputs: Sequence[Term], code: Instructions) -> None:
        self.code = code
        self._values: dict[Term, Value] = {}
        self._returned: set[Value] = set()
        self._inlined: dict[Term, list[tuple[Term, Labels]]] = {}
        order = ordered(outputs)
        self._uses = Counter(source for term in order for source in term.inputs)
        self._uses.update(outputs)
        for term in order:
            if isinstance(term, Einsum):
                self._flatten(term)

    def owned(self, term: Term) -> Value:
        """Return a term's value in memory that nothing else shares."""
        value = self._values[term]
        root = value.root
        if not root.template or value.is_expanded or root in self._returned:
            template = "{0}.clone(memory_format=torch.contiguous_format)"
            copy = self.code.emit(template, value, shape=value.shape)
            while copy in self._returned:  # the same term is an output twice
                copy = self.code.emit(template, copy, shape=value.shape)
            root = value = copy
        self._returned.add(root)
        return value

    def lower(self, outputs: Sequence[Term]) -> None:
        """Lower outputs and their inputs by `uid`, so that derivatives reuse values of the forward computation."""
        needed: set[Term] = set()
        waiting = list(outputs)
        while waiting:
            term = waiting.pop()
            if term not in needed:
                needed.add(term)
                waiting.extend(self._sources(term))
        for term in sorted(needed, key=lambda term: term.uid):
            self._values[term] = self._lower(term)

    def _sources(self, term: Term) -> list[Term]:
        """Return the terms to lower before a term; a product used only in a sum is lowered with the sum."""
        if isinstance(term, Einsum):
            sources = [source for source, _ in self._factors(term)]
            return [source.inputs[0] if self._is_split(source) else source for source in sources]
        if isinstance(term, Sum):
            pairs = ((each, each.inputs if isinstance(each, View) else (each,)) for each in term.inputs)
            sources = (self._sources(*core) if core and self._is_fused(each) else core for each, core in pairs)
            return [source for part in sources for source in part]
        return list(term.inputs)

    def _is_fused(self, addend: Term) -> bool:
        """Return whether an addend is a product, perhaps with permuted axes, that only the sum uses."""
        if isinstance(addend, View) and not addend.is_sparse and addend.inputs and self._uses[addend] == 1:
            addend = addend.inputs[0]
        return isinstance(addend, Einsum) and self._uses[addend] == 1

    def _factors(self, term: Einsum) -> list[tuple[Term, Labels]]:
        return self._inlined.get(term) or list(zip(term.inputs, term.labels, strict=True))

    def _flatten(self, term: Einsum) -> None:
        """Flatten factors that are products, used only here and larger than a factor of either product."""
        factors = self._factors(term)
        flat: list[tuple[Term, Labels]] = []
        fresh = len(term.extents)
        for k, (source, labels) in enumerate(factors):
            other_sizes = [other.size for j, (other, _) in enumerate(factors) if j != k]
            least = min([*other_sizes, *(factor.size for factor in source.inputs)], default=source.size)
            if not (isinstance(source, Einsum) and self._uses[source] == 1 and source.size > least):
                flat.append((source, labels))
                continue
            inner = self._factors(source)
            if len(inner) + len(factors) + len(flat) - k > _MAX_FACTORS:
                flat.append((source, labels))
                continue
            names = dict(zip(source.out, labels, strict=True))
            for inner_term, inner_labels in inner:
                for label in inner_labels:
                    if label not in names:
                        names[label] = fresh
                        fresh += 1
                flat.append((inner_term, tuple(names[label] for label in inner_labels)))
        if len(flat) > len(factors):
            self._inlined[term] = flat

    def _lower(self, term: Term) -> Value:
        match term:
            case Leaf():
                return self.code.arguments[term.slot]
            case Alias():
                return self._values[term.inputs[0]]
            case Cast():
                source = self._values[term.inputs[0]]
                return self.code.emit(f"{{0}}.to({term.dtype})", source, shape=term.shape, dtype=term.dtype)
            case Map():
                return entrywise.apply(self.code, term.function, self._values[term.inputs[0]])
            case Apply():
                return self.code.call(term.function, [self._values[source] for source in term.inputs])
            case Einsum():
                return aligned(self.code, contraction.product(self.code, self._operands(term), term.out), term.out)
            case Sum():
                return self._sum(term)
            case View():
                return self._view(term)
            case _:
                raise TypeError(f"{type(term).__name__}: expected one of the forms of gflownet.autodiff.terms")

    def _operands(self, term: Einsum) -> list[Labelled]:
        operands: list[Labelled] = []
        for source, labels in self._factors(term):
            values = self._split(source) if self._is_split(source) else [self._values[source]]
            operands.extend(diagonals(self.code, value, labels) for value in values)
        return operands

    def _is_split(self, term: Term) -> bool:
        """Return whether a function is a product that only one product of tensors uses: then its factors join that."""
        return isinstance(term, Map) and self._uses[term] == 1 and len(entrywise.factors_of(term.function)) > 1

    def _split(self, term: Term) -> list[Value]:
        assert isinstance(term, Map)
        x = self._values[term.inputs[0]]
        return [entrywise.apply(self.code, factor, x) for factor in entrywise.factors_of(term.function)]

    def _view(self, term: View) -> Value:
        if term.is_sparse:
            return self._with_diagonal(self._filled(0.0, term.shape, term.dtype), term, term.alpha)
        if not term.inputs:
            return self._filled(term.alpha, term.shape, term.dtype)
        core = diagonals(self.code, self._values[term.inputs[0]], term.labels)
        scaled = Labelled(entrywise.scale(self.code, term.alpha, core.value), core.labels)
        return self._expanded(aligned(self.code, scaled, term.out), term.shape)

    def _expanded(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.shape == shape:
            return value
        return self.code.view(f"{{0}}.expand({shape})", value, shape=shape, is_expanded=True)

    def _filled(self, value: float, shape: tuple[int, ...], dtype: torch.dtype) -> Value:
        like = next((x for x in self.code.arguments if x.dtype == dtype), None)
        call = f"zeros({shape}" if value == 0.0 else f"full({shape}, {entrywise.number(value)}"
        if like is not None:
            return self.code.emit(f"{{0}}.new_{call})", like, shape=shape)
        place = (self.code.arguments[0],) if self.code.arguments else ()
        device = ", device={0}.device" if place else ""
        return self.code.emit(f"torch.{call}, dtype={dtype}{device})", *place, shape=shape, dtype=dtype)

    def _with_diagonal(self, total: Value, term: View, alpha: float) -> Value:
        """Return `total` with `alpha * the view's source` added on the diagonal."""
        path, labels = _diagonal_path(term.out)
        step = "".join(f".diagonal(0, {first}, {second})" for first, second in path)
        if len(term.out) == 2:
            step = ".diagonal()"
        embed = "".join(f", 0, {first}, {second})" for first, second in reversed(path))
        opening = "torch.diag_embed(" * len(path)
        extents = dict(zip(term.out, term.shape, strict=True))
        shape = tuple(extents[label] for label in labels)
        if not term.inputs:
            number = entrywise.number(alpha)
            in_place = ((0, f"{{0}}{step}.add_({number})"),)
            template = f"torch.add({{0}}, {opening}{{0}}.new_ones({shape}){embed}, alpha={number})"
            return self.code.emit(template, total, shape=total.shape, in_place=in_place)
        core = diagonals(self.code, self._values[term.inputs[0]], term.labels)
        value = aligned(self.code, core, labels)
        number = "" if alpha == 1.0 else f", alpha={entrywise.number(alpha)}"
        in_place = ((0, f"{{0}}{step}.add_({{1}}{number})"),)
        full = value if value.shape == shape else self._expanded(value, shape)
        template = f"torch.add({{0}}, {opening}{{1}}{embed}{number})"
        return self.code.emit(template, total, full, shape=total.shape, in_place=in_place)

    def _sum(self, term: Sum) -> Value:
        """Return the sum: dense addends first, matrix products added in one call each, diagonals at the end."""
        dense: list[tuple[float, Value]] = []
        products: list[tuple[float, MatrixProduct]] = []
        sparse: list[tuple[float, View]] = []
        constant = 0.0
        for coefficient, source in zip(term.coefficients, term.inputs, strict=True):
            if isinstance(source, View) and source.is_sparse:
                sparse.append((coefficient, source))
            elif isinstance(source, View) and not source.inputs:
                constant += coefficient
            else:
                self._addend(coefficient, source, dense, products)
        total = self._total(dense, products)
        if total is None or (sparse and total.shape != term.shape):
            start = self._filled(constant, term.shape, term.dtype)
            total = start if total is None else entrywise.add(self.code, start, total)
        else:
            total = entrywise.shift(self.code, total, constant)
        for coefficient, source in sparse:
            total = self._with_diagonal(total, source, coefficient)
        return self._expanded(total, term.shape)

    def _addend(
        self,
        coefficient: float,
        source: Term,
        dense: list[tuple[float, Value]],
        products: list[tuple[float, MatrixProduct]],
    ) -> None:
        """Add one term to the lists: as a matrix product of the right layout, or as a value that broadcasts."""
        rank, is_fused = len(source.shape), self._is_fused(source)
        out: Labels = tuple(range(rank))
        labels: Labels = out
        if isinstance(source, View):
            out, labels, source = source.out, source.labels, source.inputs[0]
        if not (isinstance(source, Einsum) and is_fused):
            dense.append((coefficient, aligned(self.code, diagonals(self.code, self._values[source], labels), out)))
            return
        names = dict(zip(source.out, labels, strict=True))
        inner = {label: core_label for core_label, label in names.items()}
        core_out = tuple(inner[label] for label in out if label in labels)
        left, right = contraction.two_factors(self.code, self._operands(source), core_out)
        plan = None if right is None else contraction.matrix_product(self.code, left, right, core_out)
        if plan is not None and plan.labels == core_out and len(core_out) == rank == len(plan.flat_shape):
            products.append((coefficient, plan))
            return
        if plan is not None:
            total = plan.emitted(self.code)
        else:
            total = left if right is None else contraction.pair(self.code, left, right, core_out)
        renamed = Labelled(total.value, tuple(names[label] for label in total.labels))
        dense.append((coefficient, aligned(self.code, renamed, out)))

    def _total(self, dense: list[tuple[float, Value]], products: list[tuple[float, MatrixProduct]]) -> Value | None:
        code = self.code
        # full values first, the others broadcast into them; of these, one without a coefficient
        dense.sort(key=lambda pair: (-pair[1].size, pair[0] != 1.0, pair[1].number))
        total: Value | None = None
        beta = 1.0
        for coefficient, value in dense:
            if total is None:
                total, beta = value, coefficient
            else:
                if beta != 1.0:
                    total, beta = entrywise.scale(code, beta, total), 1.0
                total = entrywise.add(code, total, value, coefficient)
        for alpha, plan in products:
            total = self._plus_product(total, beta, plan, alpha)
            beta = 1.0
        return total if total is None else entrywise.scale(code, beta, total)

    def _plus_product(self, total: Value | None, beta: float, plan: MatrixProduct, alpha: float) -> Value:
        if total is None:
            return entrywise.scale(self.code, alpha, plan.emitted(self.code).value)
        name = "addmm" if len(plan.right.shape) == 2 else "addmv"
        numbers = "".join(
            f", {key}={entrywise.number(value)}" for key, value in (("beta", beta), ("alpha", alpha)) if value != 1.0
        )
        return self.code.emit(
            f"torch.{name}({{0}}, {{1}}, {{2}}{numbers})",
            total,
            plan.left,
            plan.right,
            shape=plan.flat_shape,
            in_place=((0, f"{{0}}.{name}_({{1}}, {{2}}{numbers})"),),
        )


def _diagonal_path(out: Labels) -> tuple[list[tuple[int, int]], Labels]:
    """Return the pairs of axes to take diagonals of, in turn, and the remaining labels."""
    left = list(out)
    path: list[tuple[int, int]] = []
    while len(set(left)) < len(left):
        label = next(label for label in left if left.count(label) > 1)
        first = left.index(label)
        second = left.index(label, first + 1)
        path.append((first, second))
        left = [name for axis, name in enumerate(left) if axis not in (first, second)] + [label]
    return path, tuple(left)
