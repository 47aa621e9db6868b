"""Every built-in activation and aggregation has a complete specification, and its row in docs/translation.md."""

from pathlib import Path

import pytest
import torch

from gflownet.graphs.vocabulary import ACTIVATIONS, AGGREGATIONS, activation, aggregation
from gflownet.translation.activations import Cell, CodeActivation
from gflownet.translation.emit import CodeAggregation

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


def test_docs_name_every_operation():
    text = PAGE.read_text(encoding="utf-8")
    assert all(name in text for name in (*ACTIVATIONS, *AGGREGATIONS))


def test_direct_gelu_equals_the_code_of_the_model():
    z = torch.linspace(-3, 3, 50, dtype=torch.float64)
    kind = activation("gelu")
    assert issubclass(kind, CodeActivation)
    names = {"torch": torch, "F": torch.nn.functional, "z": z}
    direct, code = (eval(text.format(z="z", c="c"), names) for text in (kind.direct_code, kind.code))
    assert torch.allclose(direct, code)
