"""Straight-line Python for one time step, node by node. The same lines serve the model and the stand-alone source."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from gflownet.translation.plan import EdgePlan, ModelPlan, NodePlan, StateSlot

ACTIVATIONS = {
    "relu": "torch.relu({z})",
    "sigmoid": "torch.sigmoid({z})",
    "tanh": "torch.tanh({z})",
    "softmax": "torch.softmax({z}, dim=1)",
    "leaky_relu": "F.leaky_relu({z})",
    "elu": "F.elu({z})",
    "gelu": "F.gelu({z})",
    "silu": "F.silu({z})",
    "linear": "{z}",
    "identity": "{z}",
}


@dataclass(frozen=True)
class Access:
    """How the code reaches what it needs: text for a parameter, a submodule's weight, a submodule."""

    parameter: Callable[[str], str]
    weight: Callable[[str], str]
    module: Callable[[str], str]


FAST_ACCESS = Access(
    # Straight from the dicts of nn.Module: its __getattr__ costs as much as a small kernel.
    parameter=lambda name: f'p["{name}"]',
    weight=lambda name: f'm["{name}"].weight',
    module=lambda name: f'm["{name}"]',
)
PLAIN_ACCESS = Access(
    parameter=lambda name: f"self.{identifier(name)}",
    weight=lambda name: f"self.{identifier(name)}.weight",
    module=lambda name: f"self.{identifier(name)}",
)


def identifier(name: str) -> str:
    """A parameter's name as a Python identifier (ids may be negative)."""
    return name.replace("-", "m")


def variable(node_id: int) -> str:
    """The variable that holds a node's output [B, size]."""
    return identifier(f"x{node_id}")


def slot_name(kind: str, node_id: int) -> str:
    """The variable that holds a slot's tensor of the previous step [B, size]."""
    return identifier(f"{kind}{node_id}")


def step_lines(plan: ModelPlan, access: Access) -> list[str]:
    """Statements from `x` [B, F] and the slot variables to `y` [B, O] and, in stateful models, `state`."""
    lines = _input_lines(plan)
    for node in plan.live_nodes:
        lines += NodeEmitter(node, access).lines()
    outputs = [variable(node_id) for node_id in plan.outputs]
    joined = outputs[0] if len(outputs) == 1 else f"torch.cat(({', '.join(outputs)}), dim=1)"
    lines.append(f"y = {joined}")
    if plan.slots:
        lines.append(f"state = ({', '.join(_new_state(plan, slot) for slot in plan.slots)},)")
    return lines


def _input_lines(plan: ModelPlan) -> list[str]:
    read = {edge.source for node in plan.live_nodes for edge in node.edges}  # a recurrent edge reads it later
    if len(plan.inputs) == 1:
        return [f"{variable(plan.inputs[0][0])} = x"] if plan.inputs[0][0] in read else []
    lines, start = [], 0
    for node_id, size in plan.inputs:
        if node_id in read:
            lines.append(f"{variable(node_id)} = x[:, {start}:{start + size}]")
        start += size
    return lines


def _new_state(plan: ModelPlan, slot: StateSlot) -> str:
    if slot.kind == "cell":
        return slot_name("new_cell", slot.node_id)
    # The caller may write into its own input or into the output it gets: the state must not share their memory.
    is_shared = (slot.node_id,) == plan.outputs or slot.node_id in dict(plan.inputs)
    return f"{variable(slot.node_id)}.clone()" if is_shared else variable(slot.node_id)


# What an aggregation emits: statements, the expression of the aggregate [B, agg_size], whether the bias is in it.
Emitted = tuple[list[str], str, bool]


