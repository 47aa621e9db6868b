"""Every built-in activation and aggregation has a complete specification, and its row in docs/translation.md."""

import re
from pathlib import Path

import pytest
import torch

from gflownet.operations.activations import Cell, CodeActivation
from gflownet.operations.neuron_code import CodeAggregation
from gflownet.operations.vocabulary import ACTIVATIONS, AGGREGATIONS, activation, aggregation

PAGE = Path(__file__).resolve().parents[2] / "docs" / "translation.md"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_has_code_and_gradient(name):
    kind = activation(name)
    if issubclass(kind, Cell):
        assert kind.step
        assert kind.sequence
    else:
        assert issubclass(kind, CodeActivation)
        assert kind.code
        assert kind.gradient_code


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_aggregation_has_code(name):
    assert issubclass(aggregation(name), CodeAggregation)


def section(title):
    """Return the text of docs/translation.md between a heading and the next one."""
    return PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].partition("\n## ")[0]


def test_docs_list_every_activation():
    names = re.sub(r"\([^)]*\)", "", section("Activations").partition(", and\n")[0])
    assert {name.strip() for name in names.split(",")} >= set(ACTIVATIONS)


def test_docs_table_has_every_aggregation():
    _, _, *rows = [line for line in section("Aggregations").splitlines() if line.startswith("|")]
    cells = [re.sub(r"\([^)]*\)", "", row.split("|")[1]) for row in rows]
    assert {name.strip() for cell in cells for name in cell.split(",")} >= set(AGGREGATIONS)


def test_direct_gelu_equals_the_code_of_the_model():
    z = torch.linspace(-3, 3, 50, dtype=torch.float64)
    kind = activation("gelu")
    assert issubclass(kind, CodeActivation)
    names = {"torch": torch, "F": torch.nn.functional, "z": z}
    direct, code = (eval(text.format(z="z", c="c"), names) for text in (kind.direct_code, kind.code))
    assert torch.allclose(direct, code)
