"""copy_weights: by name, by order, by a mapping; mismatches leave the model unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gflownet.translation import copy_weights, to_pytorch_model
from tests.translation.operation_graphs import graph_of, hidden, image_input


def two_layers() -> nn.Module:
    nodes = [image_input(3), hidden(1, "linear", features=4), hidden(2, "linear", features=2, kind="output")]
    return to_pytorch_model(graph_of(nodes, [(0, 1), (1, 2)]))


def reference() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    "names",
    [None, {f"linear_{i + 1}.{leaf}": f"{i}.{leaf}" for i in range(2) for leaf in ("weight", "bias")}],
    ids=["order", "names"],
)
def test_copied_weights_give_equal_outputs(names):
    model, source = two_layers(), reference()
    copy_weights(model, source, names)
    x = torch.randn(5, 3)
    assert torch.equal(model(x), source(x))
    with torch.no_grad():
        source.get_parameter("0.bias").add_(1.0)
    assert not torch.equal(model(x), source(x))


def test_equal_names_win_over_the_order():
    model, other = two_layers(), two_layers()
    copy_weights(model, dict(reversed(other.state_dict().items())))
    x = torch.randn(5, 3)
    assert torch.equal(model(x), other(x))


def test_dtype_of_the_model_stays():
    model = two_layers().double()
    copy_weights(model, reference())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("source", "names", "message"),
    [
        (nn.Linear(3, 4), None, "expected 4 tensors as in the model, got 2"),
        (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)), None, r"shape \[2, 4\] of linear_2.weight, got \[3, 4\]"),
        (reference(), {}, "names: expected a name for linear_1.weight, got none"),
        (reference(), {"linear_1.weight": "2.weight"}, "tensor of the source for linear_1.weight, got '2.weight'"),
    ],
)
def test_mismatches_leave_the_model_unchanged(source, names, message):
    model = two_layers()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        copy_weights(model, source, names)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
