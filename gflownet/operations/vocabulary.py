"""The names that a computation graph may use: activations, aggregations and the attributes that they accept.

An activation and an aggregation are classes: `Activation` and `Aggregation` list the class attributes from which
validation, the search space, generated code, gradients, costs, export and drawings derive. A name is a short one out of
ACTIVATIONS or AGGREGATIONS, or `module:Class` for a user's own class; an activation may also be a function or an
nn.Module, `torch:exp` or `torch.nn:Mish`. Classes are imported on first use.

Letters: B batch, J enabled in-edges of a node, d width of their messages, D output width of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from keyword import iskeyword
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from gflownet.operations.values import is_finite, is_number, shown
from gflownet.plugins import HIGHER_ROWS, BuiltIn, ExtensionPoint, is_module_class, load_function

if TYPE_CHECKING:
    from torch import Tensor

# Widths, numbers of heads and top_k.
MAX_WIDTH = 2**20
# Beyond these a softmax is a maximum or a mean; much beyond, float32 scores overflow.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e9
# Words of parameters and keywords that an aggregation of a user cannot take.
_RESERVED = frozenset(
    ["weight", "proj", "bias", "post", "q", "messages", "query", "aggregation", "post_projection", "derivation_uuid"]
)
PROJECTIONS = ("auto", "always", "never")
DTYPES = ("float32", "float64", "float16", "bfloat16")
MEMORY_FORMATS = ("contiguous", "channels_last")
AUTOCAST_DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Parameter:
    """An accepted attribute: the expected value in words, and the test of a value."""

    expected: str
    accepts: Callable[[Any], bool]


def one_of(*names: str) -> Parameter:
    """Return a setting that is one of some names."""
    return Parameter(f"one of {', '.join(names)}", lambda value: value in names)


def optional(parameter: Parameter) -> Parameter:
    """Return a setting that may be null."""
    return Parameter(f"{parameter.expected} or null", lambda value: value is None or parameter.accepts(value))


def is_int(value: Any) -> bool:
    """Return whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


POSITIVE_INT = Parameter(f"an int in [1, {MAX_WIDTH:,}]", lambda value: is_int(value) and 1 <= value <= MAX_WIDTH)
NOT_NEGATIVE_INT = Parameter(f"an int in [0, {MAX_WIDTH:,}]", lambda value: is_int(value) and 0 <= value <= MAX_WIDTH)
OPTIONAL_POSITIVE_INT = optional(POSITIVE_INT)
TEMPERATURE = Parameter(
    f"a float in [{MIN_TEMPERATURE:g}, {MAX_TEMPERATURE:g}]",
    lambda value: is_number(value) and MIN_TEMPERATURE <= value <= MAX_TEMPERATURE,
)
EPSILON = Parameter("a float in [0, 1]", lambda value: is_number(value) and 0 <= value <= 1)
PROBABILITY = Parameter("a float in [0, 1)", lambda value: is_number(value) and 0 <= value < 1)
BOOL = Parameter("a bool", lambda value: isinstance(value, bool))
_STRING = Parameter("a str", lambda value: isinstance(value, str))


class Activation:
    """Contract of an activation: the output [B, D] of a node from its pre-activation z [B, D].

    A user's subclass defines `forward`, and where it can `gradient`. It is used as a class, never as an instance.
    """

    flops: ClassVar[int] = 1  # per element
    is_function: ClassVar[bool] = False  # whether the name is a function or an nn.Module, called in generated code
    # gradient(g, z, y) -> dL/dz from g = dL/dy, all [B, D]. None: candidates with it are trained by autograd.
    gradient: ClassVar[Callable[[Tensor, Tensor, Tensor], Tensor] | None] = None

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        """Return the output [B, D] for z [B, D]; a pure function."""
        raise NotImplementedError

    @classmethod
    def multiply_adds(cls, size: int) -> int:
        """Return the multiply-adds of matrix products for one row of width `size`."""
        return 0

    @classmethod
    def elementwise_flops(cls, size: int) -> int:
        """Return the elementwise operations for one row of width `size`."""
        return cls.flops * size

    @classmethod
    def max_parameters(cls, size: int) -> int:
        """Return an upper bound of the number of weights at width `size`."""
        return 0

    @classmethod
    def check(cls, name: str) -> None:
        """Raise ValueError unless forward keeps the shape and dtype of a sample, and gradient equals autograd's."""
        if cls.forward is Activation.forward:
            raise ValueError(f"activation: expected {name} to define forward")
        torch = import_module("torch")
        with torch.inference_mode(mode=False), torch.enable_grad():
            z = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
            y = _called(f"{name}.forward(z [2, 3])", lambda: cls.forward(z), z)
            if cls.gradient is not None:
                gradient, g, call = cls.gradient, torch.ones_like(z), f"{name}.gradient(g, z, y [2, 3])"
                result = _called(call, lambda: gradient(g, z.detach(), y.detach()), z)
                expected = torch.autograd.grad(y, z, g)[0] if y.requires_grad else torch.zeros_like(z)
                if not torch.allclose(result, expected, atol=1e-4, equal_nan=True):
                    got = f"got {result.flatten().tolist()}"
                    raise ValueError(f"{call}: expected {expected.flatten().tolist()}, as autograd of forward, {got}")


