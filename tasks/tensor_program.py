"""Recover a hidden program in index notation from what it makes of random inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations

import torch
from torch import Tensor

from gflownet.autodiff.evaluation import evaluate
from gflownet.autodiff.nodes import LeafNode, Node
from gflownet.autodiff.text import parse
from gflownet.envs.tensor_program import TensorProgram, program_of, read_inputs
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.task import GFNTask, Score

MISPLACED_AXIS = 0.7  # what a score is multiplied by for each axis that result and target do not share
EXACT = 1e-6  # what rounding may leave of a score
LEAST_SCORE = 1e-3  # of what explains nothing
CONSTANT = 1e-12  # a result whose entries differ by no more of themselves is a constant
SPREAD = 0.8  # standard deviation of the logarithm of the inputs' entries


@dataclass
class TensorProgramConfig:
    """The hidden program and the data that it makes."""

    target: str = field(
        default="y[i,k] = sum_j A[i,j] B[j,k]", metadata={"help": "the hidden program, statements with ; between"}
    )
    num_examples: int = field(default=16, metadata={"help": "random inputs that it is seen on"})
    data_seed: int = field(default=0, metadata={"help": "seed of the inputs"})


class TensorProgramTask(GFNTask):
    """Scores a program by the share of the target's spread that its result, scaled and shifted, explains.

    The hidden one scores 1. No program adds a constant, so that the shift makes no other one right; it lets a program
    that misses a function, and with it the target's mean, show how close its indices are.

    Axes are matched in the best order, as the order of a result's axes is no part of a program. The inputs are
    positive, so that a program that has some of the right indices right explains some of the target.
    """

    Config = TensorProgramConfig

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        options = config.task_options
        if options.num_examples < 1:
            raise ValueError(f"task_options.num_examples: expected at least 1, got {options.num_examples}")
        self.inputs = read_inputs(config.env.tensor_graph.inputs)
        self.hidden = self._read(options.target)

    def evaluate(self, graph: TensorProgram, *, seed: int) -> Score:
        """Return the score; metrics say whether the program is right on the data, and whether it is the hidden one."""
        if graph.inputs != self.inputs:
            raise ValueError(f"expected a program on {self.inputs}, got one on {graph.inputs}")
        explained = best_explained(self._value(graph.node(self._leaves)), self._target)
        is_exact = explained > 1 - EXACT
        return Score(
            max(explained, LEAST_SCORE),
            metrics={"exact": float(is_exact), "hidden": float(graph == self._hidden_program)},
        )

    def _read(self, text: str) -> Node:
        """Return the hidden program on the stacked examples.

        Raises:
            ValueError: it is no program, or on other inputs than the environment's.
        """
        try:
            node = parse(text.replace(";", "\n")).node(self.inputs)
            return program_of(node, self.inputs).node(self._leaves)
        except ValueError as error:
            raise ValueError(f"task_options.target: {error}") from None

    @cached_property
    def _hidden_program(self) -> TensorProgram:
        text = str(self.config.task_options.target)
        return program_of(parse(text.replace(";", "\n")).node(self.inputs), self.inputs)

    @cached_property
    def _leaves(self) -> dict[str, LeafNode]:
        num = self.config.task_options.num_examples
        return {
            name: LeafNode((num, *shape), name=name, dtype=torch.float64, requires_grad=False)
            for name, shape in self.inputs.items()
        }

    @cached_property
    def _values(self) -> dict[LeafNode, Tensor]:
        generator = torch.Generator().manual_seed(self.config.task_options.data_seed)
        draw = {leaf: torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype) for leaf in self._leaves.values()}
        return {leaf: (SPREAD * values).exp() for leaf, values in draw.items()}

    @cached_property
    def _target(self) -> Tensor:
        return self._value(self.hidden)

    def _value(self, node: Node) -> Tensor:
        return evaluate([node], self._values)[0]


def best_explained(result: Tensor, target: Tensor) -> float:
    """Return the largest share of the target's spread that the result explains, over all ways to match axes.

    Args:
        result: [examples, ...], its further axes in any order.
        target: [examples, ...].
    """
    return max(
        max(_explained(aligned, target), 0.0) * MISPLACED_AXIS**num_misplaced
        for aligned, num_misplaced in _alignments(result, target)
    )


def _alignments(result: Tensor, target: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield the result as it broadcasts against the target, and how many axes only one of them has.

    As many axes as extents allow are matched; over others of the result is averaged.
    """
    rank = target.ndim - 1
    free = [None] * max(0, rank - (result.ndim - 1))
    seen, most = set(), -1
    found = []
    for order in permutations([*range(1, result.ndim), *free], rank):
        fits = tuple(
            axis if axis is not None and result.shape[axis] == extent else None
            for axis, extent in zip(order, target.shape[1:], strict=True)
        )
        num_matched = sum(axis is not None for axis in fits)
        if fits not in seen:
            seen.add(fits)
            found.append((num_matched, fits))
            most = max(most, num_matched)
    for num_matched, fits in found:
        if num_matched == most:
            others = [axis for axis in range(1, result.ndim) if axis not in fits]
            kept = [axis for axis in range(1, result.ndim) if axis in fits]
            reduced = result.mean(others) if others else result
            placed = reduced.permute(0, *(1 + kept.index(axis) for axis in fits if axis is not None))
            shape = [target.shape[0], *(1 if axis is None else result.shape[axis] for axis in fits)]
            yield placed.reshape(shape), result.ndim - 1 + rank - 2 * most


def _explained(result: Tensor, target: Tensor) -> float:
    """Return 1 - sqrt(1 - R^2), R the correlation of both: what the best factor and the best offset leave unexplained.

    The root tells what is nearly right from what is right: R^2 = 0.97 scores 0.83.
    """
    wanted, varied = target - target.mean(), (result - result.mean()).expand(target.shape)
    norm = varied.norm()
    if not bool(torch.isfinite(norm)) or float(norm) <= CONSTANT * float(result.expand(target.shape).norm()):
        return 0.0
    residual = wanted - (varied * wanted).sum() / norm.square() * varied
    return 1 - float(residual.norm() / wanted.norm())
