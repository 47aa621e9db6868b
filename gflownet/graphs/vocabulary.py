"""What a computation graph may name: activations, aggregations, and the attributes they accept. Data only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gflownet.graphs.elements import is_finite, is_number

RECURRENT_CELLS = ("lstm", "gru", "rhn")
ACTIVATIONS = (
    *("relu", "sigmoid", "tanh", "softmax", "leaky_relu", "elu", "gelu", "silu", "linear", "identity"),
    *RECURRENT_CELLS,
)
ATTENTION_AGGREGATIONS = ("attention", "multi_head_attention", "attn_pool")
CONCATENATIONS = ("concat", "matrix_product")

# Widths, numbers of heads and top_k.
MAX_WIDTH = 2**20
# Beyond these a softmax is a maximum or a mean; much beyond, float32 scores overflow.
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e9
PROJECTIONS = ("auto", "always", "never")
DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Parameter:
    """An accepted attribute: what is expected, in words, and the test of a value."""

    expected: str
    accepts: Callable[[Any], bool]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_POSITIVE_INT = Parameter(f"an int in [1, {MAX_WIDTH:,}]", lambda value: _is_int(value) and 1 <= value <= MAX_WIDTH)
_OPTIONAL_POSITIVE_INT = Parameter(
    f"{_POSITIVE_INT.expected} or null", lambda value: value is None or _POSITIVE_INT.accepts(value)
)
_TEMPERATURE = Parameter(
    f"a float in [{MIN_TEMPERATURE:g}, {MAX_TEMPERATURE:g}]",
    lambda value: is_number(value) and MIN_TEMPERATURE <= value <= MAX_TEMPERATURE,
)
_EPSILON = Parameter("a float in [0, 1]", lambda value: is_number(value) and 0 <= value <= 1)
_PROBABILITY = Parameter("a float in [0, 1)", lambda value: is_number(value) and 0 <= value < 1)
_BOOL = Parameter("a bool", lambda value: isinstance(value, bool))
_ROUTER_TYPE = Parameter("softmax or topk", lambda value: value in ("softmax", "topk"))

# post_projection: a linear layer after the aggregation even where the sizes agree.
_ANY = {"post_projection": _BOOL}
# dropout_p and attn_eps act on the attention weights (train mode, and inside the normalisation).
_ATTENTION = {
    "head_dim": _POSITIVE_INT,
    "temperature": _TEMPERATURE,
    "dropout_p": _PROBABILITY,
    "attn_eps": _EPSILON,
}
# normalize: whether the mixing weights are divided by their sum.
_MIXTURE = {"dropout_p": _PROBABILITY, "normalize": _BOOL}

# aggregation -> attribute -> Parameter
AGGREGATIONS: Mapping[str, Mapping[str, Parameter]] = MappingProxyType(
    {
        "sum": _ANY,
        "mean": _ANY,
        "max": _ANY,
        "min": _ANY,
        "concat": _ANY,
        "matrix_product": _ANY,
        "attention": {**_ANY, **_ATTENTION},
        "multi_head_attention": {**_ANY, **_ATTENTION, "num_heads": _POSITIVE_INT},
        "attn_pool": {**_ANY, **_ATTENTION, "pool_heads": _POSITIVE_INT},
        "topk_weighted_sum": {**_ANY, **_MIXTURE, "top_k": _OPTIONAL_POSITIVE_INT, "temperature": _TEMPERATURE},
        "moe": {
            **_ANY,
            **_MIXTURE,
            "router_type": _ROUTER_TYPE,
            "router_temperature": _TEMPERATURE,
            "top_k": _OPTIONAL_POSITIVE_INT,
        },
        "gated_sum": {**_ANY, **_MIXTURE},
    }
)
AGGREGATION_PARAMETERS = frozenset(name for accepted in AGGREGATIONS.values() for name in accepted)

# Aggregations whose result depends on the order of the in-edges: by position in the output, or by ties that go to the
# earlier input (topk_weighted_sum, moe).
ORDER_SENSITIVE_AGGREGATIONS = frozenset({"concat", "matrix_product", "topk_weighted_sum", "moe"})

# Settings of a graph's translation, under config["translation"].
TRANSLATION_SETTINGS: Mapping[str, Parameter] = MappingProxyType(
    {
        "projection": Parameter(f"one of {', '.join(PROJECTIONS)}", lambda value: value in PROJECTIONS),
        "dtype": Parameter(f"one of {', '.join(DTYPES)}", lambda value: value in DTYPES),
    }
)

# Attributes that are no aggregation parameters.
_STRING = Parameter("a str", lambda value: isinstance(value, str))
NODE_ATTRIBUTES: Mapping[str, Parameter] = MappingProxyType({"derivation_uuid": _STRING})
EDGE_ATTRIBUTES: Mapping[str, Parameter] = MappingProxyType(
    {"derivation_uuid": _STRING, "is_recurrent": _BOOL, "order": Parameter("a finite number", is_finite)}
)