class Aggregation:
    """Contract of an aggregation: one tensor [B, aggregated size] from the messages [B, J, d] of a node's in-edges.

    A user's subclass defines `forward`, and the class attributes and methods whose defaults do not fit. It is used as
    a class, never as an instance.
    """

    attributes: ClassVar[Mapping[str, Parameter]] = MappingProxyType({})  # a node's options: keywords of forward
    is_order_sensitive: ClassVar[bool] = False  # whether the result depends on the order of the in-edges
    edge_parameter: ClassVar[str] = ""  # name of one learned 0-d number per in-edge, first value 0: a keyword [J]

    @staticmethod
    def forward(messages: Tensor, **keywords: Any) -> Tensor:
        """Return [B, aggregated size] for messages [B, J, d], J >= 1; a pure function.

        Keywords: the attributes that the node sets, the edge parameter [J], and `query` of `query_shape`.
        """
        raise NotImplementedError

    @classmethod
    def accepted(cls) -> dict[str, Parameter]:
        """Return every attribute that a node with this aggregation may have."""
        # post_projection: a linear layer after the aggregation even where the sizes agree.
        return {"post_projection": BOOL, **cls.attributes}

    @classmethod
    def message_size(cls, options: Mapping[str, Any], output_size: int) -> int:
        """Return d."""
        return output_size

    @classmethod
    def query_shape(cls, options: Mapping[str, Any], message_size: int) -> tuple[int, ...]:
        """Return the shape of the node's learned query, empty for none."""
        return ()

    @classmethod
    def aggregated_size(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        """Return the width of the result."""
        return message_size

    @classmethod
    def multiply_adds(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        """Return the multiply-adds of matrix products for one row."""
        return 0

    @classmethod
    def elementwise_flops(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        """Return the elementwise operations for one row."""
        return max(num_edges - 1, 0) * message_size

    @classmethod
    def check(cls, name: str) -> None:
        """Raise ValueError unless forward maps sample messages to the size and the order sensitivity it declares."""
        for key, parameter in cls.attributes.items():
            if not (_is_free(key) and key != cls.edge_parameter and isinstance(parameter, Parameter)):
                raise ValueError(f"{name}: expected attributes of Parameters by name, got {key}: {shown(parameter)}")
        if cls.edge_parameter and not _is_free(cls.edge_parameter):
            raise ValueError(f"{name}.edge_parameter: expected a free Python name, got {cls.edge_parameter!r}")
        if cls.forward is Aggregation.forward:
            raise ValueError(f"aggregation: expected {name} to define forward")
        torch = import_module("torch")
        messages = torch.linspace(-1, 1, 24).view(2, 3, 4)
        keywords = {cls.edge_parameter: torch.zeros(3)} if cls.edge_parameter else {}
        if shape := cls.query_shape({}, 4):
            keywords["query"] = torch.ones(shape)
        call = f"{name}.forward(messages [2, 3, 4])"
        expected = torch.empty(2, cls.aggregated_size({}, 4, 3))
        y = _called(call, lambda: cls.forward(messages, **keywords), expected)
        if not cls.is_order_sensitive:
            reordered = cls.forward(messages.flip(1), **keywords)
            if not torch.allclose(y, reordered, atol=1e-5, equal_nan=True):
                raise ValueError(
                    f"{call}: expected the same result for every order of the inputs, or is_order_sensitive = True"
                )


def _is_free(name: Any) -> bool:
    """Return whether a user's aggregation may have a keyword of this name."""
    return isinstance(name, str) and name.isidentifier() and not iskeyword(name) and name not in _RESERVED


def _called(call: str, function: Callable[[], Any], like: Tensor) -> Tensor:
    """Return the result of `function`. Raises ValueError for an exception or another shape or dtype than `like`."""
    expected = f"{call}: expected a tensor {list(like.shape)} of dtype {like.dtype}"
    try:
        result = function()
    except Exception as error:
        raise ValueError(f"{expected}, got {type(error).__name__}: {error}") from error
    if not isinstance(result, type(like)):
        raise ValueError(f"{expected}, got {shown(result)}")
    if result.shape != like.shape or result.dtype != like.dtype:
        raise ValueError(f"{expected}, got {list(result.shape)} of dtype {result.dtype}")
    return result


def _rows(module: str, rows: Mapping[str, tuple[str, str]]) -> dict[str, BuiltIn]:
    homes = {name: f"gflownet.operations.{module}:{class_name}" for name, (class_name, _) in rows.items()}
    return {name: BuiltIn(homes[name], summary) for name, (_, summary) in rows.items()}


ACTIVATIONS = ExtensionPoint(
    "activation",
    contract="gflownet.operations.vocabulary:Activation",
    built_in=_rows(
        "activations",
        {
            "relu": ("ReLU", "max(z, 0)"),
            "sigmoid": ("Sigmoid", "1 / (1 + exp(-z))"),
            "tanh": ("Tanh", "tanh(z)"),
            "softmax": ("Softmax", "softmax over the features"),
            "leaky_relu": ("LeakyReLU", "max(z, 0.01 z)"),
            "elu": ("ELU", "z for z > 0, else exp(z) - 1"),
            "gelu": ("GELU", "z times the normal distribution function at z"),
            "gelu_tanh": ("GELUTanh", "gelu by its tanh approximation"),
            "relu6": ("ReLU6", "min(max(z, 0), 6)"),
            "hard_sigmoid": ("HardSigmoid", "min(max(z / 6 + 1/2, 0), 1)"),
            "hard_swish": ("HardSwish", "z hard_sigmoid(z)"),
            "silu": ("SiLU", "z sigmoid(z)"),
            "linear": ("Linear", "z"),
            "identity": ("Linear", "z"),
            "lstm": ("LSTM", "LSTM cell"),
            "gru": ("GRU", "GRU cell"),
        },
    )
    | dict(HIGHER_ROWS["activation"]),
)
AGGREGATIONS = ExtensionPoint(
    "aggregation",
    contract="gflownet.operations.vocabulary:Aggregation",
    built_in=_rows(
        "aggregations",
        {
            "sum": ("Sum", "sum of the messages"),
            "mean": ("Mean", "mean of the messages"),
            "max": ("Max", "elementwise maximum"),
            "min": ("Min", "elementwise minimum"),
            "concat": ("Concat", "messages side by side"),
            "matrix_product": ("Concat", "the flattened stack of the messages: the same as concat"),
            "attention": ("Attention", "softmax attention of one learned query"),
            "multi_head_attention": ("MultiHeadAttention", "softmax attention of several learned queries"),
            "attn_pool": ("AttentionPool", "softmax attention of several learned queries"),
            "topk_weighted_sum": ("TopKWeightedSum", "softmax of the means of the messages, over the largest"),
            "moe": ("MixtureOfExperts", "softmax of learned routers, over all or the largest"),
            "gated_sum": ("GatedSum", "sum with learned sigmoid gates"),
        },
    ),
)


@cache
def activation(name: str) -> type[Activation]:
    """Return the class of an activation.

    Raises:
        ValueError: unknown name, a class that is neither an Activation nor an nn.Module, or one that fails its check.
    """
    if not is_module_class(name):
        return _loaded(ACTIVATIONS, name)
    try:
        function = load_function("activation", name)
    except ValueError:
        return _loaded(ACTIVATIONS, name)  # its error names the contract
    if isinstance(function, type) and not issubclass(function, import_module("torch").nn.Module):
        return _loaded(ACTIVATIONS, name)
    return _function_activation(name, function)


def _function_activation(name: str, function: Any) -> type[Activation]:
    """Return a function of a tensor, or a module without weights, as an activation. Raises ValueError as `check`."""
    torch = import_module("torch")
    with torch.device("cpu"):
        try:
            called = function() if isinstance(function, type) else function
        except TypeError as error:
            raise ValueError(f"activation: expected {name} without arguments, got {error}") from error
        if isinstance(called, torch.nn.Module) and called.state_dict():
            raise ValueError(f"activation: expected a function without weights, got {name}: name it as an operation")
        kind = type(short_name(name), (Activation,), {"forward": staticmethod(called), "is_function": True})
        kind.check(name)
        z, results = torch.linspace(-1, 1, 64).view(2, 32), []
        for is_training in (True, True, False):
            if isinstance(called, torch.nn.Module):
                called.train(is_training)
            results.append(called(z))
        if not all(torch.allclose(results[0], each, equal_nan=True) for each in results):
            raise ValueError(f"activation: expected no random numbers, got {name}: name it as an operation")
        for sizes in ((32,), (4, 8)):
            values, mixes = torch.rand(3, *sizes, generator=torch.Generator().manual_seed(0)), False
            with suppress(Exception):  # raised by a function of [B, D] alone
                mixes = depends_on_batch(lambda x: called(x["x"]), {"x": values})
            if mixes:
                shape = ", ".join(map(str, values.shape))
                raise ValueError(f"activation: expected each example alone, got {name}, which mixes a batch [{shape}]")
    return kind


def depends_on_batch(call: Callable[[Mapping[str, Any]], Any], inputs: Mapping[str, Any]) -> bool:
    """Return whether the output of an example depends on the others of its batch, on its place in it, or on its size.

    Args:
        call: from a tensor [B, ...] per port to one [B, ...]; random numbers of torch are seeded.
        inputs: three examples per port; tokens are 0 and 1.
    """
    torch = import_module("torch")

    def run(rows: Sequence[int], seed: int = 0, changed: int | None = None) -> Any:
        batch = {port: tensor[rows] for port, tensor in inputs.items()}
        for tensor in batch.values() if changed is not None else ():
            old = tensor[changed]
            tensor[changed] = 3 * old + 1 if tensor.is_floating_point() else 1 - old
        torch.default_generator.manual_seed(seed)  # of the CPU alone
        return call(batch)

    def equal(output: Any, rows: Sequence[int]) -> bool:
        same = output.shape == whole[rows].shape
        return same and torch.allclose(output, whole[rows], rtol=1e-3, atol=1e-5, equal_nan=True)

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        whole, every = run([0, 1, 2]), range(3)
        for place in every:
            others = [each for each in every if each != place]
            if not equal(run([0, 1, 2], changed=place)[others], others):
                return True
        if not equal(run([0, 1, 2], seed=1), [0, 1, 2]):
            return False  # random numbers differ by place
        try:
            return not (equal(run([2, 0, 1]), [2, 0, 1]) and equal(run([1]), [1]))
        except Exception:  # it refuses another order or a batch of one
            return True


@cache
def aggregation(name: str) -> type[Aggregation]:
    """Return the class of an aggregation.

    Raises:
        ValueError: unknown name, a class that is not a subclass of Aggregation, or one that fails its check.
    """
    return _loaded(AGGREGATIONS, name)


def _loaded(point: ExtensionPoint, name: str) -> Any:
    loaded = point.load(name)
    if name not in point:
        with import_module("torch").device("cpu"):  # a saved model is built on the meta device
            loaded.check(name)
    return loaded


@cache
def aggregation_parameters() -> frozenset[str]:
    """Return the attributes that some built-in aggregation accepts."""
    return frozenset(key for name in AGGREGATIONS for key in aggregation(name).accepted())


def is_order_sensitive(name: Any) -> bool:
    """Return whether `name` is an aggregation whose result depends on the order of the in-edges; False for no name."""
    try:
        return isinstance(name, str) and aggregation(name).is_order_sensitive
    except ValueError:
        return False


def short_name(name: str) -> str:
    """Return the name for a label: `Class` for `module:Class`."""
    module, _, class_name = name.rpartition(":")
    return class_name if module.replace(".", "_").isidentifier() and class_name.isidentifier() else name


# Settings of a graph's translation, under config["translation"].
TRANSLATION_SETTINGS: Mapping[str, Parameter] = MappingProxyType(
    {
        "projection": one_of(*PROJECTIONS),
        "dtype": one_of(*DTYPES),
        "memory_format": one_of(*MEMORY_FORMATS),
        "autocast": one_of(*AUTOCAST_DTYPES),
        "padded": BOOL,
    }
)

# Attributes that are not aggregation parameters.
NODE_ATTRIBUTES: Mapping[str, Parameter] = MappingProxyType({"derivation_uuid": _STRING})
EDGE_ATTRIBUTES: Mapping[str, Parameter] = MappingProxyType(
    {"derivation_uuid": _STRING, "is_recurrent": BOOL, "order": Parameter("a finite number", is_finite)}
)
