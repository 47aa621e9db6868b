"""The code of every aggregation; a new one is a function here and a line in AGGREGATIONS."""

from collections.abc import Callable
from math import sqrt

from gflownet.translation.emit import NodeEmitter, group

# Statements, the expression of the aggregate [B, agg_size], whether the bias is in it.
Emitted = tuple[list[str], str, bool]


def _sum(emitter: NodeEmitter) -> Emitted:
    has_bias = not emitter.node.has_post
    lines, total = emitter.weighted_sum(emitter.per_edge("weight"), emitter.bias if has_bias else "")
    return lines, total, has_bias


def _mean(emitter: NodeEmitter) -> Emitted:
    count = len(emitter.node.edges)
    if count == 1:
        return _sum(emitter)
    lines, total = emitter.weighted_sum(emitter.per_edge("weight"), "")
    if emitter.node.has_post:
        return lines, f"{total} * {1 / count!r}", False
    return lines, f"torch.add({emitter.bias}, {total}, alpha={1 / count!r})", True


def _extremum(function: str) -> Callable[[NodeEmitter], Emitted]:
    def emit(emitter: NodeEmitter) -> Emitted:
        total, *rest = emitter.messages()
        lines, best = [], emitter.name("best")
        # One statement per message: Python parses no more than some hundred nested calls.
        for message in rest:
            lines.append(f"{best} = {function}({total}, {message})")
            total = best
        return lines, total, False

    return emit


def _concat(emitter: NodeEmitter) -> Emitted:
    messages = emitter.messages()
    return [], messages[0] if len(messages) == 1 else f"torch.cat({group(messages)}, dim=-1)", False


def _attention(emitter: NodeEmitter) -> Emitted:
    """p = softmax_j(X q / (sqrt(d) * temperature)), sum_j p_j X_j; one such sum per row of q, concatenated."""
    node, messages, mix = emitter.node, emitter.name("messages"), emitter.name("mix")
    scale = 1.0 / (sqrt(node.message_size) * node.attributes.get("temperature", 1.0))
    query = f"{emitter.dialect.parameter(f'q_{node.node_id}')} * {scale!r}"
    is_single = node.aggregation == "attention"
    scores = f"{messages} @ ({query})" if is_single else f"{messages} @ ({query}).t()"
    lines = [emitter.stacked(), *_softmax(emitter, scores), *_dropout(emitter)]
    if is_single:
        return lines, f"({mix}.unsqueeze(1) @ {messages}).squeeze(1)", False
    return lines, f"({mix}.transpose(1, 2) @ {messages}).flatten(1)", False


def _softmax(emitter: NodeEmitter, scores: str) -> list[str]:
    """Softmax over the inputs, dim 1; attn_eps is added to the sum that divides."""
    mix, epsilon = emitter.name("mix"), emitter.node.attributes.get("attn_eps", 0.0)
    if not epsilon:
        return [f"{mix} = torch.softmax({scores}, dim=1)"]
    score = emitter.name("score")
    return [
        f"{score} = {scores}",
        f"{mix} = torch.exp({score} - {score}.amax(dim=1, keepdim=True))",
        f"{mix} = {mix} / ({mix}.sum(dim=1, keepdim=True) + {epsilon!r})",
    ]


def _dropout(emitter: NodeEmitter) -> list[str]:
    p = emitter.node.attributes.get("dropout_p", 0.0)
    return [f"{emitter.name('mix')} = F.dropout({emitter.name('mix')}, {p!r}, self.training)"] if p else []


