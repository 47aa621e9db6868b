"""A process with JAX: reads requests of `case, kind, seconds` as JSON lines, answers with CPU seconds per call.

Runs with an interpreter that has JAX and numpy; nothing of gflownet and no torch is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# one thread, as the other sides; to be said before JAX is imported
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parent))

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
from problems import PROBLEMS  # pyright: ignore[reportMissingImports]

OPS = SimpleNamespace(
    tanh=jnp.tanh,
    relu=jax.nn.relu,
    exp=jnp.exp,
    log=jnp.log,
    softplus=jax.nn.softplus,
    total=jnp.sum,
    transpose=jnp.transpose,
)


def compiled(case: str, kind: str) -> tuple[Any, list[Any]]:
    """Return the jitted derivative and its arguments."""
    problem = PROBLEMS[case]
    arrays = [jnp.asarray(array) for array in problem.arrays()]
    function = lambda *values: problem.formula(OPS, *values)  # noqa: E731
    if kind == "hessian":
        return jax.jit(jax.hessian(function, problem.position)), arrays
    if kind == "gradient":
        return jax.jit(jax.grad(function, problem.trained_positions)), arrays

    def product(*values: Any) -> Any:
        *point, vector = values
        before, after = point[: problem.position], point[problem.position + 1 :]
        gradient = jax.grad(lambda x: function(*before, x, *after))
        return jax.jvp(gradient, (point[problem.position],), (vector,))[1]

    return jax.jit(product), [*arrays, jnp.ones_like(arrays[problem.position])]


def main() -> None:
    """Answer requests until there are no more."""
    jax.config.update("jax_enable_x64", True)
    known: dict[tuple[str, str], tuple[Any, list[Any]]] = {}
    print(json.dumps({"version": jax.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        key = (request["case"], request["kind"])
        if key not in known:
            known[key] = compiled(*key)
            jax.block_until_ready(known[key][0](*known[key][1]))
        function, arrays = known[key]
        calls, begin, began = 0, time.process_time(), time.perf_counter()
        while not calls or time.perf_counter() - began < request["seconds"]:
            jax.block_until_ready(function(*arrays))
            calls += 1
        print(json.dumps({"seconds": (time.process_time() - begin) / calls}), flush=True)


if __name__ == "__main__":
    main()
