"""Recover a hidden program in index notation from its results on random inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from gflownet.options import AT_LEAST_ONE, option

MISPLACED_AXIS = 0.7  # factor of a score for each axis that only the result or only the target has
EXACT = 1e-6  # rounding error of a score
LEAST_SCORE = 1e-3  # score of a program that explains nothing
CONSTANT = 1e-12  # relative spread below which a result is a constant
SPREAD = 0.8  # standard deviation of the logarithm of the inputs' entries


@dataclass
class TensorProgramConfig:
    """The hidden program and its data."""

    target: str = option("y[i,k] = sum_j A[i,j] B[j,k]", "the hidden program, statements separated by ;")
    num_examples: int = option(16, "number of random inputs", AT_LEAST_ONE)
    data_seed: int = option(0, "seed of the inputs")


class TensorProgramTask(GFNTask):
    """Scores a program by the share of the target's spread that its result, scaled and shifted, explains.

    The hidden program scores 1. Programs cannot add constants, so the shift makes no wrong program exact; it lets a
    program with the right indices but a missing function score high.

    Axes are matched in the best order: programs do not fix the order of a result's axes. The inputs are positive, so
    that a program with some right indices explains a part of the target.
    """

    Config = TensorProgramConfig
    is_cheap = True

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        self.inputs = read_inputs(config.env.tensor_graph.inputs)
        self.hidden = self._read(config.task_options.target)
        self._target = self._value(self.hidden.node(self._leaves))

    def evaluate(self, graph: TensorProgram, *, seed: int) -> Score:
        """Return the score; metrics: `exact` on the data, `hidden` for the hidden program itself."""
        if graph.inputs != self.inputs:
            raise ValueError(f"expected a program on {self.inputs}, got one on {graph.inputs}")
        explained = best_explained(self._value(graph.node(self._leaves)), self._target)
        is_exact = explained > 1 - EXACT
        return Score(
            max(explained, LEAST_SCORE), metrics={"exact": float(is_exact), "hidden": float(graph == self.hidden)}
        )

    def _read(self, text: str) -> TensorProgram:
        """Return the hidden program.

        Raises:
            ValueError: not a program, or one with other inputs than the environment.
        """
        try:
            return program_of(parse(text.replace(";", "\n")).node(self.inputs), self.inputs)
        except ValueError as error:
            raise ValueError(f"task_options.target: {error}") from None

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
        values = {
            leaf: torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype) for leaf in self._leaves.values()
        }
        return {leaf: (SPREAD * normal).exp() for leaf, normal in values.items()}

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
    """Yield the result reshaped to broadcast against the target, and the number of axes that only one of them has.

    As many axes are matched as extents allow; the result is averaged over its other axes.
    """
    rank = target.ndim - 1
    free = [None] * max(0, rank - (result.ndim - 1))
    tried, max_matched = set(), -1
    alignments = []
    for order in permutations([*range(1, result.ndim), *free], rank):
        fits = tuple(
            axis if axis is not None and result.shape[axis] == extent else None
            for axis, extent in zip(order, target.shape[1:], strict=True)
        )
        num_matched = sum(axis is not None for axis in fits)
        if fits not in tried:
            tried.add(fits)
            alignments.append((num_matched, fits))
            max_matched = max(max_matched, num_matched)
    for num_matched, fits in alignments:
        if num_matched == max_matched:
            extra = [axis for axis in range(1, result.ndim) if axis not in fits]
            matched = [axis for axis in range(1, result.ndim) if axis in fits]
            reduced = result.mean(extra) if extra else result
            placed = reduced.permute(0, *(1 + matched.index(axis) for axis in fits if axis is not None))
            shape = [target.shape[0], *(1 if axis is None else result.shape[axis] for axis in fits)]
            yield placed.reshape(shape), result.ndim - 1 + rank - 2 * max_matched


def _explained(result: Tensor, target: Tensor) -> float:
    """Return 1 - sqrt(1 - R^2) with R the correlation: one minus the residual of the best factor and offset.

    The root separates nearly right from right: R^2 = 0.97 scores 0.83.
    """
    centred, varied = target - target.mean(), (result - result.mean()).expand(target.shape)
    norm = varied.norm()
    if not bool(torch.isfinite(norm)) or float(norm) <= CONSTANT * float(result.expand(target.shape).norm()):
        return 0.0
    residual = centred - (varied * centred).sum() / norm.square() * varied
    return 1 - float(residual.norm() / centred.norm())
