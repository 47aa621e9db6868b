"""The built-in activations. A new one is a class here and a line in gflownet/operations/vocabulary.py.

Nothing here imports torch: the classes hold the code that the translator writes into a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from math import sqrt
from typing import TYPE_CHECKING, ClassVar

from gflownet.operations.parameters import Initial, ParameterPlan
from gflownet.operations.vocabulary import Activation

if TYPE_CHECKING:
    from torch import nn


class CodeActivation(Activation):
    """An activation as code templates with {z}, the pre-activation [B, D]."""

    code: ClassVar[str]  # output y
    channels_first_code: ClassVar[str] = ""  # output y where the features are axis 1, if it differs
    direct_code: ClassVar[str] = ""  # output y in training without autograd, where it differs: may assign {c}
    gradient_code: ClassVar[str]  # dL/dz from {g} = dL/dy, {y}, {z} and {c}


class ReLU(CodeActivation):
    code = "torch.relu({z})"
    gradient_code = "aten.threshold_backward({g}, {y}, 0)"


class Sigmoid(CodeActivation):
    code = "torch.sigmoid({z})"
    gradient_code = "aten.sigmoid_backward({g}, {y})"


class Tanh(CodeActivation):
    code = "torch.tanh({z})"
    gradient_code = "aten.tanh_backward({g}, {y})"


class Softmax(CodeActivation):
    code = "torch.softmax({z}, dim=-1)"
    channels_first_code = "torch.softmax({z}, dim=1)"
    gradient_code = "aten._softmax_backward_data({g}, {y}, 1, {y}.dtype)"


class LeakyReLU(CodeActivation):
    code = "F.leaky_relu({z})"
    gradient_code = "aten.leaky_relu_backward({g}, {z}, 0.01, False)"


class ELU(CodeActivation):
    code = "F.elu({z})"
    gradient_code = "aten.elu_backward({g}, 1.0, 1.0, 1.0, False, {z})"


class GELU(CodeActivation):
    """z times the cumulative normal distribution at z (exact, not the tanh approximation)."""

    code = "F.gelu({z})"
    # PyTorch's gelu goes through oneDNN, which takes 1.5 times as long on tensors of this size.
    direct_code = "{z} * ({c} := torch.erf({z} * 0.7071067811865476).add_(1.0).mul_(0.5))"
    gradient_code = "torch.addcmul({c}, {z}, torch.square({z}).mul_(-0.5).exp_(), value=0.3989422804014327).mul_({g})"


class GELUTanh(CodeActivation):
    """The tanh approximation of gelu (Hendrycks and Gimpel 2016)."""

    code = 'F.gelu({z}, approximate="tanh")'
    gradient_code = 'aten.gelu_backward({g}, {z}, approximate="tanh")'


class ReLU6(CodeActivation):
    """min(max(z, 0), 6)."""

    code = "F.relu6({z})"
    gradient_code = "aten.hardtanh_backward({g}, {z}, 0.0, 6.0)"


class HardSigmoid(CodeActivation):
    """relu6(z + 3) / 6."""

    code = "F.hardsigmoid({z})"
    gradient_code = "aten.hardsigmoid_backward({g}, {z})"


class HardSwish(CodeActivation):
    """z relu6(z + 3) / 6 (Howard et al. 2019)."""

    code = "F.hardswish({z})"
    gradient_code = "aten.hardswish_backward({g}, {z})"


class SiLU(CodeActivation):
    code = "F.silu({z})"
    gradient_code = "aten.silu_backward({g}, {z})"


class Linear(CodeActivation):
    flops = 0
    code = "{z}"
    gradient_code = "{g}"


class Cell(Activation):
    """A recurrent cell: h = cell(z, state), with trained weights.

    Templates: {y} the node's variable, {z}, {layer} the submodule, {hidden}, {cell}, {token} the state of the step
    before, {new_cell} the new memory of an lstm.
    """

    module: ClassVar[str]  # module:Class of the submodule that holds the weights
    slots: ClassVar[tuple[str, ...]] = ("hidden",)  # tensors handed from step to step: see StateSlot
    is_run_by_node: ClassVar[bool] = False  # whether whole sequences are faster than steps: see TypedGraph
    step: ClassVar[str]  # the statement for one time step
    sequence: ClassVar[str]  # the statement for all time steps

    @classmethod
    def parameters(cls, name: str, size: int) -> Iterator[ParameterPlan]:
        """Yield the weights of the submodule `name` in the order in which they are made; the first is [..., size]."""
        raise NotImplementedError

    @classmethod
    def build(cls, size: int) -> nn.Module:
        """Return the submodule; its weights are set later, and torch's random state stays as it is."""
        raise NotImplementedError


class _GatedCell(Cell):
    """A cell of torch.nn without biases, with two matrices [gates D, D]."""

    num_gates: ClassVar[int]

    @classmethod
    def parameters(cls, name: str, size: int) -> Iterator[ParameterPlan]:
        for matrix in ("weight_ih", "weight_hh"):
            yield ParameterPlan(f"{name}.{matrix}", (cls.num_gates * size, size), Initial.UNIFORM, 1.0 / sqrt(size))

    @classmethod
    def build(cls, size: int) -> nn.Module:
        layers = import_module("torch.nn")
        layer_class = getattr(layers, cls.module.partition(":")[2])
        layer = layer_class.__new__(layer_class)
        layers.Module.__init__(layer)
        layer.input_size = layer.hidden_size = size
        layer.bias = False
        layer._parameters.update(weight_ih=None, weight_hh=None, bias_ih=None, bias_hh=None)
        return layer

    @classmethod
    def multiply_adds(cls, size: int) -> int:
        return 2 * cls.num_gates * size * size

    @classmethod
    def max_parameters(cls, size: int) -> int:
        return 2 * cls.num_gates * size * size


class LSTM(_GatedCell):
    flops = 9  # 3 gates, 2 tanh and 4 combinations
    num_gates = 4
    module = "torch.nn:LSTMCell"
    slots = ("hidden", "cell")
    step = "{y}, {new_cell} = {layer}({z}, ({hidden}, {cell}))"
    sequence = "{y}, {new_cell} = lstm_sequence({layer}, {z}, {hidden}, {cell})"


class GRU(_GatedCell):
    flops = 8  # 2 gates, 1 tanh and 5 combinations
    num_gates = 3
    module = "torch.nn:GRUCell"
    step = "{y} = {layer}({z}, {hidden})"
    sequence = "{y} = gru_sequence({layer}, {z}, {hidden})"
