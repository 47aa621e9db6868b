"""What RHN layers add to the vocabulary: an activation of neurons, and an operation on sequences (no torch)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gflownet.operations.activations import Cell
from gflownet.operations.operation import Category, Example, Operation, Setting, single_input
from gflownet.operations.parameters import Initial, ParameterPlan
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.operations.vocabulary import BOOL, POSITIVE_INT
from gflownet.rhn.config import PROJECTIONS, RHNConfig

if TYPE_CHECKING:
    from torch import nn


class RHNActivation(Cell):
    """A layer of a Recurrent Hyper Network: z plus a feed-forward network adapted by the output of the step before."""

    module = "gflownet.rhn.wavefront:RHNCell"
    slots = ("hidden", "token")
    step = "{y} = {layer}(({z}).unsqueeze(1), {hidden}, {token})[1]"
    sequence = "{y} = {layer}.sequence({z}, {hidden}, {token})"
    is_run_by_node = True

    @classmethod
    def parameters(cls, name: str, size: int) -> Iterator[ParameterPlan]:
        config = rhn_config(size)
        hidden, intermediate, width = config.hidden_size, config.intermediate_size, config.bottleneck + 1
        yield ParameterPlan(f"{name}.norm.weight", (hidden,), Initial.ONE)
        yield ParameterPlan(f"{name}.bhn.beta", (width,), Initial.ZERO)
        yield ParameterPlan(f"{name}.bhn.norm.weight", (hidden,), Initial.ONE)
        yield ParameterPlan(f"{name}.bhn.squeeze.weight", (config.bottleneck, hidden), Initial.NORMAL, hidden**-0.5)
        yield ParameterPlan(f"{name}.bhn.squeeze.bias", (config.bottleneck,), Initial.ZERO)
        projections = [*zip(PROJECTIONS, config.projection_sizes, strict=True)]
        for kind, (size_in, size_out) in projections:
            shape = (width, config.rank, size_in)
            yield ParameterPlan(f"{name}.bhn.{kind}.a", shape, Initial.NORMAL, (width * size_in) ** -0.5)
            yield ParameterPlan(f"{name}.bhn.{kind}.b", (width, size_out, config.rank), Initial.ZERO)
            yield ParameterPlan(f"{name}.bhn.{kind}.delta", (width, size_out), Initial.ZERO)
        for kind, (size_in, size_out) in projections:
            std = (intermediate if kind == "down" else hidden) ** -0.5
            yield ParameterPlan(f"{name}.ffn.plain.{kind}_proj.weight", (size_out, size_in), Initial.NORMAL, std)

    @classmethod
    def build(cls, size: int) -> nn.Module:
        wavefront, torch = import_module("gflownet.rhn.wavefront"), import_module("torch")
        # Not on the meta device: first values there would import torch._dynamo, which takes seconds.
        with torch.random.fork_rng(devices=[]):
            return wavefront.RHNCell(rhn_config(size))

    @classmethod
    def multiply_adds(cls, size: int) -> int:
        return rhn_config(size).step_multiply_adds

    @classmethod
    def elementwise_flops(cls, size: int) -> int:
        """Return about the number of one step of one row: norms, gates and scales."""
        config = rhn_config(size)
        of_projections = sum((3 * config.rank + 6) * size_out for _, size_out in config.projection_sizes)
        return 8 * size + 3 * config.bottleneck + 4 * config.intermediate_size + of_projections

    @classmethod
    def max_parameters(cls, size: int) -> int:
        return 8 * size**2 + 1000 * size  # exactly 6 D^2 + 713 D + 33


def rhn_config(size: int) -> RHNConfig:
    """Return the sizes of an rhn node of a width: the defaults of `RHNConfig`, a feed-forward network twice as wide."""
    return RHNConfig(hidden_size=size, intermediate_size=2 * size, depth=1)


class RHN(Operation):
    """The states of a layer of a Recurrent Hyper Network at all time steps: as wide as its input, with a residual."""

    category = Category.RECURRENT
    settings = MappingProxyType(
        {
            "rank": Setting(POSITIVE_INT, 4, choices=(2, 4)),
            "bottleneck": Setting(POSITIVE_INT, 16, choices=(8, 16)),
            "expansion": Setting(POSITIVE_INT, 2, choices=(1, 2)),
            "carry": Setting(BOOL, False),
        }
    )
    layouts = (Layout.SEQUENCE,)
    examples = (
        Example((Shape.of((4, 3)),)),
        Example((Shape.of((4, 3)),), {"rank": 2, "bottleneck": 3, "expansion": 1}),
    )

    @classmethod
    def _config(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> RHNConfig:
        size = single_input(inputs).channels
        sizes = {"hidden_size": size, "intermediate_size": settings["expansion"] * size, "depth": 1}
        return RHNConfig(**sizes, rank=settings["rank"], bottleneck=settings["bottleneck"])

    @classmethod
    def build(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> nn.Module:
        wavefront = import_module("gflownet.rhn.wavefront")
        return getattr(wavefront, "CarriedRHNLayer" if settings["carry"] else "RHNLayer")(cls._config(inputs, settings))

    @classmethod
    def state(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        return {"hidden": (single_input(inputs).channels,), "token": (1,)} if settings["carry"] else {}

    @classmethod
    def multiply_adds(cls, inputs: Mapping[str, Shape], settings: Mapping[str, Any]) -> int:
        config, (length,) = cls._config(inputs, settings), single_input(inputs).positions
        first = 3 * config.hidden_size * config.intermediate_size  # a plain feed-forward network
        return first + (length - 1) * config.step_multiply_adds
