"""Contract of nodes of tensor programs, over every class of the package and over classes of a user."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gflownet.autodiff.custom_node import CustomNode
from gflownet.autodiff.functions import Function
from gflownet.autodiff.nodes import CastNode, ElementwiseNode, LeafNode, LinearNode, Node, NonlinearNode, TransformNode
from gflownet.testing import ContractError, NodeContract, check_node

DOUBLE = torch.float64


class MultiplyByTwoNode(CustomNode):
    """Twice the operand."""

    def forward_(self, source: Tensor) -> Tensor:
        return source * 2.0

    def backward_(self, gradient: Tensor, value: Tensor, source: Tensor) -> Sequence[Tensor | None]:
        return (gradient * 2.0,)


class Clip(CustomNode):
    """Entries limited to an interval."""

    low: float = -1.0
    high: float = 1.0

    def shape_(self, *shapes: tuple[int, ...]) -> Sequence[int]:
        if self.low > self.high:
            raise ValueError(f"expected low <= high, got {self.low} and {self.high}")
        return shapes[0]

    def forward_(self, source: Tensor) -> Tensor:
        return source.clamp(self.low, self.high)

    def backward_(self, gradient: Tensor, value: Tensor, source: Tensor) -> Sequence[Tensor | None]:
        return (gradient * ((source >= self.low) & (source <= self.high)),)


class Bilinear(CustomNode):
    """`out[k] = sum_ij left[i] weight[k,i,j] right[j]`: three operands, another shape, nonlinear."""

    def shape_(self, *shapes: tuple[int, ...]) -> Sequence[int]:
        left, weight, right = shapes
        if (*left, *right) != weight[1:]:
            raise ValueError(f"expected a weight of shape [k, {left[0]}, {right[0]}], got {list(weight)}")
        return weight[:1]

    def forward_(self, left: Tensor, weight: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("i,kij,j->k", left, weight, right)

    def backward_(
        self, gradient: Tensor, value: Tensor, left: Tensor, weight: Tensor, right: Tensor
    ) -> Sequence[Tensor | None]:
        return (
            torch.einsum("k,kij,j->i", gradient, weight, right),
            torch.einsum("k,i,j->kij", gradient, left, right),
            torch.einsum("k,i,kij->j", gradient, left, weight),
        )


class Lookup(CustomNode):
    """Rows of a table; torch differentiates it, the integer operand has no gradient."""

    def shape_(self, *shapes: tuple[int, ...]) -> Sequence[int]:
        return (*shapes[0], *shapes[1][1:])

    def dtype_(self, *dtypes: torch.dtype) -> torch.dtype:
        return dtypes[1]

    def forward_(self, positions: Tensor, table: Tensor) -> Tensor:
        return table[positions]


class Exponential(CustomNode):
    """exp, whose derivative is the value."""

    def forward_(self, source: Tensor) -> Tensor:
        return torch.exp(source)

    def backward_(self, gradient: Tensor, value: Tensor, source: Tensor) -> Sequence[Tensor | None]:
        return (gradient * value,)


class Same(CustomNode):
    """The operand itself, not a copy."""

    def forward_(self, source: Tensor) -> Tensor:
        return source

    def backward_(self, gradient: Tensor, value: Tensor, source: Tensor) -> Sequence[Tensor | None]:
        return (gradient,)


class Rolled(CustomNode):
    """Entries shifted along axes: settings of every type."""

    steps: tuple[int, ...]
    axis: int = 0
    is_flipped: bool = False
    mode: str = "cyclic"

    def forward_(self, source: Tensor) -> Tensor:
        rolled = torch.roll(source, sum(self.steps), self.axis)
        return rolled.flip(self.axis) if self.is_flipped else rolled


def x(*shape: int, name: str = "x") -> LeafNode:
    return LeafNode(shape, dtype=DOUBLE, name=name)


def rows() -> LeafNode:
    return LeafNode([3], dtype=torch.int64, name="rows", value=torch.tensor([2, 0, 2]))


EXAMPLES: list[Node] = [
    MultiplyByTwoNode(x(2, 3), name="twice"),
    MultiplyByTwoNode(x(), name="twice"),
    Clip(x(5), high=0.5, name="y"),
    Bilinear(x(2), x(2, 2, 3, name="w"), x(3, name="z"), name="y"),
    Lookup(rows(), x(3, 2, name="table"), name="y"),
    Exponential(x(3), name="y"),
    Same(x(3), name="y"),
    Rolled(x(2, 3), steps=[1, 1], axis=1, is_flipped=True, name="y"),
    TransformNode(x(2, 3), [1, -1], [1, -1], alpha=0.5, new_dims=[2], name="y"),
    ElementwiseNode(x(2, 3), x(3, name="z"), [1], [1, -2], [-2], operation="-", name="y"),
    LinearNode(x(2, 3), x(3, name="z"), [1], [1, -2], [-2], name="y"),
    NonlinearNode(x(3), Function.parse("softplus(x)*x"), name="y"),
    CastNode(x(3), DOUBLE, name="y"),
]
CASES = [pytest.param(node, id=f"{type(node).__name__}-{node.rank}") for node in EXAMPLES]


@pytest.mark.parametrize("check", NodeContract.names())
@pytest.mark.parametrize("example", CASES)
def test_node(example: Node, check: str) -> None:
    NodeContract(example).run(check)


class WrongSlope(MultiplyByTwoNode):
    """Three times the gradient."""

    def backward_(self, gradient: Tensor, value: Tensor, source: Tensor) -> Sequence[Tensor | None]:
        return (gradient * 3.0,)


class WrongCurvature(Exponential):
    """A gradient that torch cannot differentiate."""

    def backward_(self, gradient: Tensor, value: Tensor, source: Tensor) -> Sequence[Tensor | None]:
        return (gradient * torch.exp(source.detach()),)


class WrongShape(MultiplyByTwoNode):
    """The sum."""

    def forward_(self, source: Tensor) -> Tensor:
        return source.sum()


class WrongCount(MultiplyByTwoNode):
    """Two gradients for one operand."""

    def backward_(self, gradient: Tensor, value: Tensor, source: Tensor) -> Sequence[Tensor | None]:
        return (gradient, gradient)


class WrongGradientShape(MultiplyByTwoNode):
    """A gradient that broadcasts."""

    def backward_(self, gradient: Tensor, value: Tensor, source: Tensor) -> Sequence[Tensor | None]:
        return (gradient.sum(),)


class Overwriting(MultiplyByTwoNode):
    """The operand, doubled in place."""

    def forward_(self, source: Tensor) -> Tensor:
        return source.mul_(2.0)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (WrongSlope, "WrongSlope: expected backward.. to add the gradient of finite differences"),
        (WrongCurvature, "expected the Hessian by LeafNode 'x' of finite differences"),
        (WrongShape, r"WrongShape: forward_: expected a tensor \[3\] of torch.float64, got \[\]"),
        (WrongCount, "WrongCount: backward_: expected a gradient or None for each of 1 operands"),
        (WrongGradientShape, r"WrongGradientShape: backward_: expected a tensor \[3\] of torch.float64, got \[\]"),
        (Overwriting, "Overwriting: "),
    ],
)
def test_node_contract_refuses(kind: type[CustomNode], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        check_node(kind(x(3)))
