"""The built-in aggregations. A new one is a class here and a line in gflownet/operations/vocabulary.py.

Nothing here imports torch: the classes write the code of a model. Letters: B batch, J in-edges, d message width, X [B,
J, d] the messages, H query rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, ClassVar

from gflownet.operations.code import group
from gflownet.operations.neuron import Aggregate, CodeAggregation, NeuronCode
from gflownet.operations.vocabulary import (
    BOOL,
    EPSILON,
    OPTIONAL_POSITIVE_INT,
    POSITIVE_INT,
    PROBABILITY,
    TEMPERATURE,
    Parameter,
)

# dropout_p and attn_eps act on the attention weights (train mode, and inside the normalisation).
_ATTENTION = {"head_dim": POSITIVE_INT, "temperature": TEMPERATURE, "dropout_p": PROBABILITY, "attn_eps": EPSILON}
# normalize: whether the mixing weights are divided by their sum.
_MIXTURE = {"dropout_p": PROBABILITY, "normalize": BOOL}


class Sum(CodeAggregation):
    """sum_j X_j."""

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        has_bias = not code.sizes.has_post
        lines, total = code.weighted_sum(code.per_edge("weight"), code.bias if has_bias else "")
        return Aggregate(lines, total, has_bias)


class Mean(CodeAggregation):
    """1/J sum_j X_j."""

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        count = len(code.sources)
        if count == 1:
            return Sum.emit(code)
        lines, total = code.weighted_sum(code.per_edge("weight"), "")
        if code.sizes.has_post:
            return Aggregate(lines, f"{total} * {1 / count!r}")
        return Aggregate(lines, f"torch.add({code.bias}, {total}, alpha={1 / count!r})", has_bias=True)

    @classmethod
    def elementwise_flops(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return max(num_edges, 1) * message_size


class Extremum(CodeAggregation):
    """The elementwise maximum or minimum over j."""

    function: ClassVar[str]  # of two tensors
    difference: ClassVar[str]  # of {a} and {b}: positive where {a} is the extremum

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        total, *later = code.messages()
        lines, best = [], code.name("best")
        # One statement per message: Python parses no more than some hundred nested calls.
        for message in later:
            lines.append(f"{best} = {cls.function}({total}, {message})")
            total = best
        return Aggregate(lines, total)


class Max(Extremum):
    """max_j X_j, elementwise."""

    function, difference = "torch.maximum", "{a} - {b}"


class Min(Extremum):
    """min_j X_j, elementwise."""

    function, difference = "torch.minimum", "{b} - {a}"


class Concat(CodeAggregation):
    """[X_1, ..., X_J] side by side."""

    is_order_sensitive = True

    @classmethod
    def aggregated_size(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return num_edges * message_size

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        messages = code.messages()
        return Aggregate([], messages[0] if len(messages) == 1 else f"torch.cat({group(messages)}, dim=-1)")

    @classmethod
    def elementwise_flops(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return 0


class _AnyAttention(CodeAggregation):
    """p = softmax_j(X q / (sqrt(d) * temperature)), sum_j p_j X_j; one such sum per row of q, concatenated."""

    heads: ClassVar[str] = ""  # the attribute that sets H; empty: one query [d]

    @classmethod
    def message_size(cls, options: Mapping[str, Any], output_size: int) -> int:
        return options.get("head_dim", output_size)

    @classmethod
    def num_heads(cls, options: Mapping[str, Any]) -> int:
        """Return H."""
        return options.get(cls.heads, 1)

    @classmethod
    def query_shape(cls, options: Mapping[str, Any], message_size: int) -> tuple[int, ...]:
        return (cls.num_heads(options), message_size) if cls.heads else (message_size,)

    @classmethod
    def aggregated_size(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return cls.num_heads(options) * message_size

    @classmethod
    def multiply_adds(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return 2 * cls.num_heads(options) * num_edges * message_size  # scores, then the mix

    @classmethod
    def elementwise_flops(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return 3 * cls.num_heads(options) * num_edges  # softmax: exp, sum, division

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        messages, mix = code.name("messages"), code.name("mix")
        scale = 1.0 / (sqrt(code.sizes.message) * code.options.get("temperature", 1.0))
        query = f"{code.dialect.parameter(code.node.named('q'))} * {scale!r}"
        # Not by a vector: onnxruntime refuses such a product of an empty batch.
        scores = f"{messages} @ ({query}).t()" if cls.heads else f"({messages} @ ({query}).unsqueeze(1)).squeeze(2)"
        lines = [code.stacked(), *_softmax(code, scores), *_dropout(code)]
        if cls.heads:
            return Aggregate(lines, f"({mix}.transpose(1, 2) @ {messages}).flatten(1)")
        return Aggregate(lines, f"({mix}.unsqueeze(1) @ {messages}).squeeze(1)")


class Attention(_AnyAttention):
    """p = softmax_j(X q / (sqrt(d) temperature)), sum_j p_j X_j."""

    attributes = _ATTENTION


class MultiHeadAttention(_AnyAttention):
    """Attention for each of num_heads rows of q, side by side."""

    heads = "num_heads"
    attributes = _ATTENTION | {"num_heads": POSITIVE_INT}


class AttentionPool(_AnyAttention):
    """Attention for each of pool_heads rows of q, side by side."""

    heads = "pool_heads"
    attributes = _ATTENTION | {"pool_heads": POSITIVE_INT}


def _softmax(code: NeuronCode, scores: str) -> list[str]:
    """Softmax over the inputs, dim 1; attn_eps is added to the sum that divides."""
    mix, epsilon = code.name("mix"), code.options.get("attn_eps", 0.0)
    if not epsilon:
        return [f"{mix} = torch.softmax({scores}, dim=1)"]
    score = code.name("score")
    return [
        f"{score} = {scores}",
        f"{mix} = torch.exp({score} - {score}.amax(dim=1, keepdim=True))",
        f"{mix} = {mix} / ({mix}.sum(dim=1, keepdim=True) + {epsilon!r})",
    ]


def _dropout(code: NeuronCode) -> list[str]:
    p = code.options.get("dropout_p", 0.0)
    return [f"{code.name('mix')} = F.dropout({code.name('mix')}, {p!r}, self.training)"] if p else []


class TopKWeightedSum(CodeAggregation):
    """sum_j p_j X_j with p the softmax of s = mean_d X over the top_k largest s; over all where there are no more."""

    is_order_sensitive = True  # ties go to the earlier input
    attributes = _MIXTURE | {"top_k": OPTIONAL_POSITIVE_INT, "temperature": TEMPERATURE}

    @classmethod
    def multiply_adds(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return min(options.get("top_k") or num_edges, num_edges) * message_size

    @classmethod
    def elementwise_flops(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return 3 * num_edges

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        messages, mix, score = map(code.name, ("messages", "mix", "score"))
        temperature = code.options.get("temperature", 1.0)
        scaled = f" * {1 / temperature!r}" if temperature != 1 else ""
        lines = [code.stacked(), f"{score} = {messages}.mean(dim=2){scaled}"]
        top_k = code.options.get("top_k")
        if top_k is None or top_k >= len(code.sources):
            lines.append(f"{mix} = torch.softmax({score}, dim=1)")
        else:
            top = code.name("top")
            # A stable order: ties go to the earlier input, which torch.topk does not promise.
            lines.append(f"{top} = {score}.argsort(dim=1, descending=True, stable=True)[:, :{top_k}]")
            if code.options.get("normalize", True):
                lines.append(f"{mix} = torch.softmax({score}.gather(1, {top}), dim=1)")
            else:
                lines.append(f"{mix} = torch.softmax({score}, dim=1).gather(1, {top})")
            index = f"{top}.unsqueeze(2).expand(-1, -1, {code.sizes.message})"
            lines.append(f"{messages} = {messages}.gather(1, {index})")
        return Aggregate([*lines, *_dropout(code)], f"({mix}.unsqueeze(1) @ {messages}).squeeze(1)")


class _Mixture(CodeAggregation):
    """sum_j mix_j X_j for mixing weights [J] that are computed from one learned number per in-edge."""

    @classmethod
    def elementwise_flops(cls, options: Mapping[str, Any], message_size: int, num_edges: int) -> int:
        return (max(num_edges - 1, 0) + num_edges) * message_size

    @classmethod
    def mixed(cls, code: NeuronCode, lines: list[str]) -> Aggregate:
        """Return sum_j mix_j X_j for mixing weights [J] shared by all rows of the batch, from their statements."""
        mix = code.name("mix")
        if code.options.get("dropout_p"):
            # Dropout draws per row of the batch, so the weights become [B, J].
            lines += [code.stacked(), f"{mix} = {mix}.expand({code.rows}, -1)", *_dropout(code)]
            return Aggregate(lines, f"({mix}.unsqueeze(1) @ {code.name('messages')}).squeeze(1)")
        factors = [f"{code.name('factor')}_{position}" for position in range(len(code.sources))]
        weights = f"torch.stack({group(code.per_edge('weight'))})"
        lines.append(f"{', '.join(factors)}, = ({mix} * {weights}).unbind()")
        has_bias = not code.sizes.has_post
        more, total = code.weighted_sum(factors, code.bias if has_bias else "")
        return Aggregate([*lines, *more], total, has_bias)


class MixtureOfExperts(_Mixture):
    """sum_j p_j X_j with p the softmax of the routers, over all or over their top_k (default 1)."""

    is_order_sensitive = True  # ties go to the earlier input
    edge_parameter = "router"
    attributes = _MIXTURE | {
        "router_type": Parameter("softmax or topk", lambda value: value in ("softmax", "topk")),
        "router_temperature": TEMPERATURE,
        "top_k": OPTIONAL_POSITIVE_INT,
    }

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        options, mix, router = code.options, code.name("mix"), code.name("router")
        temperature = options.get("router_temperature", 1.0)
        scaled = f" * {1 / temperature!r}" if temperature != 1 else ""
        lines = [f"{router} = torch.stack({group(code.per_edge('router'))}){scaled}"]
        top_k = options.get("top_k") or 1
        if options.get("router_type", "softmax") == "softmax" or top_k >= len(code.sources):
            lines.append(f"{mix} = torch.softmax({router}, dim=0)")
        else:
            top = code.name("top")
            lines.append(f"{top} = {router}.argsort(descending=True, stable=True)[:{top_k}]")
            if options.get("normalize", True):
                weights = f"torch.softmax({router}[{top}], dim=0)"
            else:
                weights = f"torch.softmax({router}, dim=0)[{top}]"
            lines.append(f"{mix} = torch.zeros_like({router}).scatter(0, {top}, {weights})")
        return cls.mixed(code, lines)


class GatedSum(_Mixture):
    """sum_j sigmoid(g_j) X_j; normalize divides the gates by their sum."""

    edge_parameter = "gate"
    attributes = _MIXTURE

    @classmethod
    def emit(cls, code: NeuronCode) -> Aggregate:
        mix = code.name("mix")
        lines = [f"{mix} = torch.sigmoid(torch.stack({group(code.per_edge('gate'))}))"]
        if code.options.get("normalize", False):
            lines.append(f"{mix} = {mix} / {mix}.sum()")
        return cls.mixed(code, lines)
