"""The MDP that builds networks: from inputs and outputs to a graph with every node on a path between them.

AddNode attaches a hidden node to a node with an input path and chooses its operation; the attributes of this operation
are set next, in order; then edges are added. Recurrent edges are a separate edge type; all other edges are acyclic.
`NetworkEnv` has the rules. Its subclasses offer operations: neurons (here), or others of the vocabulary within limits
(`operation_graph`).
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.config import EnvConfig
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.elements import Edge, Node
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.states import ABSENT, MOST_VALUES, UNSET, Attribute, GraphStates, GraphVocabulary
from gflownet.operations.tensor_shape import Shape
from gflownet.operations.vocabulary import activation, aggregation

FORWARD, RECURRENT = 0, 1  # positions of the edge types
_ORDER = (NodeType.INPUT, NodeType.OUTPUT, NodeType.HIDDEN)  # of the nodes of a state


class NetworkEnv(Environment):
    """Networks with given inputs and outputs; every state can be finished within its budget of edges."""

    terminal_type: Any = ComputationGraph
    runs_on_device = True
    key = "env"  # of its options, for errors

    def __init__(
        self,
        ends: Sequence[str],
        num_inputs: int,
        operations: Sequence[str],
        attributes: Sequence[Attribute],
        *,
        max_hidden_nodes: int,
        max_edges: int,
        allow_recurrent: bool = False,
        shares: bool = False,
        ranked: bool = False,
        edge_attributes: Sequence[Attribute] = (),
        caps: Mapping[str, int] | None = None,
    ) -> None:
        self.num_inputs, self.num_ends = num_inputs, len(ends)  # inputs are first, then outputs, then hidden nodes
        self.num_outputs = self.num_ends - num_inputs
        self.max_hidden_nodes, self.max_edges, self.allow_recurrent = max_hidden_nodes, max_edges, allow_recurrent
        self._check_limits(len(operations))
        super().__init__(
            GraphVocabulary(
                node_types=(*ends, *operations),
                max_nodes=self.num_ends + max_hidden_nodes,
                directed=True,
                edge_types=("forward", *["recurrent"] * allow_recurrent, *["shares"] * shares),
                node_attributes=tuple(attributes),
                edge_attributes=tuple(edge_attributes),
                ranked=ranked,
                limits=tuple(caps or {}),
                caps=tuple((caps or {}).values()),
            )
        )
        position = torch.arange(self.vocabulary.max_nodes)
        self.is_output = (position >= num_inputs) & (position < self.num_ends)
        self._is_hidden_type = torch.arange(len(self.vocabulary.node_types)) >= self.num_ends
        self._last_facts: tuple[weakref.ref[GraphStates], Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the facts of a batch, which are computed again."""
        return {**vars(self), "_last_facts": None}

    @abstractmethod
    def new_facts(self, states: GraphStates, last: Any) -> StateFacts:
        """Return the facts of a batch, given those of the batch before or None."""

    @abstractmethod
    def node_fields(self, position: int, operation: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a node of a network."""

    @abstractmethod
    def choices_of(self, node: Node) -> tuple[int, Mapping[str, Any]]:
        """Return operation and values of a hidden node. Raises ValueError for an operation that is not offered."""

    def fit_rules(self, facts: Any) -> Rules:
        """Return further rules of forward actions: by default every operation accepts every source."""
        return {}

    def decisive_edges(self, facts: Any) -> Tensor:
        """Return the edges [B, N, N] of which a hidden node keeps one."""
        return facts.forward

    def accepting(self, facts: Any) -> Tensor:
        """Return the nodes that may get an edge, [B, 1] or [B, N]: none while a node has attributes to be set."""
        return ~facts.incomplete.any(1, keepdim=True)

    def node_marks(self, states: GraphStates, index: int, node: int) -> Mapping[str, Any]:
        """Return values of a node of state `index` besides those of its attributes."""
        return {}

    def edge_marks(self, states: GraphStates, index: int, source: int, target: int) -> Sequence[Mapping[str, Any]]:
        """Return the attributes of the edges of a network that stand for one edge of state `index`."""
        return ({},)

    def edge_values(self, target: Node, edges: Sequence[Edge]) -> Sequence[int]:
        """Return the values of the edge that stands for the edges from one node to `target`."""
        return ()

    def check_candidate(self, candidate: ComputationGraph) -> None:
        """Raise ValueError for shapes or sizes that no actions build."""

    def initial_states(self, num: int) -> GraphStates:
        return GraphStates.with_nodes(num, self.vocabulary, self.num_ends)

    def facts(self, states: GraphStates) -> Any:
        """Return what the rules use of a batch of states, computed once per batch."""
        last = None
        if self._last_facts is not None:
            last_states, last = self._last_facts
            # Tensors of inference mode cannot be used in training.
            if last_states() is states and last.is_hidden.is_inference() == torch.is_inference_mode_enabled():
                return last
        facts = self.new_facts(states, last)
        self._last_facts = weakref.ref(states), facts
        return facts

    def forward_rules(self, states: GraphStates) -> Rules:
        facts = self.facts(states)
        complete = Rule.of_graph("a hidden node still has attributes to be set", ~facts.incomplete.any(1))
        budget = f"at most {self.max_edges} edges, and every node must still be joined to an output"
        # Edges with one more from each other node that needs one.
        num_edges = (facts.num_edges + facts.sink.sum(1))[:, None] - facts.sink.long()  # [B, N]
        rules = {
            Kind.Stop: [complete, Rule.of_graph("every node must lead to an output", ~facts.sink.any(1))],
            Kind.AddNode: [
                complete,
                Rule("only hidden nodes are added", self._is_hidden_type),
                Rule("the source is not there, or is an output", facts.is_source[:, :, None]),
                Rule.of_graph(
                    f"the graph already has {self.max_hidden_nodes} hidden nodes",
                    states.num_nodes < self.vocabulary.max_nodes,
                ),
                Rule(budget, (num_edges < self.max_edges - 1)[:, :, None]),
            ],
            Kind.AddEdge: [
                Rule(complete.text, self.accepting(facts)[:, None, :, None]),
                Rule("the edge is already there", ~facts.edge[..., None]),
                *self._edge_rules(states, facts, num_edges, budget),
            ],
            Kind.SetNodeAttr: [Rule("a hidden node's own attributes are set, once and in order", facts.next_values)],
        }
        if self.num_outputs > 1:  # a single output is fed once no node needs an edge
            rules[Kind.Stop].append(Rule.of_graph("every output must be fed", ~facts.uncovered.any(1)))
            affordable = facts.num_edges + facts.uncovered.sum(1) < self.max_edges
            rules[Kind.AddNode].append(Rule.of_graph(budget, affordable))
        fits = self.fit_rules(facts)
        return {kind: [*rules.get(kind, ()), *fits.get(kind, ())] for kind in self.forward_types}

    def backward_rules(self, states: GraphStates) -> Rules:
        facts = self.facts(states)
        edge = facts.edge
        num_in = edge.sum(1)
        leaf = facts.is_hidden & (num_in == 1) & ~edge.any(2)
        num_incomplete = facts.incomplete.sum(1, keepdim=True)
        others_complete = Rule(
            "another hidden node still has attributes to be set", (num_incomplete == facts.incomplete)[:, :, None]
        )
        # From 1 on; 0: none.
        attributes = torch.arange(1, len(self.vocabulary.node_attributes) + 1)
        is_set = states.node_attr != UNSET
        last_set = (is_set * attributes).amax(-1, keepdim=True) if len(attributes) else is_set.sum(-1, keepdim=True)
        decisive = self.decisive_edges(facts)
        has_others = (decisive.sum(1) >= 2) | ~facts.is_hidden
        rules = {
            Kind.RemoveNode: [
                Rule("only a hidden node with one in-edge and no other can be removed", leaf[:, :, None]),
                others_complete,
                Rule("the node still has attributes", last_set == 0),
            ],
            Kind.RemoveEdge: [
                Rule.of_pair("a hidden node still has attributes to be set", (num_incomplete == 0)[..., None]),
                Rule.of_pair("the edge is not there", edge),
                Rule.of_pair("the inputs of the target would change", ~decisive | has_others[:, None, :]),
            ],
            Kind.RemoveNodeAttr: [
                Rule("only a hidden node with one in-edge and no other can change", leaf[:, :, None]),
                others_complete,
                Rule("the attribute set last is unset first", attributes == last_set),
            ],
        }
        if self.vocabulary.ranked:
            last = (states.edge_order == (num_in - 1)[:, None, :]) | ~self.ordered_nodes(states)[:, None, :]
            rules[Kind.RemoveEdge].append(Rule("an ordered target gives up its last input first", last[..., None]))
        return rules

    def terminal(self, states: GraphStates, index: int) -> ComputationGraph:
        """Return the network that state `index` describes; nodes keep their positions as ids."""
        state = states[index]
        num_nodes, types, values = int(state.num_nodes), state.node_type.tolist(), state.node_attr.tolist()
        edges, orders = state.edge_type.tolist(), state.edge_order.tolist()
        ordered = self.ordered_nodes(states[index : index + 1])[0].tolist()
        graph = ComputationGraph()
        for node in range(num_nodes):
            named = zip(self.vocabulary.node_attributes, values[node], strict=True)
            chosen = {attribute.name: attribute.values[value] for attribute, value in named if value != UNSET}
            chosen |= self.node_marks(states, index, node)
            graph.add_node(node, **self.node_fields(node, types[node] - self.num_ends, chosen))
        for target in range(num_nodes):
            sources = [s for s in range(num_nodes) if edges[s][target] != ABSENT]
            for source in sorted(sources, key=lambda s: (orders[s][target], s)):
                marks: dict[str, Any] = {"order": orders[source][target]} if ordered[target] else {}
                if edges[source][target] == RECURRENT:
                    marks["is_recurrent"] = True
                for own in self.edge_marks(states, index, source, target):
                    graph.add_edge(source, target, attributes={**marks, **own})
        return graph

    def ordered(self, candidate: ComputationGraph) -> list[Node]:
        """Return the nodes in the order of a state: inputs, outputs, hidden ones."""
        return sorted(candidate.nodes.values(), key=lambda node: (_ORDER.index(node.node_type), node.node_id))

    def describe(self, candidate: ComputationGraph) -> GraphDescription:
        nodes = self.ordered(candidate)
        position = {node.node_id: index for index, node in enumerate(nodes)}
        num_inputs, num_outputs = (sum(node.node_type is kind for node in nodes) for kind in _ORDER[:2])
        if (num_inputs, num_outputs) != (self.num_inputs, self.num_outputs):
            expected = f"expected {self.num_inputs} inputs and {self.num_outputs} outputs"
            raise ValueError(f"{expected}, got {num_inputs} and {num_outputs}")
        joined: dict[tuple[int, int], list[Edge]] = {}
        for edge in candidate.edges.values():
            joined.setdefault((edge.source, edge.target), []).append(edge)
        if len(joined) > self.max_edges:
            raise ValueError(f"expected at most {self.max_edges} edges, got {len(joined)}")
        edges = {}
        for edge, *others in joined.values():
            if edge.source not in position or edge.target not in position:
                raise ValueError(
                    f"edge {edge.edge_id}: expected nodes that are there, got {edge.source}, {edge.target}"
                )
            kind = "recurrent" if edge.is_recurrent else "forward"
            edge_type = position_of(self.vocabulary.edge_types, kind, "edge type")
            order = edge.rank if self.vocabulary.ranked else 0
            values = self.edge_values(candidate.nodes[edge.target], [edge, *others])
            edges[position[edge.source], position[edge.target]] = DescribedEdge(edge_type, values, order=order)
        fed = {target for (_, target), edge in edges.items() if edge.edge_type == FORWARD}
        for node in nodes[self.num_ends :]:
            if position[node.node_id] not in fed:
                raise ValueError(f"node {node.node_id}: expected an in-edge that is not recurrent, got none")
        if candidate.detect_cycles():
            raise ValueError("expected no cycle but through edges that are marked recurrent")
        self.check_candidate(candidate)
        types, attributes = [*range(self.num_ends)], self.vocabulary.node_attributes
        values = [[UNSET] * len(attributes)] * self.num_ends
        for node in nodes[self.num_ends :]:
            operation, chosen = self.choices_of(node)
            types.append(self.num_ends + operation)
            values.append(
                [position_of(a.values, chosen[a.name], a.name) if a.name in chosen else UNSET for a in attributes]
            )
        return GraphDescription(types, values, edges)

    def _edge_rules(self, states: GraphStates, facts: Any, num_edges: Tensor, budget: str) -> list[Rule]:
        """Return the rules of adding an edge that differ by its type."""
        hidden, is_output, num_after = facts.is_hidden, self.is_output, facts.num_edges[:, None, None]
        ends = facts.is_source[:, :, None] & (hidden | is_output)[:, None, :]
        conditions = {
            "an edge leads from a node that is there into a hidden or output node": ends,
            "the edge would close a cycle that is not marked recurrent": ~states.reach.transpose(1, 2),
            budget: (num_edges < self.max_edges)[:, :, None],
        }
        if self.num_outputs > 1:
            num_after = num_after + facts.uncovered.sum(1)[:, None, None]
            conditions[budget] = conditions[budget] & (num_after - facts.uncovered[:, None, :].long() < self.max_edges)
        if not self.allow_recurrent:
            return [Rule(text, holds[..., None]) for text, holds in conditions.items()]
        # A recurrent edge into an output comes from an output only, so that a sink can still be connected.
        targets = hidden[:, None, :] | (is_output[:, None] & is_output)
        num_joined = (facts.num_edges + facts.sink.sum(1))[:, None, None]
        of_recurrent = (
            (hidden | is_output)[:, :, None] & targets,
            torch.ones_like(ends),
            torch.maximum(num_joined, num_after) < self.max_edges,
        )
        pairs = zip(conditions.items(), of_recurrent, strict=True)
        return [
            Rule(text, torch.stack(torch.broadcast_tensors(forward, recurrent), -1))
            for (text, forward), recurrent in pairs
        ]

    def _check_limits(self, num_operations: int) -> None:
        """Raise ValueError for numbers of nodes or edges that states cannot have."""
        if not self.num_inputs or not self.num_outputs:
            raise ValueError("expected at least one input and one output")
        max_ends, max_hidden = MOST_VALUES - max(1, num_operations), MOST_VALUES - self.num_ends
        if self.num_ends > max_ends:
            raise ValueError(f"task: expected at most {max_ends} inputs and outputs together, got {self.num_ends}")
        if not 0 <= self.max_hidden_nodes <= max_hidden:
            expected = f"expected 0 to {max_hidden} with {self.num_ends} inputs and outputs of the task"
            raise ValueError(f"{self.key}.max_hidden_nodes: {expected}, got {self.max_hidden_nodes}")
        min_edges = max(self.num_inputs, self.num_outputs)
        if self.max_edges < min_edges:
            expected = f"expected at least {min_edges}, to connect inputs and outputs"
            raise ValueError(f"{self.key}.max_edges: {expected}, got {self.max_edges}")


class StateFacts:
    """What several rules use of a batch of states, some of it computed when it is read."""

    incomplete: Tensor  # [B, N] bool, hidden nodes with attributes left to be set
    next_values: Tensor  # [B, N, C] bool, values of the attribute that is set next

    def __init__(self, env: NetworkEnv, states: GraphStates) -> None:
        self.is_hidden = states.node_type >= env.num_ends  # [B, N]
        self.is_source = states.exists & ~env.is_output
        self.edge = states.has_edge
        self.forward = states.edge_type == FORWARD if env.allow_recurrent else states.has_edge
        self._is_output = env.is_output

    @cached_property
    def sink(self) -> Tensor:
        """Return which nodes need an edge, [B, N] bool."""
        return self.is_source & ~self.forward.any(2)

    @cached_property
    def uncovered(self) -> Tensor:
        """Return which outputs need an edge, [B, N] bool."""
        return self._is_output & ~self.forward.any(1)

    @cached_property
    def num_edges(self) -> Tensor:
        """Return the number of edges, [B]."""
        return self.edge.flatten(1).sum(1)


class ComputationGraphEnv(NetworkEnv):
    """Networks of neurons, each with an activation, an aggregation of its inputs and a width."""

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
        self.output_aggregation = output_aggregation
        offered = {"activations": activations, "aggregations": aggregations, "output_sizes": hidden_sizes}
        for name, values in offered.items():
            if not 1 <= len(set(map(str, values))) == len(values) <= MOST_VALUES:
                raise ValueError(f"env.{name}: expected 1 to {MOST_VALUES} distinct values, got {list(values)}")
        choices = (Attribute("aggregation", tuple(aggregations)), Attribute("output_size", tuple(hidden_sizes)))
        self._fixed = {a.name: a.values[0] for a in choices if len(a.values) == 1}
        orders = {name: aggregation(name).is_order_sensitive for name in (*aggregations, output_aggregation)}
        ends = [f"{kind}_{i}" for kind in ("input", "output") for i in range(len(getattr(self, f"{kind}_sizes")))]
        super().__init__(
            ends,
            len(self.input_sizes),
            activations,
            [a for a in choices if len(a.values) > 1],
            max_hidden_nodes=max_hidden_nodes,
            max_edges=max_edges,
            allow_recurrent=allow_recurrent,
            ranked=any(orders.values()),
        )
        # The last slot stands for "unset", which is not ordered.
        self._is_ordered = torch.tensor([*(orders[name] for name in aggregations), False])
        self._has_ordered_outputs = orders[output_aggregation]

    def new_facts(self, states: GraphStates, last: Any) -> StateFacts:
        facts, num_set = StateFacts(self, states), (states.node_attr != UNSET).sum(-1)
        facts.incomplete = facts.is_hidden & (num_set < len(self.vocabulary.node_attributes))
        facts.next_values = self._editor.node_columns[:, 0] == num_set.where(facts.is_hidden, UNSET)[:, :, None]
        return facts

    def ordered_nodes(self, states: GraphStates) -> Tensor:
        """Return the mask of nodes with ordered inputs (such as concat), [B, N] bool."""
        value = 0 if "aggregation" in self._fixed else states.node_attr[:, :, 0].long()
        is_ordered = self._is_ordered[value] & (states.node_type >= self.num_ends)
        return is_ordered | self.is_output if self._has_ordered_outputs else is_ordered

    def node_fields(self, position: int, operation: int, values: Mapping[str, Any]) -> dict[str, Any]:
        if position < self.num_inputs:
            return {"node_type": NodeType.INPUT, "output_size": self.input_sizes[position]}
        if position < self.num_ends:
            attributes = {"aggregation": self.output_aggregation}
            size = self.output_sizes[position - self.num_inputs]
            return {"node_type": NodeType.OUTPUT, "output_size": size, "attributes": attributes}
        chosen = {**self._fixed, **values}
        return {
            "node_type": NodeType.HIDDEN,
            "output_size": chosen["output_size"],
            "activation_function": self.vocabulary.node_types[self.num_ends + operation],
            "attributes": {"aggregation": chosen["aggregation"]},
        }

    def choices_of(self, node: Node) -> tuple[int, Mapping[str, Any]]:
        names = self.vocabulary.node_types[self.num_ends :]
        operation = position_of(names, node.activation_function, "activation function")
        return operation, {"aggregation": node.aggregation, "output_size": node.output_size}


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
        for name, sizes in {"input_sizes": input_sizes, "output_sizes": output_sizes}.items():
            widths = list(sizes) if isinstance(sizes, Sequence) else []
            if not widths or not all(isinstance(width, Integral) and int(width) >= 1 for width in widths):
                if shapes := [width for width in widths if isinstance(width, Shape)]:
                    raise ValueError(f"env.name: expected operation_graph for {shapes[0]}, got computation_graph")
                raise ValueError(f"task: expected {name} with one width >= 1 or more, got {sizes!r}")
        for name in config.activations:
            activation(name)  # an error before the search starts
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
