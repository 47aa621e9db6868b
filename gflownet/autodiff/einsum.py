"""Einstein sums of any number of operands, as a chain of the nodes that take one and two."""
# ruff: noqa: N802  (a factory is named after its node, as in seed 004)

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gflownet.autodiff.nodes import LinearNode, Node, TransformNode


def Einsum(equation: str, *operands: Node) -> Node:
    """Return the contraction that an equation such as `ij,jk->ik` writes, from left to right.

    Args:
        equation: a letter per axis of each operand, and those of the result; without `->`, the letters that are there
            once, in alphabetical order.
        operands: as many as the equation has.

    Raises:
        ValueError: the equation does not fit the operands, has an ellipsis, a letter twice in one operand (no node
            takes a diagonal) or a letter in the result only.
    """
    inputs, output = _terms(equation, len(operands))
    _check_extents(equation, inputs, operands)
    labels, node = inputs[0], operands[0]
    for place, (other_labels, other) in enumerate(zip(inputs[1:], operands[1:], strict=True), start=1):
        needed = {*output, *"".join(inputs[place + 1 :])}
        kept = [label for label in dict.fromkeys(labels + other_labels) if label in needed]
        kept = list(output) if place == len(operands) - 1 else kept
        node = LinearNode(node, other, *_indices(kept, kept, labels, other_labels))
        labels = "".join(kept)
    return node if labels == output else TransformNode(node, *_indices(output, output, labels))


def _terms(equation: str, num_operands: int) -> tuple[list[str], str]:
    text = equation.replace(" ", "")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    every = "".join(inputs)
    where = f"Einsum {equation!r}"
    if not all(label.isalpha() for label in every + output):
        raise ValueError(f"{where}: expected letters, commas and one ->; an ellipsis is not taken")
    if len(inputs) != num_operands:
        raise ValueError(f"{where}: expected {len(inputs)} operands, got {num_operands}")
    if not arrow:
        output = "".join(sorted(label for label, count in Counter(every).items() if count == 1))
    for term in (*inputs, output):
        twice = next((label for label in term if term.count(label) > 1), None)
        if twice:
            raise ValueError(f"{where}: expected every index once in a tensor, got {twice!r} twice in {term!r}")
    new = [label for label in output if label not in every]
    if new:
        raise ValueError(f"{where}: expected the result's indices among the operands', got {new}; see Broadcast")
    return inputs, output


def _check_extents(equation: str, inputs: Sequence[str], operands: Sequence[Node]) -> None:
    extents: dict[str, int] = {}
    for labels, node in zip(inputs, operands, strict=True):
        if len(labels) != node.rank:
            message = f"expected an operand with axes {labels!r}, got {node.label} {node.shape}"
            raise ValueError(f"Einsum {equation!r}: {message}")
        for label, extent in zip(labels, node.shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                message = f"expected one extent for {label!r}, got {extents[label]} and {extent}"
                raise ValueError(f"Einsum {equation!r}: {message}")


def _indices(output: str | list[str], *terms: str | list[str]) -> list[list[int]]:
    """Return the signed arrays of some terms; those that the output lacks are negative."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys("".join(map("".join, terms))), start=1)}
    return [[numbers[label] if label in output else -numbers[label] for label in term] for term in terms]
