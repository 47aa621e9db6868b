"""Operations by name, and with complete settings.

A name is a short one out of OPERATIONS, or `module:Class` for an nn.Module, a function or a user's own class. Classes
are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any

from gflownet.errors import UserError
from gflownet.operations.modules import function_operation, module_operation
from gflownet.operations.neuron import Neuron
from gflownet.operations.operation import Operation, complete_settings, is_port, setting_errors
from gflownet.operations.parameters import ParameterPlan
from gflownet.operations.signatures import named_function
from gflownet.operations.tensor_shape import Shape, ShapeError
from gflownet.operations.values import exact, shown, thawed
from gflownet.plugins import HIGHER_ROWS, BuiltIn, ExtensionPoint, load_function

_OPERATIONS, _COMPOSITES = "gflownet.operations", "gflownet.graphs.composites"


def _rows(module: str, room: str = _OPERATIONS, /, **rows: tuple[str, str]) -> dict[str, BuiltIn]:
    """Return the operations of a file: class and meaning by name."""
    return {name: BuiltIn(f"{room}.{module}:{home}", summary) for name, (home, summary) in rows.items()}


# Name, class and meaning of the built-in operations; nothing is imported before it is used.
BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        **_rows(
            "linear",
            linear=("Linear", "linear layer over the features"),
            head=("Head", "average over all positions, then a linear layer"),
            matrix_product=("MatrixProduct", "product of two sequences as matrices"),
            tied_linear=("TiedLinear", "linear layer with the weight of another node"),
            gated_linear=("GatedLinear", "linear layer times a gate"),
            experts=("Experts", "feed-forward networks, of which each position takes a few"),
        ),
        **_rows(
            "transformer",
            _COMPOSITES,
            feed_forward=("FeedForward", "two linear layers with an activation"),
            transformer_block=("TransformerBlock", "pre-norm transformer block"),
        ),
        **_rows(
            "convolution",
            conv1d=("Conv1d", "convolution of a signal"),
            conv2d=("Conv2d", "convolution of an image"),
            depthwise_conv1d=("DepthwiseConv1d", "convolution of each channel of a signal"),
            depthwise_conv2d=("DepthwiseConv2d", "convolution of each channel of an image"),
        ),
        **_rows(
            "convolution",
            max_pool1d=("MaxPool1d", "largest value of each window of a signal"),
            max_pool2d=("MaxPool2d", "largest value of each window of an image"),
            avg_pool1d=("AvgPool1d", "mean of each window of a signal"),
            avg_pool2d=("AvgPool2d", "mean of each window of an image"),
            global_pool=("GlobalPool", "mean or maximum over all positions"),
        ),
        **_rows(
            "elementary",
            batch_norm=("BatchNorm", "normalise each channel over the batch"),
            layer_norm=("LayerNorm", "normalise the features of each position"),
            rms_norm=("RMSNorm", "divide the features by their root mean square"),
        ),
        **_rows(
            "attention",
            embedding=("Embedding", "a learned vector for each token"),
            column_embedding=("ColumnEmbedding", "a learned vector for each of several columns of categories"),
            patchify=("Patchify", "linear layer over each patch of a signal, an image or a volume"),
            learned_positions=("LearnedPositions", "add a learned vector to each position"),
            rotary_positions=("RotaryPositions", "rotate features by the position"),
            class_token=("ClassToken", "put a learned vector in front of a sequence"),
        ),
        **_rows(
            "attention",
            self_attention=("SelfAttention", "attention of a sequence to itself"),
            window_attention=("WindowAttention", "attention in the windows of an image"),
            cross_attention=("CrossAttention", "attention of a sequence to another one"),
        ),
        **_rows(
            "recurrent",
            lstm=("LSTM", "LSTM over a sequence"),
            gru=("GRU", "GRU over a sequence"),
            selective_scan=("SelectiveScan", "block of Mamba over a sequence"),
        ),
        **HIGHER_ROWS["operation"],
        **_rows(
            "elementary",
            squeeze_excitation=("SqueezeExcitation", "scale channels by gates computed from their means"),
            identity=("Identity", "the input itself"),
            zero=("Zero", "zeros: no connection"),
            dropout=("Dropout", "random zeros in training"),
            drop_path=("DropPath", "random examples without this value in training"),
            layer_scale=("LayerScale", "each channel times a learned number"),
        ),
        **_rows(
            "elementary",
            to_sequence=("ToSequence", "positions of a signal, an image or a volume as a sequence"),
            to_signal=("ToSignal", "positions of a sequence, an image or a volume as a signal"),
            to_image=("ToImage", "positions of a sequence or a signal as an image"),
            slice=("Slice", "entries along an axis: a crop, or a part of a split"),
            upsample=("Upsample", "more positions by interpolation"),
        ),
        **_rows(
            "convolution_blocks",
            _COMPOSITES,
            conv_bn_relu=("ConvBNReLU", "convolution, batch norm, ReLU"),
            relu_conv_bn=("ReLUConvBN", "ReLU, convolution, batch norm"),
            separable_conv_bn_relu=("SeparableConvBNReLU", "depthwise and 1x1 convolution, batch norm, ReLU"),
            separable_conv=("SeparableConv", "separable convolution of DARTS"),
            dilated_conv=("DilatedConv", "dilated separable convolution of DARTS"),
            inverted_bottleneck=("InvertedBottleneck", "inverted bottleneck of MobileNetV2"),
            residual_block=("ResidualBlock", "block of two convolutions of ResNet"),
            bottleneck_block=("BottleneckBlock", "block of three convolutions of ResNet"),
            residual_reduction=("ResidualReduction", "two convolutions at half the positions, of NAS-Bench-201"),
        ),
    }
)


OPERATIONS = ExtensionPoint(
    "operation", contract="gflownet.operations.operation:Operation", built_in=BUILT_IN, group="gflownet.operations"
)


@cache
def operation(name: str) -> type[Operation]:
    """Return the class of an operation.

    Raises:
        ValueError: unknown name, neither an Operation nor an nn.Module nor a function, or one that fails its check.
    """
    if name in OPERATIONS:
        return OPERATIONS.load(name)
    home = OPERATIONS.home(name)
    function = None
    with suppress(UserError):  # the error of a class names the contract
        function = load_function("operation", home)
    if (function := named_function(home, function)) is not None:
        return function_operation(home, function)
    loaded = OPERATIONS.load(name, import_module("torch").nn.Module)
    if not issubclass(loaded, Operation):
        return module_operation(home, loaded)
    from gflownet.operations.probe import check_row  # imports torch

    check_row(loaded, name)
    return loaded


def graph_name(name: str) -> str:
    """Return the name of an operation in graphs: module:Class for an entry point of a package. Imports nothing.

    Raises:
        ValueError: several packages have this entry point.
    """
    return name if name in OPERATIONS else OPERATIONS.home(name)


@dataclass(frozen=True)
class AppliedOperation:
    """An operation with complete settings: equal for equal operations."""

    name: str
    items: tuple[tuple[str, Any], ...]  # name and value of every setting, sorted

    def __reduce__(self) -> tuple[Any, ...]:
        return AppliedOperation, (self.name, self.items)

    @cached_property
    def row(self) -> type[Operation]:
        """The class: of a node that names no operation a neuron."""
        return operation(self.name) if self.name else Neuron

    @property
    def row_home(self) -> str:
        """The class as module:Class."""
        return OPERATIONS.home(self.name)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Every setting by name."""
        return MappingProxyType(dict(self.items))

    @cached_property
    def required_ports(self) -> tuple[str, ...]:
        """The names of the inputs that it needs with these settings."""
        return tuple(self.row.required_ports(self.settings))

    def at(self, inputs: Mapping[str, Shape]) -> OperationAt:
        """Return the operation at the shapes of its inputs, by port: one object for equal shapes."""
        key = self.row, tuple(inputs.items()), self._exact
        if (found := _PLACED.get(key)) is None:
            if len(_PLACED) >= _MAX_PLACED:
                _PLACED.clear()
            found = _PLACED[key] = OperationAt(self, inputs)
        return found

    @cached_property
    def _exact(self) -> Any:
        return exact(self.settings)