def _topk_weighted_sum(emitter: NodeEmitter) -> Emitted:
    """s = mean_d X; the mixing weights are the softmax of s over the chosen top_k, over all where there are no more."""
    node, messages, mix, score = emitter.node, *map(emitter.name, ("messages", "mix", "score"))
    temperature = node.attributes.get("temperature", 1.0)
    scaled = f" * {1 / temperature!r}" if temperature != 1 else ""
    lines = [emitter.stacked(), f"{score} = {messages}.mean(dim=2){scaled}"]
    top_k = node.attributes.get("top_k")
    if top_k is None or top_k >= len(node.edges):
        lines.append(f"{mix} = torch.softmax({score}, dim=1)")
    else:
        chosen = emitter.name("chosen")
        # A stable order: ties go to the earlier input, which torch.topk does not promise.
        lines.append(f"{chosen} = {score}.argsort(dim=1, descending=True, stable=True)[:, :{top_k}]")
        if node.attributes.get("normalize", True):
            lines.append(f"{mix} = torch.softmax({score}.gather(1, {chosen}), dim=1)")
        else:
            lines.append(f"{mix} = torch.softmax({score}, dim=1).gather(1, {chosen})")
        index = f"{chosen}.unsqueeze(2).expand(-1, -1, {node.message_size})"
        lines.append(f"{messages} = {messages}.gather(1, {index})")
    return [*lines, *_dropout(emitter)], f"({mix}.unsqueeze(1) @ {messages}).squeeze(1)", False


def _moe(emitter: NodeEmitter) -> Emitted:
    """The mixing weights are the softmax of the routers, over all or over their top_k (default 1)."""
    attributes, mix, router = emitter.node.attributes, emitter.name("mix"), emitter.name("router")
    temperature = attributes.get("router_temperature", 1.0)
    scaled = f" * {1 / temperature!r}" if temperature != 1 else ""
    lines = [f"{router} = torch.stack({group(emitter.per_edge('router'))}){scaled}"]
    top_k = attributes.get("top_k") or 1
    if attributes.get("router_type", "softmax") == "softmax" or top_k >= len(emitter.node.edges):
        lines.append(f"{mix} = torch.softmax({router}, dim=0)")
    else:
        chosen = emitter.name("chosen")
        lines.append(f"{chosen} = {router}.argsort(descending=True, stable=True)[:{top_k}]")
        if attributes.get("normalize", True):
            weights = f"torch.softmax({router}[{chosen}], dim=0)"
        else:
            weights = f"torch.softmax({router}, dim=0)[{chosen}]"
        lines.append(f"{mix} = torch.zeros_like({router}).scatter(0, {chosen}, {weights})")
    return _mixture(emitter, lines)


def _gated_sum(emitter: NodeEmitter) -> Emitted:
    """sum_j sigmoid(g_j) w_j P_j x_j; normalize divides the gates by their sum."""
    mix = emitter.name("mix")
    lines = [f"{mix} = torch.sigmoid(torch.stack({group(emitter.per_edge('gate'))}))"]
    if emitter.node.attributes.get("normalize", False):
        lines.append(f"{mix} = {mix} / {mix}.sum()")
    return _mixture(emitter, lines)


def _mixture(emitter: NodeEmitter, lines: list[str]) -> Emitted:
    """sum_j mix_j w_j P_j x_j for mixing weights [J] that all rows of the batch share."""
    node, mix = emitter.node, emitter.name("mix")
    if node.attributes.get("dropout_p"):
        # Dropout draws per row of the batch, so the weights become [B, J].
        lines += [emitter.stacked(), f"{mix} = {mix}.expand(x.shape[0], -1)", *_dropout(emitter)]
        return lines, f"({mix}.unsqueeze(1) @ {emitter.name('messages')}).squeeze(1)", False
    factors = [f"{emitter.name('factor')}_{position}" for position in range(len(node.edges))]
    weights = f"torch.stack({group(emitter.per_edge('weight'))})"
    lines.append(f"{', '.join(factors)}, = ({mix} * {weights}).unbind()")
    has_bias = not node.has_post
    more, total = emitter.weighted_sum(factors, emitter.bias if has_bias else "")
    return [*lines, *more], total, has_bias


AGGREGATIONS: dict[str, Callable[[NodeEmitter], Emitted]] = {
    "sum": _sum,
    "mean": _mean,
    "max": _extremum("torch.maximum"),
    "min": _extremum("torch.minimum"),
    "concat": _concat,
    # The flattened stack [B, J, d] is the concatenation; a lone input passes through either way.
    "matrix_product": _concat,
    "attention": _attention,
    "multi_head_attention": _attention,
    "attn_pool": _attention,
    "topk_weighted_sum": _topk_weighted_sum,
    "moe": _moe,
    "gated_sum": _gated_sum,
}