class NodeEmitter:
    """Statements that compute one node."""

    def __init__(self, node: NodePlan, access: Access) -> None:
        self.node = node
        self.access = access
        self.bias = access.parameter(f"bias_{node.node_id}")

    def lines(self) -> list[str]:
        """From the sources' variables to the node's own."""
        node = self.node
        if not node.edges:
            # An unfed node outputs act(bias).
            return [self._activated(f"{self.bias}.expand(x.shape[0], {node.output_size})")]
        lines, total, has_bias = AGGREGATIONS[node.aggregation](self)
        if node.has_post:
            assert not has_bias, "the bias comes after post"
            post = self.access.weight(f"post_{node.node_id}")
            return [*lines, self._activated(f"F.linear({total}, {post}, {self.bias})")]
        return [*lines, self._activated(total if has_bias else f"{total} + {self.bias}")]

    def name(self, word: str) -> str:
        """A variable of this node's own."""
        return identifier(f"{word}{self.node.node_id}")

    def per_edge(self, word: str) -> list[str]:
        """The expressions of one 0-d parameter per in-edge: weight, gate or router."""
        return [self.access.parameter(f"{word}_{edge.label}") for edge in self.node.edges]

    def messages(self) -> list[str]:
        """One expression [B, d] per in-edge: w * (P x)."""
        weights = self.per_edge("weight")
        return [self.added(edge, weight, "") for edge, weight in zip(self.node.edges, weights, strict=True)]

    def stacked(self) -> str:
        """The statement that stacks the messages to [B, J, d] under the name `messages`."""
        return f"{self.name('messages')} = torch.stack({group(self.messages())}, dim=1)"

    def weighted_sum(self, factors: list[str], start: str) -> tuple[list[str], str]:
        """Statements and expression of start + sum_j factor_j * (P_j x_j); `start` may be empty."""
        total, name, lines = start, self.name("sum"), []
        # Projected edges first: their first product takes the bias at no cost.
        pairs = sorted(zip(self.node.edges, factors, strict=True), key=lambda pair: not pair[0].is_projected)
        for position, (edge, factor) in enumerate(pairs):
            lines.append(f"{name} = {self.added(edge, factor, total, is_matrix=position > 0)}")
            total = name
        # The last line is the expression itself.
        return lines[:-1], lines[-1].partition(" = ")[2]

    def added(self, edge: EdgePlan, factor: str, total: str, *, is_matrix: bool = False) -> str:
        """The expression of total + factor * (P x); `is_matrix` says that `total` is [B, d] and no 0-d bias."""
        x = slot_name("output", edge.source) if edge.is_recurrent else variable(edge.source)
        if not edge.is_projected:
            return f"torch.addcmul({total}, {x}, {factor})" if total else f"{x} * {factor}"
        # Scaling the weights, not the output, keeps one gemm with the bias inside; see docs/translation.md.
        matrix = f"{self.access.weight(f'proj_{edge.label}')} * {factor}"
        if is_matrix and total:
            return f"torch.addmm({total}, {x}, ({matrix}).t())"
        return f"F.linear({x}, {matrix}, {total})" if total else f"F.linear({x}, {matrix})"

    def _activated(self, z: str) -> str:
        node = self.node
        layer = self.access.module(f"{node.activation}_{node.node_id}")
        hidden = slot_name("hidden", node.node_id)
        if node.activation == "lstm":
            cell = slot_name("cell", node.node_id)
            return f"{variable(node.node_id)}, {self.name('new_cell')} = {layer}({z}, ({hidden}, {cell}))"
        if node.activation == "gru":
            return f"{variable(node.node_id)} = {layer}({z}, {hidden})"
        return f"{variable(node.node_id)} = {ACTIVATIONS[node.activation].format(z=z)}"


def group(expressions: list[str]) -> str:
    """The expressions as a tuple."""
    return f"({', '.join(expressions)},)" if len(expressions) == 1 else f"({', '.join(expressions)})"


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
        for message in rest:
            total = f"{function}({total}, {message})"
        return [], total, False

    return emit


def _concat(emitter: NodeEmitter) -> Emitted:
    messages = emitter.messages()
    return [], messages[0] if len(messages) == 1 else f"torch.cat({group(messages)}, dim=1)", False


def _attention(emitter: NodeEmitter) -> Emitted:
    """p = softmax_j(X q / (sqrt(d) * temperature)), sum_j p_j X_j; one such sum per row of q, concatenated."""
    node, messages, mix = emitter.node, emitter.name("messages"), emitter.name("mix")
    scale = 1.0 / (sqrt(node.message_size) * node.attributes.get("temperature", 1.0))
    query = f"{emitter.access.parameter(f'q_{node.node_id}')} * {scale!r}"
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
