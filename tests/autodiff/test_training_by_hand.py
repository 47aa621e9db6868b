"""The documented training example: every loss equals that of torch in float64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def session(checkout: Path) -> dict[str, Any]:
    """Run the example of the section alone and return its names."""
    text = (checkout / "docs" / "tensor-graphs.md").read_text(encoding="utf-8")
    section = text.partition("\n## Training by hand\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    result: dict[str, Any] = {}
    exec(compile(code, "docs/tensor-graphs.md", "exec"), result)
    return result


def torch_losses(model: nn.Module, batches: list[tuple[Tensor, Tensor]], num_epochs: int) -> list[float]:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(num_epochs):
        for batch, expected in batches:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), expected.argmax(1))
            losses.append(loss.item())
            loss.backward()
            optimiser.step()
    return losses


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[0], weight.shape[1], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
        layer.bias.zero_()
    return layer


def test_logistic_regression_losses_match_torch(session: dict[str, Any]) -> None:
    model = linear(torch.zeros(64, 10, dtype=torch.float64))
    expected = torch_losses(model, session["batches"], num_epochs=20)
    assert session["logistic_losses"] == pytest.approx(expected, abs=TOLERANCE, rel=0)
    assert len(expected) == 60
    assert expected[-1] < 0.4 * expected[0]


def test_network_losses_match_torch(session: dict[str, Any]) -> None:
    weights = session["random_weights"]
    first = linear(weights(64, 32, seed=1))
    model = nn.Sequential(first, nn.Tanh(), linear(weights(32, 10, seed=2)))
    expected = torch_losses(model, session["batches"], num_epochs=20)
    assert session["network_losses"] == pytest.approx(expected, abs=TOLERANCE, rel=0)
    assert expected[-1] < 0.25 * expected[0]
    torch.testing.assert_close(session["first"].value(), first.weight.detach().T, rtol=0, atol=TOLERANCE)
