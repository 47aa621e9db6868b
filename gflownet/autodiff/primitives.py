"""The elementary functions of one variable: one row each, with the value in torch, the derivative and the code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Primitive:
    """A row of the table."""

    value: Callable[[Tensor], Tensor]
    derivative: str  # formula in x, read by Function.parse
    code: str  # torch call of generated programs, {0} the operand
    in_place: str = ""  # statement that overwrites the operand, where torch has one


def _softplus(x: Tensor) -> Tensor:
    # torch's own softplus is x above 20, which is off by 2e-9
    return torch.logaddexp(x, torch.zeros_like(x))


def _step(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype)


def _in_torch(name: str, derivative: str) -> Primitive:
    """Return the row of a function that torch has under its name and, in place, with an underscore."""
    return Primitive(getattr(torch, name), derivative, f"torch.{name}({{0}})", f"{{0}}.{name}_()")


_NORMAL_DENSITY = "0.3989422804014327*exp(-0.5*x**2)"

PRIMITIVES: dict[str, Primitive] = {
    "exp": _in_torch("exp", "exp(x)"),
    "log": _in_torch("log", "1/x"),
    "sin": _in_torch("sin", "cos(x)"),
    "cos": _in_torch("cos", "-sin(x)"),
    "tanh": _in_torch("tanh", "1 - tanh(x)**2"),
    "sigmoid": _in_torch("sigmoid", "sigmoid(x)*(1 - sigmoid(x))"),
    "relu": _in_torch("relu", "step(x)"),
    "gelu": Primitive(torch.nn.functional.gelu, f"ndtr(x) + x*{_NORMAL_DENSITY}", "torch._C._nn.gelu({0})"),
    "softplus": Primitive(_softplus, "sigmoid(x)", "torch.logaddexp({0}, torch.zeros_like({0}))"),
    "silu": Primitive(torch.nn.functional.silu, "sigmoid(x) + x*sigmoid(x)*(1 - sigmoid(x))", "torch._C._nn.silu({0})"),
    "abs": _in_torch("abs", "sign(x)"),
    "erf": _in_torch("erf", "1.1283791670955126*exp(-x**2)"),
    "ndtr": Primitive(torch.special.ndtr, _NORMAL_DENSITY, "torch.special.ndtr({0})"),
    "sign": _in_torch("sign", "0"),
    "step": Primitive(_step, "0", ""),  # written as sign(relu(x)), see entrywise.py
}
# Powers of x with a name.
POWERS = {"square": 2.0, "cube": 3.0, "reciprocal": -1.0, "sqrt": 0.5}
