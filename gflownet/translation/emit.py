"""Straight-line Python for one time step, node by node. The same lines serve the model and the stand-alone source."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gflownet.translation.plan import CELLS, EdgePlan, NodePlan

USUAL_BATCH = 64

ACTIVATIONS = {
    "relu": "torch.relu({z})",
    "sigmoid": "torch.sigmoid({z})",
    "tanh": "torch.tanh({z})",
    "softmax": "torch.softmax({z}, dim=-1)",
    "leaky_relu": "F.leaky_relu({z})",
    "elu": "F.elu({z})",
    "gelu": "F.gelu({z})",
    "silu": "F.silu({z})",
    "linear": "{z}",
    "identity": "{z}",
}


def product(x: str, matrix: str, total: str, is_matrix: bool) -> str:
    """Return the expression of total + x @ matrix.t(); `total` may be empty, `is_matrix`: it is no 0-d bias."""
    if is_matrix:
        return f"torch.addmm({total}, {x}, ({matrix}).t())"
    return f"F.linear({x}, {matrix}, {total})" if total else f"F.linear({x}, {matrix})"


def _cell_step(emitter: "NodeEmitter", z: str) -> str:
    n, kind = emitter.node.node_id, emitter.node.activation
    layer = emitter.dialect.module(f"{kind}_{n}")
    hidden, cell = slot_name("hidden", n), slot_name("cell", n)
    if kind == "lstm":
        return f"{variable(n)}, {emitter.name('new_cell')} = {layer}({z}, ({hidden}, {cell}))"
    if kind == "gru":
        return f"{variable(n)} = {layer}({z}, {hidden})"
    return f"{variable(n)} = {layer}.step({z}, {hidden}, {slot_name('token', n)})"


def _cell_sequence(emitter: "NodeEmitter", z: str) -> str:
    n, kind = emitter.node.node_id, emitter.node.activation
    layer = emitter.dialect.module(f"{kind}_{n}")
    hidden, cell = slot_name("hidden", n), slot_name("cell", n)
    if kind == "lstm":
        return f"{variable(n)}, {emitter.name('new_cell')} = lstm_sequence({layer}, {z}, {hidden}, {cell})"
    if kind == "gru":
        return f"{variable(n)} = gru_sequence({layer}, {z}, {hidden})"
    return f"{variable(n)} = rhn_sequence({layer}, {z}, {hidden}, {slot_name('token', n)})"


@dataclass(frozen=True)
class Dialect:
    """How generated code reads parameters and runs recurrent cells."""

    parameter: Callable[[str], str]  # 0-d parameter or query
    weight: Callable[[str], str]  # weight matrix of a submodule
    module: Callable[[str], str]
    # (emitter, pre-activation) -> the statement that runs a recurrent cell
    cell: Callable[["NodeEmitter", str], str] = _cell_step


FAST = Dialect(
    # Straight from the dicts of nn.Module: its __getattr__ costs as much as a small kernel.
    parameter=lambda name: f'p["{name}"]',
    weight=lambda name: f'm["{name}"].weight',
    module=lambda name: f'm["{name}"]',
)
# All time steps at once, one after the other in the first dimension.
SEQUENCE = replace(FAST, cell=_cell_sequence)
PLAIN = Dialect(
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


class NodeEmitter:
    """Statements that compute one node."""

    def __init__(self, node: NodePlan, dialect: Dialect) -> None:
        self.node = node
        self.dialect = dialect
        self.bias = dialect.parameter(f"bias_{node.node_id}")

    def name(self, word: str) -> str:
        """A variable of this node's own."""
        return identifier(f"{word}{self.node.node_id}")

    def per_edge(self, word: str) -> list[str]:
        """The expressions of one 0-d parameter per in-edge: weight, gate or router."""
        return [self.dialect.parameter(f"{word}_{edge.label}") for edge in self.node.edges]

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
        # Scaling a factor, not the product, keeps one gemm with the bias inside: the cheaper factor at a usual batch.
        # From an input it is always the matrix, because dL/dw would otherwise cost the input's gradient.
        matrix = self.dialect.weight(f"proj_{edge.label}")
        if self.node.message_size > USUAL_BATCH and not edge.reads_input:
            return product(f"{x} * {factor}", matrix, total, is_matrix and bool(total))
        matrix = f"{matrix} * {factor}"
        return product(x, matrix, total, is_matrix and bool(total))

    def activated(self, z: str) -> str:
        """The statement from the pre-activation `z` [B, size] to the node's variable, and its new state."""
        node = self.node
        if node.activation in CELLS:
            return self.dialect.cell(self, z)
        return f"{variable(node.node_id)} = {ACTIVATIONS[node.activation].format(z=z)}"


def group(expressions: list[str]) -> str:
    """The expressions as a tuple."""
    return f"({', '.join(expressions)},)" if len(expressions) == 1 else f"({', '.join(expressions)})"
