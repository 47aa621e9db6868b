"""The parameters of a planned model: names, shapes and first values. No tensors."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import sqrt

# Small: attention starts near uniform.
QUERY_STD = 0.01


class Initial(StrEnum):
    """How a parameter gets its first values."""

    BIAS = "bias"  # node.bias
    WEIGHT = "weight"  # edge.weight
    ZERO = "zero"
    UNIFORM = "uniform"  # U(-bound, bound)
    QUERY = "query"  # small normal
    ONE = "one"
    NORMAL = "normal"  # N(0, bound^2)


@dataclass(frozen=True)
class ParameterPlan:
    """One parameter: its full name, shape and first values."""

    name: str
    shape: tuple[int, ...]
    initial: Initial
    bound: float = 0.0
    owner: int | None = None  # of an operation: the place of the in-edge; of a model: the id of the node or in-edge

    @cached_property
    def module(self) -> str:
        """The name of the submodule that holds the parameter, empty for the model itself."""
        return self.name.rpartition(".")[0]

    @cached_property
    def leaf(self) -> str:
        """The name of the parameter in its submodule."""
        return self.name.rpartition(".")[2]


def linear_parameter(name: str, in_features: int, out_features: int, *, owner: int | None = None) -> ParameterPlan:
    """The weight of an nn.Linear without bias."""
    # nn.Linear's default, kaiming_uniform_(a=sqrt(5)), factor by factor so that the draws are bit-identical.
    bound = sqrt(3.0) * (sqrt(2.0 / (1 + sqrt(5) ** 2)) / sqrt(in_features))
    return ParameterPlan(f"{name}.weight", (out_features, in_features), Initial.UNIFORM, bound, owner)
