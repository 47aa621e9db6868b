"""Comparison of a translated graph with the oracle: names, shapes, outputs, gradients through time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import to_pytorch_model
from gflownet.translation.model import TranslatedModel
from tests.oracles.translation import GraphOracle

BATCH, STEPS = 3, 4
COMPLEX_STEP = 1e-30


def translated(data: Mapping[str, Any], **config: Any) -> TranslatedModel:
    """Return the float64 model of node-link data."""
    return to_pytorch_model(ComputationGraph.from_dict(data), {"dtype": torch.float64, **config})


def set_values(model: TranslatedModel, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Set every parameter to random values, in the order of names, and return the values by name."""
    parameters = dict(model.named_parameters())
    values = {name: np.asarray(rng.normal(size=tuple(parameters[name].shape))) for name in sorted(parameters)}
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(torch.from_numpy(value))
    return values


def assert_matches_oracle(data: Mapping[str, Any], *, seed: int, projection: str = "auto") -> None:
    """Raise AssertionError if model and oracle differ in names, shapes, outputs (1e-10) or gradients (1e-6)."""
    rng = np.random.default_rng(seed)
    oracle = GraphOracle(data, projection=projection)
    model = translated(data, projection=projection)
    shapes = oracle.shapes()
    assert {name: tuple(parameter.shape) for name, parameter in model.named_parameters()} == shapes
    values = set_values(model, rng)
    xs = rng.normal(size=(STEPS, BATCH, sum(oracle.size(node_id) for node_id in oracle.inputs)))
    expected = oracle.run(values, xs)
    _assert_same_outputs(model, torch.from_numpy(xs), expected)
    _assert_same_gradients(model, oracle, values, xs, rng)


def _assert_same_outputs(model: TranslatedModel, xs: torch.Tensor, expected: np.ndarray) -> None:
    tolerance = 1e-10 * max(1.0, np.abs(expected).max())  # a recurrent graph may grow to 1e5 in four steps
    for _ in range(2):  # twice: the second pass must not depend on the first
        steps = [model(x, reset_states=t == 0) for t, x in enumerate(xs)]
        assert np.abs(torch.stack(steps).detach().numpy() - expected).max() < tolerance
        sequence = model.forward_sequence(xs.transpose(0, 1)).transpose(0, 1)
        assert np.abs(sequence.detach().numpy() - expected).max() < tolerance


def _assert_same_gradients(
    model: TranslatedModel, oracle: GraphOracle, values: Mapping[str, np.ndarray], xs: np.ndarray, rng: Any
) -> None:
    """Compare directional derivatives of a random linear loss with the complex step through the oracle."""
    inputs = torch.from_numpy(xs).requires_grad_()
    outputs = model.forward_sequence(inputs.transpose(0, 1)).transpose(0, 1)
    cotangent = rng.normal(size=tuple(outputs.shape))
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = (outputs * torch.from_numpy(cotangent)).sum()
    gradients = torch.autograd.grad(loss, [*parameters, inputs], allow_unused=True)
    for _ in range(2):
        directions = {name: rng.normal(size=values[name].shape) for name in values}
        dx = rng.normal(size=xs.shape)
        got = sum(
            float((gradient * torch.as_tensor(direction)).sum())
            for gradient, direction in zip(gradients, [*map(directions.get, names), dx], strict=True)
            if gradient is not None
        )
        moved = {name: values[name] + 1j * COMPLEX_STEP * directions[name] for name in values}
        expected = (oracle.run(moved, xs + 1j * COMPLEX_STEP * dx) * cotangent).sum().imag / COMPLEX_STEP
        assert abs(got - expected) < 1e-6 * max(1.0, abs(expected))
