"""The MDP that builds neural architectures: from inputs and outputs to a graph with every node on a path between them.

AddNode attaches a hidden node to a node with an input path and chooses its activation function; its other attributes
are set next, in order; then edges are added. Recurrent edges are a separate edge type; all other edges are acyclic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.config import EnvConfig
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.elements import Node
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.states import ABSENT, MOST_VALUES, UNSET, Attribute, GraphStates, GraphVocabulary
from gflownet.operations.tensor_shape import Shape
from gflownet.operations.vocabulary import activation, aggregation

FORWARD, RECURRENT = 0, 1  # positions of the edge types


class ComputationGraphEnv(Environment):
    """Computation graphs with given inputs and outputs; every state can be finished within its budget of edges."""

    terminal_type = ComputationGraph
    runs_on_device = True

    def __init__(
        self,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
        *,
        activations: Sequence[str],
        aggregations: Sequence[str],
        hidden_sizes: Sequence[int],
        max_hidden_nodes: int,
        max_edges: int,
        allow_recurrent: bool = False,
        output_aggregation: str = "sum",
    ) -> None:
        self.input_sizes, self.output_sizes = tuple(input_sizes), tuple(output_sizes)
        self.max_hidden_nodes, self.max_edges = max_hidden_nodes, max_edges
        self.output_aggregation = output_aggregation
        num_ends = max(len(self.input_sizes), len(self.output_sizes))
        if not self.input_sizes or not self.output_sizes:
            raise ValueError("expected at least one input and one output")
        if not activations or not aggregations or not hidden_sizes or max_hidden_nodes < 0:
            raise ValueError(
                f"expected activations, aggregations, hidden_sizes and max_hidden_nodes >= 0, "
                f"got {activations}, {aggregations}, {hidden_sizes} and {max_hidden_nodes}"
            )
        if max_edges < num_ends:
            raise ValueError(f"max_edges: expected at least {num_ends}, to join inputs and outputs, got {max_edges}")
        choices = (Attribute("aggregation", tuple(aggregations)), Attribute("output_size", tuple(hidden_sizes)))
        self._fixed = {a.name: a.values[0] for a in choices if len(a.values) == 1}
        ends = [f"input_{i}" for i in range(len(self.input_sizes))]
        ends += [f"output_{i}" for i in range(len(self.output_sizes))]
        super().__init__(
            GraphVocabulary(
                node_types=(*ends, *activations),
                max_nodes=len(ends) + max_hidden_nodes,
                directed=True,
                edge_types=("forward", "recurrent") if allow_recurrent else ("forward",),
                node_attributes=tuple(a for a in choices if len(a.values) > 1),
                ranked=any(aggregation(name).is_order_sensitive for name in (*aggregations, output_aggregation)),
            )
        )

    @property
    def num_inputs(self) -> int:
        """Return the number of input nodes: positions 0 .. num_inputs - 1."""
        return len(self.input_sizes)

    @property
    def num_ends(self) -> int:
        """Return the number of input and output nodes; hidden nodes start at this position."""
        return len(self.input_sizes) + len(self.output_sizes)

    def initial_states(self, num: int) -> GraphStates:
        return GraphStates.with_nodes(num, self.vocabulary, self.num_ends)

    def ordered_nodes(self, states: GraphStates) -> Tensor:
        """Return the mask of nodes with ordered inputs (such as concat), [B, N] bool."""
        position = torch.arange(self.vocabulary.max_nodes)
        is_output = (position >= self.num_inputs) & (position < self.num_ends)
        ordered = (is_output & aggregation(self.output_aggregation).is_order_sensitive).expand(states.exists.shape)
        hidden = position >= self.num_ends
        if "aggregation" in self._fixed:
            return ordered | (hidden & aggregation(self._fixed["aggregation"]).is_order_sensitive)
        # The last slot stands for "unset", which is not ordered.
        value = states.node_attr[:, :, 0].long() % len(self._is_ordered)
        return ordered | (hidden & self._is_ordered[value])

    def forward_rules(self, states: GraphStates) -> Rules:
        facts = _Facts(self, states)
        complete = Rule("a hidden node still has attributes to be set", _graph(~facts.incomplete.any(1)))
        budget = f"at most {self.max_edges} edges, and every node must still be joined to an output"
        num_sinks, num_uncovered = facts.sink.sum(1), facts.uncovered.sum(1)
        sinks = num_sinks[:, None] + (~facts.sink).long()
        needed = torch.maximum(sinks, num_uncovered[:, None])
        next_attribute = (states.node_attr != UNSET).sum(-1)
        return {
            Kind.Stop: [
                complete,
                Rule("every node must lead to an output", _graph(num_sinks == 0)),
                Rule("every output must be fed", _graph(num_uncovered == 0)),
            ],
            Kind.AddNode: [
                complete,
                Rule("only hidden nodes are added", (torch.arange(len(self.vocabulary.node_types)) >= self.num_ends)),
                Rule("the source is not there, or is an output", (facts.is_input | facts.is_hidden)[:, :, None]),
                Rule(
                    f"the graph already has {self.max_hidden_nodes} hidden nodes",
                    _graph(states.num_nodes < self.vocabulary.max_nodes),
                ),
                Rule(budget, (facts.num_edges[:, None] + 1 + needed <= self.max_edges)[:, :, None]),
            ],
            Kind.AddEdge: [Rule(complete.text, complete.holds[..., None]), *self._edge_rules(states, facts, budget)],
            Kind.SetNodeAttr: [
                Rule("only hidden nodes have attributes to set", facts.is_hidden[:, :, None]),
                Rule("attributes are set once and in order", self._attribute_of_column == next_attribute[:, :, None]),
            ],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        facts = _Facts(self, states)
        forward = states.edge_type == FORWARD
        fresh = facts.is_hidden & (forward.sum(1) == 1) & (states.has_edge.sum(2) == 0) & (states.has_edge.sum(1) == 1)
        others_complete = facts.incomplete.sum(1, keepdim=True) - facts.incomplete.long() == 0
        num_set = (states.node_attr != UNSET).sum(-1)
        in_degree = states.has_edge.sum(1)
        last = (states.edge_order == (in_degree - 1)[:, None, :]) | ~self.ordered_nodes(states)[:, None, :]
        spare = (forward.sum(1) >= 2)[:, None, :] | ~facts.is_hidden[:, None, :] | ~forward
        attribute = torch.arange(len(self.vocabulary.node_attributes))
        return {
            Kind.RemoveNode: [
                Rule("only a hidden node with one in-edge and no other can be removed", fresh[:, :, None]),
                Rule("another hidden node still has attributes to be set", others_complete[:, :, None]),
                Rule("the node still has attributes", (num_set == 0)[:, :, None]),
            ],
            Kind.RemoveEdge: [
                Rule("a hidden node still has attributes to be set", _graph(~facts.incomplete.any(1))[..., None]),
                Rule("the edge is not there", states.has_edge[..., None]),
                Rule("the target would no longer be fed", spare[..., None]),
                Rule("an ordered target gives up its last input first", last[..., None]),
            ],
            Kind.RemoveNodeAttr: [
                Rule("only a hidden node with one in-edge and no other can change", fresh[:, :, None]),
                Rule("another hidden node still has attributes to be set", others_complete[:, :, None]),
                Rule("the attribute set last is unset first", attribute == (num_set - 1)[:, :, None]),
            ],
        }

    def terminal(self, states: GraphStates, index: int) -> ComputationGraph:
        """Return the architecture that state `index` describes; nodes keep their positions as ids."""
        state = states[index]
        num_nodes, types = int(state.num_nodes), state.node_type.tolist()
        attributes, edges = state.node_attr.tolist(), state.edge_type.tolist()
        orders, ordered = state.edge_order.tolist(), self.ordered_nodes(states[index : index + 1])[0].tolist()
        graph = ComputationGraph()
        for node in range(num_nodes):
            self._add_terminal_node(graph, node, types[node], attributes[node])
        for target in range(num_nodes):
            sources = [s for s in range(num_nodes) if edges[s][target] != ABSENT]
            for source in sorted(sources, key=lambda s: (orders[s][target], s)):
                marks: dict[str, Any] = {"order": orders[source][target]} if ordered[target] else {}
                if edges[source][target] == RECURRENT:
                    marks["is_recurrent"] = True
                graph.add_edge(source, target, attributes=marks)
        return graph

    def describe(self, candidate: ComputationGraph) -> GraphDescription:
        ranks = {NodeType.INPUT: 0, NodeType.OUTPUT: 1, NodeType.HIDDEN: 2}
        nodes = sorted(candidate.nodes.values(), key=lambda node: (ranks[node.node_type], node.node_id))
        position = {node.node_id: index for index, node in enumerate(nodes)}
        counts = [sum(node.node_type is kind for node in nodes) for kind in (NodeType.INPUT, NodeType.OUTPUT)]
        if counts != [len(self.input_sizes), len(self.output_sizes)]:
            raise ValueError(
                f"expected {len(self.input_sizes)} inputs and {len(self.output_sizes)} outputs, got {counts}"
            )
        described = [self._described_node(index, node) for index, node in enumerate(nodes)]
        edges = {}
        for edge in candidate.edges.values():
            if edge.source not in position or edge.target not in position:
                raise ValueError(
                    f"edge {edge.edge_id}: expected nodes that are there, got {edge.source}, {edge.target}"
                )
            kind = "recurrent" if edge.attributes.get("is_recurrent") else "forward"
            edge_type = position_of(self.vocabulary.edge_types, kind, "edge type")
            ends = position[edge.source], position[edge.target]
            edges[ends] = DescribedEdge(edge_type, order=edge.attributes.get("order", 0))
        return GraphDescription([kind for kind, _ in described], [values for _, values in described], edges)

    def _described_node(self, index: int, node: Node) -> tuple[int, list[int]]:
        if node.node_type is not NodeType.HIDDEN:
            return index, [UNSET] * len(self.vocabulary.node_attributes)
        kind = position_of(self.vocabulary.node_types[self.num_ends :], node.activation_function, "activation function")
        values = {"aggregation": node.aggregation, "output_size": node.output_size}
        attributes = self.vocabulary.node_attributes
        return self.num_ends + kind, [position_of(a.values, values[a.name], a.name) for a in attributes]

    def _add_terminal_node(self, graph: ComputationGraph, node: int, node_type: int, values: Sequence[int]) -> None:
        if node < self.num_inputs:
            graph.add_node(node, NodeType.INPUT, output_size=self.input_sizes[node])
        elif node < self.num_ends:
            graph.add_node(
                node,
                NodeType.OUTPUT,
                output_size=self.output_sizes[node - self.num_inputs],
                attributes={"aggregation": self.output_aggregation},
            )
        else:
            chosen_values: dict[str, Any] = dict(self._fixed)
            pairs = zip(self.vocabulary.node_attributes, values, strict=True)
            chosen_values.update({attribute.name: attribute.values[value] for attribute, value in pairs})
            graph.add_node(
                node,
                NodeType.HIDDEN,
                output_size=chosen_values["output_size"],
                activation_function=self.vocabulary.node_types[node_type],
                attributes={"aggregation": chosen_values["aggregation"]},
            )

    @cached_property
    def _attribute_of_column(self) -> Tensor:
        return torch.tensor([a for a, _ in self.vocabulary.node_columns], dtype=torch.int64)

    @cached_property
    def _is_ordered(self) -> Tensor:
        first = self.vocabulary.node_attributes[0]
        return torch.tensor([*(aggregation(v).is_order_sensitive for v in first.values), False])

    def _edge_rules(self, states: GraphStates, facts: _Facts, budget: str) -> list[Rule]:
        source_ok = (facts.is_input | facts.is_hidden)[:, :, None]
        hidden, output = facts.is_hidden, facts.is_output
        sinks_after = facts.sink.sum(1)[:, None, None] - facts.sink[:, :, None].long()
        uncovered_after = facts.uncovered.sum(1)[:, None, None] - facts.uncovered[:, None, :].long()
        needed = torch.maximum(sinks_after, uncovered_after)
        room = facts.num_edges[:, None, None] + 1
        endpoints = source_ok & (hidden | output)[:, None, :]
        acyclic = ~states.reach.transpose(1, 2)
        affordable = room + needed <= self.max_edges
        absent = ~states.has_edge
        if len(self.vocabulary.edge_types) > 1:
            # A recurrent edge into an output comes from an output only, so that a sink can still be connected.
            recurrent_ends = (hidden | output)[:, :, None] & (
                hidden[:, None, :] | (output[:, :, None] & output[:, None, :])
            )
            standing = torch.maximum(facts.sink.sum(1), facts.uncovered.sum(1))[:, None, None]
            endpoints = torch.stack([endpoints, recurrent_ends], -1)
            acyclic = torch.stack([acyclic, torch.ones_like(acyclic)], -1)
            affordable = torch.stack([affordable, (room + standing <= self.max_edges).expand_as(affordable)], -1)
        else:
            endpoints, acyclic, affordable = endpoints[..., None], acyclic[..., None], affordable[..., None]
        return [
            Rule("an edge leads from a node that is there into a hidden or output node", endpoints),
            Rule("the edge is already there", absent[..., None]),
            Rule("the edge would close a cycle that is not marked recurrent", acyclic),
            Rule(budget, affordable),
        ]


class ComputationGraphEnvContext(GraphBuildingEnvContext):
    """Context of computation graphs, from the options under `env` and the sizes of the task."""

    @classmethod
    def build_env(
        cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]
    ) -> ComputationGraphEnv:
        """Return the environment.

        Raises:
            ValueError: an invalid option under `env`, or invalid sizes of the task.
        """
        check_search_space(config, input_sizes=input_sizes, output_sizes=output_sizes)
        for name in config.activations:
            activation(name)  # an error before the search starts
        for name in (*config.aggregations, config.output_aggregation):
            aggregation(name)
        return ComputationGraphEnv(
            input_sizes,
            output_sizes,
            activations=config.activations,
            aggregations=config.aggregations,
            hidden_sizes=config.output_sizes,
            max_hidden_nodes=config.max_hidden_nodes,
            max_edges=config.max_edges,
            allow_recurrent=config.allow_recurrent,
            output_aggregation=config.output_aggregation,
        )


class _Facts:
    """Properties of a batch of states that the rules use, computed once."""

    def __init__(self, env: ComputationGraphEnv, states: GraphStates) -> None:
        position = torch.arange(env.vocabulary.max_nodes)
        forward = states.edge_type == FORWARD
        self.is_input = (position < env.num_inputs).expand(states.exists.shape)
        self.is_output = ((position >= env.num_inputs) & (position < env.num_ends)).expand(states.exists.shape)
        self.is_hidden = states.exists & (position >= env.num_ends)
        self.incomplete = self.is_hidden & (states.node_attr == UNSET).any(-1)  # [B, N]
        self.sink = (self.is_input | self.is_hidden) & ~forward.any(2)  # [B, N] without an outgoing edge
        self.uncovered = self.is_output & ~forward.any(1)  # [B, N] outputs without an incoming edge
        self.num_edges = states.has_edge.flatten(1).sum(1)  # [B]


def _graph(condition: Tensor) -> Tensor:
    return condition[:, None, None]


def check_search_space(config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> None:
    """Raise ValueError for the first option, or attribute of the task, that is not valid for computation graphs."""
    _check_widths("input_sizes", input_sizes)
    _check_widths("output_sizes", output_sizes)
    for name in ("activations", "aggregations", "output_sizes"):
        values = list(getattr(config, name))
        if not 1 <= len(set(map(str, values))) == len(values) <= MOST_VALUES:
            raise ValueError(f"env.{name}: expected 1 to {MOST_VALUES} distinct values, got {values}")
    num_ends, max_ends = len(input_sizes) + len(output_sizes), MOST_VALUES - max(1, len(config.activations))
    if num_ends > max_ends:
        raise ValueError(f"task: expected at most {max_ends} inputs and outputs together, got {num_ends}")
    max_hidden = MOST_VALUES - num_ends
    if not 0 <= config.max_hidden_nodes <= max_hidden:
        expected = f"expected 0 to {max_hidden} with {num_ends} inputs and outputs of the task"
        raise ValueError(f"env.max_hidden_nodes: {expected}, got {config.max_hidden_nodes}")
    min_edges = max(len(input_sizes), len(output_sizes))
    if config.max_edges < min_edges:
        raise ValueError(
            f"env.max_edges: expected at least {min_edges}, to connect inputs and outputs, got {config.max_edges}"
        )


def _check_widths(name: str, sizes: object) -> None:
    widths = list(sizes) if isinstance(sizes, Sequence) else []
    if not widths or not all(isinstance(width, Integral) and int(width) >= 1 for width in widths):
        hint = "; env.name=operation_graph takes shapes" if any(isinstance(width, Shape) for width in widths) else ""
        raise ValueError(f"task: expected {name} with one width >= 1 or more, got {sizes!r}{hint}")
