"""The MDP that builds graphs of tensor operations within hard limits of parameters and multiply-adds.

AddNode attaches a node to a source and chooses its operation; the settings of this operation are set next, in order;
then edges are added. The shapes and costs of all nodes follow from tables. No edge changes a shape: a hidden node
accepts a further input only if it can be aligned to the shape of the present inputs. The output accepts every input.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gflownet.envs.config import EnvConfig
from gflownet.envs.operation_choices import ACTIVATION, MERGE, OperationChoices
from gflownet.envs.operation_tables import HEAD, Budget, Completions, ShapeInference, build_tables
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.elements import Node
from gflownet.graphs.operation import read_operation
from gflownet.graphs.operation_costs import graph_cost
from gflownet.graphs.operation_shapes import infer_shapes, input_shape
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import SIZES, Environment, Rule, Rules
from gflownet.mdp.states import MOST_VALUES, UNSET, GraphStates, GraphVocabulary
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.operations.values import thawed

ALIGN = ("pad", "auto")  # of hidden nodes: zeros in place of missing channels, or a learned projection


class OperationGraphEnv(Environment):
    """Graphs of operations from given inputs to one vector; every state can be finished within all limits."""

    terminal_type = ComputationGraph
    runs_on_device = True

    def __init__(
        self,
        inputs: Sequence[Shape],
        num_outputs: int,
        *,
        operations: Sequence[str],
        choices: Mapping[str, Mapping[str, Any]] | None = None,
        activations: Sequence[str] = ("relu",),
        align: str = "pad",
        max_hidden_nodes: int,
        max_edges: int,
        max_parameters: int | None = None,
        max_multiply_adds: int | None = None,
    ) -> None:
        self.input_shapes, self.num_outputs = tuple(inputs), num_outputs
        self.max_hidden_nodes, self.max_edges = max_hidden_nodes, max_edges
        self.align = align
        self.budget = Budget(max_parameters or 0, max_multiply_adds or 0)
        self._check_limits()
        self.choices = OperationChoices(operations, choices=choices or {}, activations=activations)
        self.tables = build_tables(
            self.choices, self.input_shapes, num_classes=num_outputs, max_depth=max_hidden_nodes, budget=self.budget
        )
        self._check_budget()
        ends = (*(f"input_{i}" for i in range(len(inputs))), "output")
        super().__init__(
            GraphVocabulary(
                node_types=(*ends, *operations),
                max_nodes=len(ends) + max_hidden_nodes,
                directed=True,
                edge_types=("forward",),
                node_attributes=self.choices.attributes,
                limits=tuple(name for name, limit in zip(SIZES, self.budget.limits, strict=True) if limit),
                caps=tuple(limit for limit in self.budget.limits if limit),
            )
        )
        self._last_facts: tuple[weakref.ref[GraphStates], StateFacts] | None = None
        self.inference = ShapeInference.of(self.tables, max_nodes=self.vocabulary.max_nodes)
        self.is_output = self.inference.is_output
        self.is_hidden_type = torch.arange(len(self.vocabulary.node_types)) >= self.num_ends
        # [S, types, K] of new nodes behind a shape
        self._of_new = self.tables.completions[self.tables.roots].mapped(
            lambda x: torch.nn.functional.pad(x.transpose(0, 1), (0, 0, self.num_ends, 0)).contiguous()
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes without the facts of a batch, which are computed again."""
        return {**vars(self), "_last_facts": None}

    @property
    def num_inputs(self) -> int:
        """Return the number of input nodes: positions 0 .. num_inputs - 1. The output is next."""
        return len(self.input_shapes)

    @property
    def num_ends(self) -> int:
        """Return the number of input and output nodes; hidden nodes start at this position."""
        return self.num_inputs + 1

    def initial_states(self, num: int) -> GraphStates:
        return GraphStates.with_nodes(num, self.vocabulary, self.num_ends)

    def sizes(self, states: GraphStates) -> Tensor:
        """Return parameters and multiply-adds where they have a cap, [B, K], the output layer at the widest node."""
        facts = self.facts(states)
        return (facts.cost + facts.head)[:, self.limited]

    @property
    def smallest_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the network of an output layer alone."""
        return tuple(self.tables.head[self.tables.inputs].amax(0)[self.limited].tolist())

    def remarks(self) -> Sequence[str]:
        """Return a line that names the operations that no network of this space has."""
        unfit = self.tables.unfit_operations(self.choices).items()
        names = ", ".join(f"{', '.join(each)} ({reason})" for reason, each in unfit)
        start = f"env.operation_graph.operations: no reachable shape fits {names}; the task's input is "
        end = ": change its input_sizes, or the layout of its Splits, or the operations"
        return (start + ", ".join(map(str, self.input_shapes)) + end,) if unfit else ()

    def facts(self, states: GraphStates) -> StateFacts:
        """Return shapes, costs and other properties of a batch of states, computed once per batch."""
        guess = None
        if self._last_facts is not None:
            last_states, last = self._last_facts
            # Tensors of inference mode cannot be used in training.
            if last_states() is states and last.output.is_inference() == torch.is_inference_mode_enabled():
                return last
            # The batch before is often the same but for one action each.
            if last.output.shape == states.node_type.shape and last.output.device == states.node_type.device:
                guess = last.output
        facts = StateFacts(self, states, guess)
        self._last_facts = weakref.ref(states), facts
        return facts

    def forward_rules(self, states: GraphStates) -> Rules:
        facts, texts = self.facts(states), self._texts
        complete = Rule("a hidden node still has settings to be set", _graph(~facts.incomplete.any(1)))
        # Edges with one more from each node, if all sinks are joined to the output.
        num_edges = (facts.num_edges + facts.sink.sum(1))[:, None] - facts.sink.long()  # [B, N]
        return {
            Kind.Stop: [complete, Rule("every node must lead to the output", _graph(~facts.sink.any(1)))],
            Kind.AddNode: [
                complete,
                Rule("only hidden nodes are added", self.is_hidden_type),
                Rule("the source is not there, or is the output", facts.is_source[:, :, None]),
                Rule(
                    f"the graph already has {self.max_hidden_nodes} hidden nodes",
                    _graph(states.num_nodes < self.vocabulary.max_nodes),
                ),
                Rule(texts.budget, (num_edges < self.max_edges - 1)[:, :, None]),
                Rule(texts.new_node, self._affordable_operations(facts)),
            ],
            Kind.AddEdge: [Rule(complete.text, complete.holds[..., None]), *self._edge_rules(states, facts, num_edges)],
            Kind.SetNodeAttr: [
                Rule("only hidden nodes have settings to set", facts.is_hidden[:, :, None]),
                Rule("the operation's own settings are set, once and in order", facts.open[:, :, 1:]),
                Rule(texts.value, self._affordable_values(facts)),
            ],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        facts, edge = self.facts(states), states.has_edge
        leaf = (facts.is_hidden & (edge.sum(1) == 1) & ~edge.any(2))[:, :, None]
        num_incomplete = facts.incomplete.sum(1, keepdim=True)
        others_complete = (num_incomplete == facts.incomplete)[:, :, None]
        # From 1 on; 0: none.
        attributes = torch.arange(1, len(self.vocabulary.node_attributes) + 1)
        is_set = states.node_attr != UNSET
        last_set = (is_set * attributes).amax(-1, keepdim=True) if len(attributes) else is_set.sum(-1, keepdim=True)
        decisive = edge & (facts.output[:, :, None] == facts.input[:, None, :])
        has_others = (decisive.sum(1) >= 2) | ~facts.is_hidden
        return {
            Kind.RemoveNode: [
                Rule("only a hidden node with one in-edge and no other can be removed", leaf),
                Rule("another hidden node still has settings to be set", others_complete),
                Rule("the node still has settings", last_set == 0),
            ],
            Kind.RemoveEdge: [
                Rule("a hidden node still has settings to be set", _graph(num_incomplete[:, 0] == 0)[..., None]),
                Rule("the edge is not there", edge[..., None]),
                Rule("the shape of the target's inputs would change", (~decisive | has_others[:, None, :])[..., None]),
            ],
            Kind.RemoveNodeAttr: [
                Rule("only a hidden node with one in-edge and no other can change", leaf),
                Rule("another hidden node still has settings to be set", others_complete),
                Rule("the setting set last is unset first", attributes == last_set),
            ],
        }

    def terminal(self, states: GraphStates, index: int) -> ComputationGraph:
        """Return the network that state `index` describes; nodes keep their positions as ids."""
        state = states[index]
        num_nodes, types, values = int(state.num_nodes), state.node_type.tolist(), state.node_attr.tolist()
        graph = ComputationGraph()
        for node, shape in enumerate(self.input_shapes):
            graph.add_node(node, NodeType.INPUT, output_size=None, attributes=_declared(shape))
        graph.add_node(self.num_inputs, NodeType.OUTPUT, output_size=None, attributes=self._output_attributes)
        for node in range(self.num_ends, num_nodes):
            self._add_hidden(graph, node, types[node] - self.num_ends, values[node])
        for target, source in state.has_edge.T.nonzero().tolist():
            graph.add_edge(source, target)
        return graph

    def describe(self, candidate: ComputationGraph) -> GraphDescription:
        ranks = {NodeType.INPUT: 0, NodeType.OUTPUT: 1, NodeType.HIDDEN: 2}
        nodes = sorted(candidate.nodes.values(), key=lambda node: (ranks[node.node_type], node.node_id))
        kinds = [node.node_type for node in nodes[: self.num_ends]]
        if kinds != [NodeType.INPUT] * self.num_inputs + [NodeType.OUTPUT] or candidate.output_node_ids[1:]:
            raise ValueError(f"expected {self.num_inputs} inputs and one output, got {', '.join(kinds) or 'no nodes'}")
        self._check_fit(candidate)
        position = {node.node_id: index for index, node in enumerate(nodes)}
        described = [self._described_node(index, node) for index, node in enumerate(nodes)]
        edges = {(position[edge.source], position[edge.target]): DescribedEdge() for edge in candidate.edges.values()}
        return GraphDescription([kind for kind, _ in described], [values for _, values in described], edges)

    def _affordable_operations(self, facts: StateFacts) -> Tensor:
        """Return which types fit a new node behind each node, [B, N, types] bool."""
        return self._within(facts, self._of_new[facts.output])

    def _affordable_values(self, facts: StateFacts) -> Tensor:
        """Return which values fit the incomplete node of each graph, [B, 1, C] bool."""
        node = facts.incomplete.view(torch.uint8).argmax(1, keepdim=True)
        child = self.tables.child[facts.prefix.gather(1, node)]  # [B, 1, C]
        return self._within(facts, self.tables.completions[child, facts.input.gather(1, node)[:, :, None]])

    def _within(self, facts: StateFacts, completions: Completions) -> Tensor:
        """Return whether one of the completions [B, N, X, K] of a new node is within the limits, [B, N, X] bool."""
        left, head = facts.caps - facts.cost, facts.head
        within = [
            torch.maximum(of_head, head[:, dim, None, None, None]).add_(cost) <= left[:, dim, None, None, None]
            for dim, cost, of_head in zip(completions.dims, completions.cost, completions.head, strict=True)
        ]
        return functools.reduce(torch.logical_and, within).any(-1)

    def _edge_rules(self, states: GraphStates, facts: StateFacts, num_edges: Tensor) -> list[Rule]:
        ends = facts.is_source[:, :, None] & (facts.is_hidden | self.is_output)[:, None, :]
        fits = self.inference.fits(facts.output, facts.input)
        rules = [
            Rule("an edge leads from a node that is there into a hidden node or the output", ends),
            Rule("the edge is already there", ~states.has_edge),
            Rule("the edge would close a cycle", ~states.reach.transpose(1, 2)),
            Rule(self._texts.budget, (num_edges < self.max_edges)[:, :, None]),
            Rule("the source's shape does not fit into the shape of the target's inputs", fits),
        ]
        if self.align == "auto":
            adapter = self.tables.adapter[facts.output[:, :, None], facts.input[:, None, :]]
            total = adapter + (facts.cost + facts.head)[:, None, None]
            affordable = (total <= facts.caps[:, None, None]).all(-1) | self.is_output  # the output pads
            rules.append(Rule(self._texts.projection, affordable))
        return [Rule(rule.text, rule.holds[..., None]) for rule in rules]

    @cached_property
    def _texts(self) -> _Texts:
        """Return the rules of limits."""
        limits = dict(zip(("parameters", "multiply-adds"), self.budget.limits, strict=True))
        within = " and ".join(f"{limit:,} {name}" for name, limit in limits.items() if limit)
        misfit = "{} does not fit {}" + (f", or not within {within}" if within else "")
        return _Texts(
            budget=f"at most {self.max_edges} edges, and every node must still be joined to the output",
            new_node=misfit.format("the operation", "the source"),
            value=misfit.format("the operation with this value", "the input"),
            projection=misfit.format("the edge's projection", "the rest"),
        )

    def _add_hidden(self, graph: ComputationGraph, node: int, operation: int, values: Sequence[int]) -> None:
        offered = self.choices.operations[operation]
        pairs = zip(self.choices.attributes, values, strict=True)
        chosen = {attribute.name: attribute.values[value] for attribute, value in pairs if value != UNSET}
        attributes = {
            "operation": {"name": offered.name, **offered.settings(chosen)},
            "aggregation": offered.value(MERGE, chosen),
            "align": self.align,
        }
        function = offered.value(ACTIVATION, chosen)
        graph.add_node(node, NodeType.HIDDEN, output_size=None, activation_function=function, attributes=attributes)

    def _described_node(self, index: int, node: Node) -> tuple[int, list[int]]:
        values = [UNSET] * len(self.choices.attributes)
        if index < self.num_inputs and input_shape(node) != self.input_shapes[index]:
            raise ValueError(
                f"node {node.node_id}: expected {self.input_shapes[index]} as in the task, got {input_shape(node)}"
            )
        if index < self.num_ends:
            return index, values
        applied = read_operation(thawed(node.attributes.get("operation")))
        names = [offered.name for offered in self.choices.operations]
        operation = position_of(names, applied.name, "operation")
        settings = {**applied.settings, ACTIVATION: node.activation_function, MERGE: node.aggregation}
        for position in self.choices.own_attributes(operation):
            attribute = self.choices.attributes[position]
            offered = self.choices.operations[operation].choices[attribute.name]
            position_of(offered, settings.get(attribute.name), f"{names[operation]}.{attribute.name}")
            values[position] = attribute.values.index(settings[attribute.name])
        return self.num_ends + operation, values

    def _check_fit(self, candidate: ComputationGraph) -> None:
        """Raise ValueError for shapes that no actions build, or for a network above a limit."""
        known = infer_shapes(candidate)
        for node_id, shapes in known.items():
            for plan in shapes.inputs.values() if shapes.node.node_type is NodeType.HIDDEN else ():
                if plan.shape not in [adapter.source for adapter in plan.adapters]:
                    raise ValueError(f"node {node_id}: expected an input of {plan.shape}, to which others are aligned")
        if len(candidate.edges) > self.max_edges:
            raise ValueError(f"expected at most {self.max_edges} edges, got {len(candidate.edges)}")
        cost = graph_cost(candidate)
        if not self.budget.allows((cost.num_parameters, cost.multiply_adds)):
            raise ValueError(f"expected a network within {self.budget}, got {cost}")

    def _check_limits(self) -> None:
        if not self.input_shapes or any(shape.layout is Layout.TOKENS for shape in self.input_shapes):
            raise ValueError(f"task: expected inputs without tokens, got {', '.join(map(str, self.input_shapes))}")
        if self.num_outputs < 1:
            raise ValueError(f"task: expected at least one output, got {self.num_outputs}")
        most_hidden = MOST_VALUES - self.num_ends
        if not 0 <= self.max_hidden_nodes <= most_hidden:
            raise ValueError(
                f"env.operation_graph.max_hidden_nodes: expected 0 to {most_hidden}, got {self.max_hidden_nodes}"
            )
        if self.max_edges < self.num_inputs:
            raise ValueError(
                f"env.operation_graph.max_edges: expected at least {self.num_inputs}, to join the inputs to the "
                f"output, got {self.max_edges}"
            )
        if self.align not in ALIGN:
            raise ValueError(f"env.operation_graph.align: expected one of {', '.join(ALIGN)}, got {self.align}")

    def _check_budget(self) -> None:
        """Raise ValueError for limits that no network keeps."""
        head = self.tables.head[self.tables.inputs].amax(0).tolist()
        names = ("max_parameters", "max_multiply_adds")
        for name, limit, cost in zip(names, self.budget.limits, head, strict=True):
            if limit and cost > limit:
                raise ValueError(
                    f"env.operation_graph.{name}: expected at least {cost:,}, for the output layer, got {limit:,}"
                )

    @cached_property
    def _output_attributes(self) -> dict[str, Any]:
        operation = {"name": HEAD, "features": self.num_outputs}
        return {"operation": operation, "aggregation": "sum", "align": "pad"}


class _Texts(NamedTuple):
    """Rules that name a limit."""

    budget: str
    new_node: str
    value: str
    projection: str


class StateFacts:
    """Shapes, costs and other properties of a batch of states, each computed when it is read.

    The cost of a state counts the output layer at the widest node, so that no action ever lowers it.
    """

    caps: Tensor  # [B, 2] of parameters and multiply-adds
    prefix: Tensor  # [B, N] operation and values set so far
    input: Tensor  # [B, N] shape of the merged inputs of hidden nodes
    output: Tensor  # [B, N] shape of inputs and complete hidden nodes
    open: Tensor  # [B, N, 1 + C] bool, whether settings are left to be set, and to which values the next one

    def __init__(self, env: OperationGraphEnv, states: GraphStates, guess: Tensor | None = None) -> None:
        self._env, self._edge, self.caps = env, states.has_edge, env.caps_of(states)
        self.is_hidden = states.node_type >= env.num_ends
        self.is_source = states.exists & ~env.is_output
        self.prefix = env.tables.prefixes(states.node_type, states.node_attr)
        self.input, self.output = env.inference(self._edge, self.prefix, guess)
        self.open = env.tables.open[self.prefix]
        self.incomplete = self.open[:, :, 0]

    @cached_property
    def sink(self) -> Tensor:
        """Return which nodes need an edge, [B, N] bool."""
        return self.is_source & ~self._edge.any(2)

    @cached_property
    def num_edges(self) -> Tensor:
        """Return the number of edges, [B]."""
        return self._edge.flatten(1).sum(1)

    @cached_property
    def node_cost(self) -> Tensor:
        """Return the parameters and multiply-adds of hidden nodes, [B, N, 2]."""
        tables = self._env.tables
        cost = tables.cost[self.prefix, self.input]
        if self._env.align != "auto":
            return cost
        adapters = tables.adapter[self.output[:, :, None], self.input[:, None, :]]
        return cost + (adapters * (self._edge & self.is_hidden[:, None, :])[..., None]).sum(1)

    @cached_property
    def cost(self) -> Tensor:
        """Return the cost of all hidden nodes, [B, 2]."""
        return self.node_cost.sum(1)

    @cached_property
    def head(self) -> Tensor:
        """Return the cost of the output layer at the widest node, [B, 2]."""
        return self._env.tables.head[self.output].amax(1)


class OperationGraphContext(GraphBuildingEnvContext):
    """Context of operation graphs, with shapes, costs and the remaining budget as features."""

    env: OperationGraphEnv
    num_extra_node_features = 8

    def __init__(self, env: OperationGraphEnv, *, num_cond_dim: int = 1) -> None:
        super().__init__(env, num_cond_dim=num_cond_dim)
        sizes = [(shape.channels, shape.num_elements // shape.channels) for shape in env.tables.shapes]
        # [S, 2] channels and positions on a logarithmic scale, zeros for no shape
        self._of_shape = torch.tensor([*sizes, (1, 1)], dtype=torch.float32).log2() / 8

    @classmethod
    def build_env(
        cls, config: EnvConfig, *, input_sizes: Sequence[int | Shape], output_sizes: Sequence[int]
    ) -> OperationGraphEnv:
        """Return the environment.

        Raises:
            ValueError: an invalid option under `env.operation_graph`, or invalid shapes of the task.
        """
        options = config.operation_graph
        outputs = [size for size in output_sizes if isinstance(size, int)]
        if len(outputs) != 1 or len(outputs) != len(output_sizes):
            raise ValueError(f"task: expected one output, a number of features, got {list(output_sizes)}")
        return OperationGraphEnv(
            [size if isinstance(size, Shape) else Shape.of(size) for size in input_sizes],
            outputs[0],
            operations=options.operations,
            choices=options.choices,
            activations=options.activations,
            align=options.align,
            max_hidden_nodes=options.max_hidden_nodes,
            max_edges=options.max_edges,
            max_parameters=options.max_parameters,
            max_multiply_adds=options.max_multiply_adds,
        )

    def extra_node_features(self, states: GraphStates) -> Tensor:
        """Return features of every node, [B, N, 8] float32.

        Channels and positions of its inputs and of its output, its share of each budget, and the share of each budget
        that is left for the graph.
        """
        facts = self.env.facts(states)
        share = facts.node_cost / facts.caps[:, None]
        left = 1 - (facts.cost + facts.head) / facts.caps
        shapes = (self._of_shape[facts.input], self._of_shape[facts.output])
        return torch.cat([*shapes, share, left[:, None].expand_as(share)], -1)


def _declared(shape: Shape) -> dict[str, Any]:
    sizes = list(shape.sizes)
    return {"shape": sizes} if Shape.of(sizes).layout is shape.layout else {"shape": sizes, "layout": str(shape.layout)}


def _graph(condition: Tensor) -> Tensor:
    return condition[:, None, None]
