"""The immutable plan of a model: what is computed in which order, and which parameters that takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import sqrt
from typing import Any

from gflownet.graphs.limits import message_size
from gflownet.graphs.vocabulary import ATTENTION_AGGREGATIONS, CONCATENATIONS, RECURRENT_CELLS
from gflownet.translation.rhn_plan import projections, rhn_config

CELLS = RECURRENT_CELLS
STATELESS_ACTIVATIONS = (
    "relu",
    "sigmoid",
    "tanh",
    "softmax",
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "linear",
    "identity",
)


class Initial(StrEnum):
    """How a parameter gets its first values."""

    BIAS = "bias"  # node.bias
    WEIGHT = "weight"  # edge.weight
    ZERO = "zero"
    UNIFORM = "uniform"  # U(-bound, bound)
    QUERY = "query"  # small normal
    ONE = "one"
    NORMAL = "normal"  # N(0, bound^2)


@dataclass(frozen=True)
class ParameterPlan:
    """One parameter: its full name, shape and first values."""

    name: str
    shape: tuple[int, ...]
    initial: Initial
    bound: float = 0.0
    owner: int = 0  # the node of a BIAS, the edge of a WEIGHT

    @cached_property
    def module(self) -> str:
        """The name of the submodule that holds the parameter, empty for the model itself."""
        return self.name.rpartition(".")[0]

    @cached_property
    def leaf(self) -> str:
        """The name of the parameter in its submodule."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class EdgePlan:
    """One enabled edge into a non-INPUT node."""

    edge_id: int
    source: int
    label: str  # "{source}_{target}", in multigraphs "{edge_id}": the end of the parameter names
    source_size: int
    reads_input: bool  # the source is an INPUT node
    is_recurrent: bool
    is_projected: bool


@dataclass(frozen=True)
class NodePlan:
    """One non-INPUT node: act(post(aggregate(messages)) + bias)."""

    node_id: int
    output_size: int
    activation: str
    aggregation: str
    settings: tuple[tuple[str, Any], ...]  # the aggregation's attributes
    edges: tuple[EdgePlan, ...]
    is_live: bool  # an OUTPUT, or feeds one

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The aggregation's attributes by name."""
        return dict(self.settings)

    @property
    def message_size(self) -> int:
        """d(t) of the spec: the width of every message into this node."""
        return message_size(self.aggregation, self.attributes, self.output_size)

    @property
    def num_heads(self) -> int:
        """The number of query rows."""
        if self.aggregation == "attn_pool":
            return self.attributes.get("pool_heads", 1)
        return self.attributes.get("num_heads", 1) if self.aggregation == "multi_head_attention" else 1

    @property
    def aggregated_size(self) -> int:
        """The width after the aggregation, before post."""
        if self.aggregation in CONCATENATIONS:
            return len(self.edges) * self.message_size
        return self.num_heads * self.message_size

    @cached_property
    def has_post(self) -> bool:
        """Whether a linear layer follows the aggregation. An unfed concat has nothing to project."""
        size = self.aggregated_size
        return size > 0 and (size != self.output_size or bool(self.attributes.get("post_projection")))

    def parameters(self) -> Iterator[ParameterPlan]:
        """The parameters of the node and of its in-edges, in the order in which they are made."""
        yield ParameterPlan(f"bias_{self.node_id}", (), Initial.BIAS, owner=self.node_id)
        for edge in self.edges:
            yield ParameterPlan(f"weight_{edge.label}", (), Initial.WEIGHT, owner=edge.edge_id)
            if self.aggregation == "gated_sum":
                yield ParameterPlan(f"gate_{edge.label}", (), Initial.ZERO)
            if self.aggregation == "moe":
                yield ParameterPlan(f"router_{edge.label}", (), Initial.ZERO)
            if edge.is_projected:
                yield _linear(f"proj_{edge.label}", edge.source_size, self.message_size)
        if self.aggregation in ATTENTION_AGGREGATIONS:
            heads = () if self.aggregation == "attention" else (self.num_heads,)
            yield ParameterPlan(f"q_{self.node_id}", (*heads, self.message_size), Initial.QUERY)
        if self.has_post:
            yield _linear(f"post_{self.node_id}", self.aggregated_size, self.output_size)
        if self.activation == "rhn":
            yield from _rhn(f"rhn_{self.node_id}", self.output_size)
        elif self.activation in CELLS:
            yield from _cell(f"{self.activation}_{self.node_id}", self.activation, self.output_size)


@dataclass(frozen=True)
class StateSlot:
    """One tensor [B, size] that a step hands to the next."""

    # "output" of a node that a recurrent edge reads; "hidden" of a cell, "cell" of an lstm; "token" of an rhn: 1 after
    # a step and 0 before the first, so that zeros say "no token before", which the plain feed-forward network reads.
    kind: str
    node_id: int
    size: int