class OperationAt:
    """An operation at the shapes of its inputs: all that a graph reads of its class, each read once.

    Properties raise ShapeError, also for a mistake in the class.
    """

    def __init__(self, operation: AppliedOperation, inputs: Mapping[str, Shape]) -> None:
        self._operation, self._row, self._arguments = operation, operation.row, (inputs, operation.settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return AppliedOperation.at, (self._operation, self._arguments[0])

    @cached_property
    def _probe(self) -> Any:
        from gflownet.operations.probe import probe  # imports torch

        return probe(self._row, *self._arguments)

    @cached_property
    def output(self) -> Shape:
        """The output shape."""
        shape = self._checked("a result of infer_shape", self._row.infer_shape)
        if not isinstance(shape, Shape) or not {*map(type, shape.sizes)} <= {int}:
            raise ShapeError(f"expected infer_shape to return a Shape of integers, got {shown(shape)}")
        return shape

    @cached_property
    def weight(self) -> Shape:
        """The shape of the module's weight. Raises ShapeError without one."""
        return self._checked("a result of weight_shape", lambda *_: self._probe.weight)

    @cached_property
    def state(self) -> Mapping[str, tuple[int, ...]]:
        """The sizes of the state by name."""
        state = self._checked("a result of state", self._row.state)
        if not isinstance(state, Mapping) or not all(
            is_port(name) and isinstance(state[name], tuple) for name in state
        ):
            raise ShapeError(f"expected state to return tuples of sizes by name, got {shown(state)}")
        return state

    @cached_property
    def cost(self) -> tuple[int, int]:
        """Parameters and multiply-adds."""
        return self._checked("a cost", self._cost)

    def _cost(self, *arguments: Any) -> tuple[int, int]:
        num_parameters, multiply_adds = self._row.num_parameters(*arguments), self._row.multiply_adds(*arguments)
        if num_parameters is not None and multiply_adds is not None:
            return num_parameters, multiply_adds
        return self._probe.num_parameters, self._probe.multiply_adds

    @cached_property
    def parameters(self) -> tuple[ParameterPlan, ...]:
        """The parameters besides those of a module."""
        return tuple(self._row.parameters(*self._arguments))

    @cached_property
    def sizes(self) -> Any:
        """The widths inside of a neuron."""
        return self._row.sizes(*self._arguments)

    @cached_property
    def constructor(self) -> str:
        """The expression that makes the module, see `Operation.constructor`."""
        return self._row.constructor(*self._arguments)

    def build(self) -> Any:
        """Return a new module."""
        return self._row.build(*self._arguments)

    @cached_property
    def call(self) -> str:
        """The expression of the output, see `Operation.call`."""
        return self._row.call(*self._arguments)

    def _checked(self, expected: str, method: Callable[..., Any]) -> Any:
        try:
            return method(*self._arguments)
        except UserError as error:
            raise ShapeError(str(error)) from error
        except ShapeError:
            raise
        except Exception as error:  # raised by the user's own class
            reason = " ".join(str(error).split())
            raise ShapeError(f"expected {expected}, got {type(error).__name__}: {reason}") from error


_MAX_PLACED = 2**14
_PLACED: dict[tuple[Any, ...], OperationAt] = {}  # by class, shapes and settings


def read_operation(value: Any) -> AppliedOperation:
    """Return the operation of a node's attribute {"name": ..., setting: value, ...}, completed by defaults.

    Raises:
        ValueError: not such a mapping, an unknown name or setting, a missing or invalid setting.
    """
    name, settings = _name_and_settings(value)
    return AppliedOperation(graph_name(name), complete_settings(operation(name), name, settings))


def operation_errors(value: Any) -> Iterator[tuple[str, str, type[Operation] | None]]:
    """Yield code, line and class (None for an unknown one) of every problem of a node's attribute `operation`."""
    try:
        name, settings = _name_and_settings(value)
    except ValueError as error:
        yield "invalid_operation", str(error), None
        return
    try:
        row = operation(name)
    except ValueError as error:
        yield "unknown_operation", str(error), None
        return
    for code, message in setting_errors(row, name, settings):
        yield code, message, row


def _name_and_settings(value: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(f"expected an operation with a name, got {shown(thawed(value))}")
    settings = dict(value)
    return settings.pop("name"), settings
