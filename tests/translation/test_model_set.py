"""A set of networks as a module: means of probabilities and of numbers, recurrent members, refused exports."""

import pytest
import torch
from torch import nn

from gflownet.errors import UserError
from gflownet.translation import ModelSet, to_onnx, to_pytorch_model
from tests.evaluation.candidates import classifier_graph


def members(num: int = 2) -> list[nn.Module]:
    torch.manual_seed(0)
    return [to_pytorch_model(classifier_graph((3 + k, "relu"), input_size=4, num_classes=3)) for k in range(num)]


def test_outputs_are_logs_of_mean_probabilities():
    models, inputs = members(), torch.randn(5, 4)
    outputs = ModelSet(models, [0.8, 0.2], has_classes=True)(inputs)
    mean = 0.8 * models[0](inputs).softmax(-1) + 0.2 * models[1](inputs).softmax(-1)
    torch.testing.assert_close(outputs.exp(), mean)


def test_outputs_are_mean_numbers():
    models, inputs = members(), torch.randn(5, 4)
    outputs = ModelSet(models, [0.8, 0.2], has_classes=False)(inputs)
    torch.testing.assert_close(outputs, 0.8 * models[0](inputs) + 0.2 * models[1](inputs))


def test_members_with_positions_and_modules_of_a_user():
    class Positions(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs[..., None] * torch.arange(3.0)

    inputs = torch.randn(5, 4)
    model = ModelSet([Positions(), Positions()], [0.5, 0.5], has_classes=True)
    torch.testing.assert_close(model(inputs), Positions()(inputs).log_softmax(-1))
    with pytest.raises(UserError, match="expected a set of translated networks without state, got Positions"):
        to_onnx(model, "set.onnx")


def test_recurrent_members_start_at_zero():
    graph = classifier_graph((3, "tanh"), input_size=4, num_classes=3)
    graph.add_edge(2, 2)
    model, inputs = ModelSet([to_pytorch_model(graph)], [1.0], has_classes=False), torch.randn(5, 4)
    torch.testing.assert_close(model(inputs), model(inputs))
    assert model(inputs[:2]).shape == (2, 3)
    with pytest.raises(UserError, match="without state"):
        to_onnx(model, "set.onnx")