@dataclass(frozen=True)
class ModelPlan:
    """A whole model. Two graphs with the same plan share one generated class."""

    inputs: tuple[tuple[int, int], ...]  # (node id, width) in the order of the input's columns
    nodes: tuple[NodePlan, ...]  # non-INPUT nodes, sources before targets
    outputs: tuple[int, ...]  # node ids in the order of the output's columns
    key: tuple[Any, ...]  # the structural key it was built from

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelPlan":
        return self

    @cached_property
    def input_size(self) -> int:
        """The number of columns of the model's input."""
        return sum(size for _, size in self.inputs)

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Output width by node id, INPUT nodes included."""
        return dict(self.inputs) | {node.node_id: node.output_size for node in self.nodes}

    @cached_property
    def output_size(self) -> int:
        """The number of columns of the model's output."""
        return sum(self.sizes[node_id] for node_id in self.outputs)

    @cached_property
    def parameters(self) -> tuple[ParameterPlan, ...]:
        """Every parameter, in the order in which they are made."""
        return tuple(parameter for node in self.nodes for parameter in node.parameters())

    @cached_property
    def scalars(self) -> tuple[ParameterPlan, ...]:
        """The 0-d parameters, whose first values are numbers of the graph or zero."""
        return tuple(parameter for parameter in self.parameters if parameter.shape == ())

    @cached_property
    def live_nodes(self) -> tuple[NodePlan, ...]:
        """The nodes that are computed."""
        return tuple(node for node in self.nodes if node.is_live)

    @cached_property
    def slots(self) -> tuple[StateSlot, ...]:
        """What a step must remember: nothing for a feed-forward graph."""
        edges = [edge for node in self.live_nodes for edge in node.edges]
        sources = dict.fromkeys(edge.source for edge in edges if edge.is_recurrent)
        slots = [StateSlot("output", source, self.sizes[source]) for source in sources]
        for node in self.live_nodes:
            if node.activation in CELLS:
                slots.append(StateSlot("hidden", node.node_id, node.output_size))
            if node.activation == "lstm":
                slots.append(StateSlot("cell", node.node_id, node.output_size))
            if node.activation == "rhn":
                slots.append(StateSlot("token", node.node_id, 1))
        return tuple(slots)

    @cached_property
    def is_run_by_node(self) -> bool:
        """Whether sequences are run node by node: there are rhn nodes, and nothing is read one step late."""
        has_rhn = any(node.activation == "rhn" for node in self.live_nodes)
        return has_rhn and not any(slot.kind == "output" for slot in self.slots)


def _linear(name: str, in_features: int, out_features: int) -> ParameterPlan:
    # nn.Linear's default, kaiming_uniform_(a=sqrt(5)), term by term so that the draws are the same numbers.
    bound = sqrt(3.0) * (sqrt(2.0 / (1 + sqrt(5) ** 2)) / sqrt(in_features))
    return ParameterPlan(f"{name}.weight", (out_features, in_features), Initial.UNIFORM, bound)


def _cell(name: str, kind: str, size: int) -> Iterator[ParameterPlan]:
    gates = 4 if kind == "lstm" else 3
    for part in ("weight_ih", "weight_hh"):
        yield ParameterPlan(f"{name}.{part}", (gates * size, size), Initial.UNIFORM, 1.0 / sqrt(size))


def _rhn(name: str, size: int) -> Iterator[ParameterPlan]:
    """The parameters of gflownet.rhn.layers.RHNBlock, in its order and with its first values."""
    config = rhn_config(size)
    hidden, intermediate, width = config.hidden_size, config.intermediate_size, config.bottleneck + 1
    yield ParameterPlan(f"{name}.norm.weight", (hidden,), Initial.ONE)
    yield ParameterPlan(f"{name}.bhn.beta", (width,), Initial.ZERO)
    yield ParameterPlan(f"{name}.bhn.norm.weight", (hidden,), Initial.ONE)
    yield ParameterPlan(f"{name}.bhn.squeeze.weight", (config.bottleneck, hidden), Initial.NORMAL, hidden**-0.5)
    yield ParameterPlan(f"{name}.bhn.squeeze.bias", (config.bottleneck,), Initial.ZERO)
    for kind, size_in, size_out in projections(config):
        shape = (width, config.rank, size_in)
        yield ParameterPlan(f"{name}.bhn.{kind}.a", shape, Initial.NORMAL, (width * size_in) ** -0.5)
        yield ParameterPlan(f"{name}.bhn.{kind}.b", (width, size_out, config.rank), Initial.ZERO)
        yield ParameterPlan(f"{name}.bhn.{kind}.delta", (width, size_out), Initial.ZERO)
    for kind, size_in, size_out in projections(config):
        std = (intermediate if kind == "down" else hidden) ** -0.5
        yield ParameterPlan(f"{name}.ffn.plain.{kind}_proj.weight", (size_out, size_in), Initial.NORMAL, std)
