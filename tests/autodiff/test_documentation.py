"""docs/tensor-graphs.md: the examples run in order, losses equal those of torch, and the table of functions is true."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gflownet.autodiff.functions import PRIMITIVES, Function

TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def page(checkout: Path) -> str:
    return (checkout / "docs" / "tensor-graphs.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def session(page: str) -> dict[str, Any]:
    """Run the examples in order; return the names after the section on training, and what was printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    after_training, printed = {}, io.StringIO()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert len(blocks) >= 10
    for block in blocks:
        line = page.count("\n", 0, block.start(1))
        with redirect_stdout(printed):
            exec(compile("\n" * line + block[1], "docs/tensor-graphs.md", "exec"), names)
        if "network_losses" in block[1]:
            after_training = dict(names)
    return {**after_training, "printed": printed.getvalue()}


def test_documentation_prints_the_quoted_errors(page: str, session: dict[str, Any]) -> None:
    quoted = re.findall(r"print\(error\)  # (.*)", page)
    assert quoted
    assert [message for message in quoted if message not in session["printed"]] == []


def test_documentation_function_table_matches_code(page: str):
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", page.partition("## Functions of one variable")[2], re.MULTILINE)
    assert {name for name, _ in rows} >= {*PRIMITIVES, "sqrt", "neg", "reciprocal", "square", "cube"}
    for name, derivative in rows:
        assert str(Function.parse(name).derivative()) == derivative, name


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
