"""The sides of the comparison: our programs, torch as one would call it, and JAX in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gflownet.autodiff import factories as build
from gflownet.autodiff.compilation import compile_gradient, compile_hessian, compile_hvp
from gflownet.autodiff.nodes import LeafNode, Node
from scripts.derivatives.problems import Problem

Call = Callable[[], Any]
OURS = SimpleNamespace(
    tanh=build.Tanh,
    relu=build.Relu,
    exp=build.Exp,
    log=build.Log,
    softplus=build.Softplus,
    total=build.Sum,
    transpose=build.Transpose,
)
TORCH = SimpleNamespace(
    tanh=torch.tanh,
    relu=torch.relu,
    exp=torch.exp,
    log=torch.log,
    softplus=torch.nn.functional.softplus,
    total=torch.sum,
    transpose=torch.t,
)


def graph_of(problem: Problem) -> tuple[Node, list[LeafNode]]:
    """Return the scalar as a tensor graph, and its leaves in order."""
    leaves = [build.Input(shape, name=name, dtype=torch.float64) for name, shape in problem.shapes.items()]
    return problem.formula(OURS, *leaves), leaves


def tensors_of(problem: Problem) -> list[Tensor]:
    """Return the arrays as tensors."""
    return [torch.from_numpy(array) for array in problem.arrays()]


def quadratic_hessian(a: Tensor, x: Tensor) -> Tensor:
    """Return A + A^T."""
    return a + a.T


def logistic_hessian(points: Tensor, sides: Tensor, weights: Tensor) -> Tensor:
    """Return X^T diag(s^2 p (1 - p)) X with p = sigmoid(s X w)."""
    chance = torch.sigmoid((points @ weights) * sides)
    return points.T @ (points * (sides * sides * chance * (1 - chance))[:, None])


def factorisation_hessian(target: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return 2 V^T V at each row of U, zero elsewhere: (n, k, n, k)."""
    rows, rank = u.shape
    hessian = u.new_zeros(rows, rank, rows, rank)
    hessian.diagonal(dim1=0, dim2=2).copy_((2 * v.T @ v)[..., None])
    return hessian


# By the name of the problem, without its sizes: the closed form that an expert would write.
BY_HAND = {
    "quadratic form": quadratic_hessian,
    "logistic regression": logistic_hessian,
    "matrix factorisation": factorisation_hessian,
}


def hessians(problem: Problem, by_hand: Callable[..., Tensor] | None) -> list[Call]:
    """Return our Hessian, torch.func.hessian and, where there is one, the closed form written by hand."""
    loss, leaves = graph_of(problem)
    program = compile_hessian(loss, leaves[problem.position], leaves=leaves)
    tensors = tensors_of(problem)
    theirs = torch.func.hessian(lambda *values: problem.formula(TORCH, *values), argnums=problem.position)
    sides = [program, theirs] if by_hand is None else [program, theirs, by_hand]
    return [partial(side, *tensors) for side in sides]


def gradients(problem: Problem) -> tuple[Call, Call]:
    """Return our gradient and that of eager torch.autograd."""
    loss, leaves = graph_of(problem)
    program = compile_gradient(loss, [leaves[k] for k in problem.trained_positions], leaves=leaves)
    tensors = tensors_of(problem)
    tracked = [x.clone().requires_grad_(k in problem.trained_positions) for k, x in enumerate(tensors)]
    trained = [tracked[k] for k in problem.trained_positions]
    return lambda: program(*tensors), lambda: torch.autograd.grad(problem.formula(TORCH, *tracked), trained)


def products(problem: Problem) -> tuple[Call, Call, Call]:
    """Return our Hessian-vector product, torch.func's forward over reverse, and autograd through its own gradient."""
    loss, leaves = graph_of(problem)
    direction = build.Input(leaves[problem.position].shape, name="vector", dtype=torch.float64)
    program = compile_hvp(loss, leaves[problem.position], direction, leaves=[*leaves, direction])
    tensors = tensors_of(problem)
    before, x, after = tensors[: problem.position], tensors[problem.position], tensors[problem.position + 1 :]
    vector, tracked = torch.ones_like(x), x.clone().requires_grad_()
    gradient = torch.func.grad(lambda value: problem.formula(TORCH, *before, value, *after))

    def twice() -> Tensor:
        (found,) = torch.autograd.grad(problem.formula(TORCH, *before, tracked, *after), tracked, create_graph=True)
        return torch.autograd.grad(found, tracked, vector)[0]

    return lambda: program(*tensors, vector), lambda: torch.func.jvp(gradient, (x,), (vector,))[1], twice


def seconds_per_call(call: Call, seconds: float) -> float:
    """Return the CPU seconds of a call, made again and again for a while."""
    calls, began, begin = 0, time.perf_counter(), time.process_time()
    while not calls or time.perf_counter() - began < seconds:
        call()
        calls += 1
    return (time.process_time() - begin) / calls


class JaxSide:
    """A process with JAX that times jitted derivatives; start it with `started`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Take over a process that runs jax_side.py.

        Raises:
            RuntimeError: it said nothing, e.g. because there is no JAX.
        """
        self._process = process
        self.version = str(self._answer()["version"])

    @classmethod
    def started(cls) -> JaxSide:
        """Start the process, with the interpreter that the environment variable JAX_PYTHON names or with ours.

        Raises:
            RuntimeError: there is no JAX.
        """
        python = os.environ.get("JAX_PYTHON", sys.executable)
        command = [python, str(Path(__file__).with_name("jax_side.py"))]
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True))

    def seconds_per_call(self, case: str, kind: str, seconds: float) -> float:
        """Return the CPU seconds of a call there, of all threads of the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": case, "kind": kind, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process with JAX ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
