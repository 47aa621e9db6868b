"""Networks of tensor operations within hard limits of parameters and multiply-adds.

The shapes and costs of all nodes follow from tables. No edge changes a shape: a hidden node accepts a further input
only if it can be aligned to the shape of the present inputs at this port. The output accepts every input.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.computation_graph import FORWARD, NetworkEnv, StateFacts
from gflownet.envs.config import EnvConfig, OperationGraphConfig
from gflownet.envs.operation_choices import ACTIVATION, MERGE, OperationChoices
from gflownet.envs.operation_nodes import (
    MODULE,
    SHARES,
    EdgePorts,
    PortMasks,
    ShapeNumbers,
    Sharing,
    port_sets,
    with_shared,
)
from gflownet.envs.operation_tables import (
    OUTPUTS,
    ShapeInference,
    build_tables,
    head_of,
    is_within,
    rows_at,
    with_others,
)
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.elements import Edge, Node, input_shape
from gflownet.graphs.operation import read_operation
from gflownet.graphs.typed import Apply, graph_cost, infer_shapes
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import SIZES, Rule, Rules
from gflownet.mdp.states import NO_EDGE, NO_LIMIT, UNSET, GraphStates, LabelledGraphs, Numbers
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.operations.values import thawed

ALIGN = ("pad", "auto")  # of hidden nodes: zeros in place of missing channels, or a learned projection


class OperationGraphEnv(NetworkEnv):
    """Networks of operations from inputs to a vector or an output with positions; no state is a dead end."""

    key = "env.operation_graph"

    def __init__(
        self,
        inputs: Sequence[Shape],
        output: int | Shape,
        *,
        operations: Sequence[str],
        choices: Mapping[str, Mapping[str, Any]] | None = None,
        activations: Sequence[str] = ("relu",),
        align: str = "pad",
        share: bool = False,
        max_hidden_nodes: int,
        max_edges: int,
        max_parameters: int | None = None,
        max_multiply_adds: int | None = None,
    ) -> None:
        self.input_shapes, self.align = tuple(inputs), align
        self.output_shape = output if isinstance(output, Shape) else Shape((max(1, output),), Layout.VECTOR)
        self.caps = (max_parameters or NO_LIMIT, max_multiply_adds or NO_LIMIT)
        if isinstance(output, int) and output < 1:
            raise ValueError(f"task: expected at least one output, got {output}")
        _check_ends(self.input_shapes, self.output_shape)
        if align not in ALIGN:
            raise ValueError(f"env.operation_graph.align: expected one of {', '.join(ALIGN)}, got {align}")
        self.choices = OperationChoices(operations, choices=choices or {}, activations=activations)
        self.num_ports, self.share = self.choices.num_ports, share
        super().__init__(
            (*(f"input_{i}" for i in range(len(inputs))), "output"),
            len(inputs),
            operations,
            [*self.choices.attributes, *[MODULE] * share],
            max_hidden_nodes=max_hidden_nodes,
            max_edges=max_edges,
            shares=share,
            edge_attributes=[port_sets(self.num_ports)] if self.num_ports > 1 else [],
            caps={name: cap for name, cap in zip(SIZES, self.caps, strict=True) if cap < NO_LIMIT},
        )
        self.tables = build_tables(
            self.choices,
            self.input_shapes,
            outputs=self.output_shape,
            max_depth=max_hidden_nodes,
            caps=self.caps,
            finds_weights=share,
        )
        for name, cap, cost in zip(SIZES, self.vocabulary.caps, self.smallest_sizes, strict=False):
            if cost > cap:
                expected = f"expected at least {cost:,}, for the output layer"
                raise ValueError(f"env.operation_graph.max_{name}: {expected}, got {cap:,}")
        self.inference = ShapeInference.of(self.tables, max_nodes=self.vocabulary.max_nodes)
        self._set_places()
        # [I, types, K, 2 D] completions of new nodes behind a shape
        of_new = self.tables.completions[: len(operations)].transpose(0, 1)
        self._of_new = torch.nn.functional.pad(of_new, (0, 0, 0, 0, self.num_ends, 0))

    def _set_places(self) -> None:
        """Set the tables of ports and of the columns of values."""
        outside = (ACTIVATION, MERGE, MODULE.name)  # may differ where nodes share a module
        self.is_outside_module = torch.tensor([a.name in outside for a in self.vocabulary.node_attributes])
        self.attribute_of_column, self.value_of_column = self._editor.node_columns.unbind(1)
        of_operations = map(len, self.choices.ports)
        self.num_ports_of_type = torch.tensor([*[1] * self.num_ends, *of_operations, 1])  # the last one: no node
        sets = [value.split("+") for each in self.vocabulary.edge_attributes for value in map(str, each.values)]
        places = map(str, range(self.num_ports))
        # [P, C + 1] whether an edge with a set of ports feeds a port; the last one: not set
        self.port_of_set = torch.tensor([[*(place in each for each in sets), False] for place in places])

    def apply(self, states: GraphStates, actions: ActionBatch) -> GraphStates:
        after = super().apply(states, actions)
        return with_shared(states, actions, after) if self.share else after

    def labelled_graphs(self, states: GraphStates) -> LabelledGraphs:
        """Return the graphs without edges of shared modules, the number of these as a value of each node."""
        graphs = super().labelled_graphs(states)
        if not self.share:
            return graphs
        labels = graphs.labels.clone()
        labels[..., -1] += self.facts(states).sharing.joined.sum(2)
        return replace(graphs, labels=labels, edges=graphs.edges.masked_fill(states.edge_type == SHARES, NO_EDGE))

    def forward_rules(self, states: GraphStates) -> Rules:
        rules, facts = {**super().forward_rules(states)}, self.facts(states)
        if facts.sharing is None:
            return rules
        is_share = torch.arange(SHARES + 1, device=facts.edge.device) == SHARES
        text = "only a new node shares the module of another one, with the same operation, settings and inputs"
        rules[Kind.AddEdge] = [
            *(Rule(rule.text, rule.holds | is_share) for rule in rules[Kind.AddEdge]),
            Rule(text, facts.sharing.candidates[..., None] | ~is_share),
        ]
        return rules

    def sizes(self, states: GraphStates) -> Tensor:
        """Return parameters and multiply-adds where they have a cap, [B, K], the output layer at the widest node."""
        facts = self.facts(states)
        return (facts.cost + facts.head)[:, self.limited]

    @property
    def smallest_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the network of an output layer alone, of tokens with one operation before it.

        Raises:
            ValueError: no operation leads from tokens to the output within the limits.
        """
        if self.input_shapes[0].layout is not Layout.TOKENS:
            return tuple(self.tables.head[self.tables.inputs].amax(0)[self.limited].tolist())
        first = self.tables.completions[: len(self.choices.operations), self.tables.inputs + 1]
        totals = first.unflatten(-1, (2, -1)).sum(-2).flatten(0, -2).T
        fits = (totals <= torch.tensor([self.caps[dim] for dim in self.tables.dims])[:, None]).all(0)
        if not fits.any() or self.max_hidden_nodes < 1 or self.max_edges < 2:
            expected = f"expected an operation that leads from {self.input_shapes[0]} to the output"
            raise ValueError(f"{self.key}.operations: {expected}{self._limits}, got none")
        return tuple(totals[:, fits].amin(1)[: len(self.vocabulary.caps)].tolist())

    def numbers(self, states: GraphStates) -> Numbers:
        facts = self.facts(self._ends_first(states))
        return [*super().numbers(states), *self._shape_numbers(facts, self.num_inputs)]

    @cached_property
    def _shape_numbers(self) -> ShapeNumbers:
        return ShapeNumbers(self.tables, self.choices)

    def _ends_first(self, states: GraphStates) -> GraphStates:
        """Return types, attributes and edges of states with inputs and output at their places, as in `facts`."""
        kind = torch.where(states.exists, states.node_type.clamp(max=self.num_ends), self.num_ends + 1)
        order = kind.argsort(dim=1, stable=True)
        graph = torch.arange(len(states))[:, None]
        pairs = graph[:, :, None], order[:, :, None], order[:, None, :]
        return replace(
            states,
            node_type=states.node_type[graph, order],
            node_attr=states.node_attr[graph, order],
            edge_type=states.edge_type[pairs],
            edge_attr=states.edge_attr[pairs],
        )

    def remarks(self) -> Sequence[str]:
        """Return a line that names the operations that no network of this space has."""
        unfit = self.tables.unfit_operations(self.choices).items()
        names = ", ".join(f"{', '.join(each)} ({reason})" for reason, each in unfit)
        start = f"env.operation_graph.operations: no reachable shape fits {names}; the task's input is "
        end = ": change its input_sizes, or the layout of its Splits, or the operations"
        return (start + ", ".join(map(str, self.input_shapes)) + end,) if unfit else ()

    def new_facts(self, states: GraphStates, last: OperationFacts | None) -> OperationFacts:
        guess = None
        # The batch before is often the same but for one action each.
        if last is not None and (last.output.shape, last.output.device) == (
            states.node_type.shape,
            states.node_type.device,
        ):
            guess = last.output
        return OperationFacts(self, states, guess)

    def accepting(self, facts: OperationFacts) -> Tensor:
        """Return the nodes that may get an edge: an open node, else all if none has attributes to be set."""
        complete = super().accepting(facts)
        if facts.ports is None:
            return complete
        return complete | (facts.ports.is_open & ~facts.ports.is_pending.any(1, keepdim=True))

    def fit_rules(self, facts: OperationFacts) -> Rules:
        node = facts.incomplete.view(torch.uint8).argmax(1, keepdim=True)
        child = self.tables.child[facts.prefix.gather(1, node)]  # [B, 1, C]
        of_values = rows_at(self.tables.completions, child, facts.input.gather(1, node)[:, :, None] + 1)
        of_new = rows_at(self._of_new, facts.output + 1)
        if facts.sharing is not None:
            of_values = with_others(of_values, facts.sharing.of_values(node))
            graph = torch.arange(len(node), device=node.device)[:, None]
            of_new = with_others(of_new, rows_at(facts.sharing.of_new, graph, facts.output + 1))
        may_add, may_set = self.within(facts, of_new), self.within(facts, of_values)
        if facts.sharing is not None:
            is_own = facts.sharing.may_own(facts)
            may_set = torch.cat([may_set.expand(-1, is_own.shape[1], -1), is_own], -1)
        edge_text = "the source's shape does not fit into the shape of the target's inputs"
        rules: dict[Kind, list[Rule]] = {}
        if facts.ports is None:
            rules[Kind.AddEdge] = [Rule(edge_text, self.inference.fits(facts.output, facts.input)[..., None])]
            if self.align == "auto":
                text = f"the edge's projection does not fit the rest{self._limits}"
                rules[Kind.AddEdge].append(Rule(text, self._is_affordable(facts, facts.input)[..., None]))
        else:
            masks = PortMasks(self, facts)
            fits = torch.zeros_like(facts.edge)
            for shape in facts.received:
                fits_port = self.inference.fits(facts.output, shape)
                fits |= fits_port & self._is_affordable(facts, shape) if self.align == "auto" else fits_port
            fits = torch.where(facts.ports.is_open[:, None], masks.new_edges(), fits)
            rules[Kind.AddEdge] = [Rule(f"{edge_text}{self._limits}", fits[..., None])]
            text = f"the edge has ports, or these do not fit the source{self._limits}"
            rules[Kind.SetEdgeAttr] = [Rule(text, masks.sets())]
            may_add |= masks.new_nodes()
        return {
            **rules,
            Kind.AddNode: [Rule(f"the operation does not fit the source{self._limits}", may_add)],
            Kind.SetNodeAttr: [Rule(f"the operation with this value does not fit the input{self._limits}", may_set)],
        }

    def backward_rules(self, states: GraphStates) -> Rules:
        rules = self._port_rules(states, {**super().backward_rules(states)})
        sharing = self.facts(states).sharing
        if sharing is None:
            return rules
        # A node leaves its module as it would unset its last value.
        may_leave = functools.reduce(torch.logical_and, (rule.holds for rule in rules[Kind.RemoveNodeAttr]))[..., -1:]
        edge = functools.reduce(torch.logical_and, (rule.holds for rule in rules[Kind.RemoveEdge]))[..., 0]
        num_others = len(self.choices.attributes)
        is_other = torch.arange(num_others + 1, device=edge.device) < num_others
        text = "the edge is needed, or the node has to keep its module"
        rules[Kind.RemoveEdge] = [Rule.of_pair(text, torch.where(states.edge_type == SHARES, may_leave, edge))]
        rules[Kind.RemoveNodeAttr] = [
            *rules[Kind.RemoveNodeAttr],
            Rule("the node leaves its module first", ~sharing.joined.any(2)[:, :, None] | is_other),
        ]
        return rules

    def _port_rules(self, states: GraphStates, rules: dict[Kind, Sequence[Rule]]) -> dict[Kind, Sequence[Rule]]:
        """Return backward rules with those of operations with several ports."""
        facts = self.facts(states)
        if facts.ports is None:
            return rules
        ports, edge, unset = facts.ports, facts.edge, states.node_attr == UNSET
        keeps, is_only = ports.removable(facts)
        several, is_last = ports.num > 1, ~edge.any(2)  # [B, N]
        complete, settled = ~facts.incomplete, ~facts.incomplete.any(1)
        others_complete = facts.incomplete.sum(1, keepdim=True) == facts.incomplete
        bare = unset.all(-1) & is_last  # [B, N] nodes that may become open
        reopens = torch.where(is_only, bare[:, None], complete[:, None]) | ports.is_open[:, None]
        text = "the edge is needed: the inputs of the target would change"
        _, *remove_edge = rules[Kind.RemoveEdge]  # without the rule that all nodes are complete
        _, *remove_value = rules[Kind.RemoveNodeAttr]
        rules[Kind.RemoveEdgeAttr] = [
            Rule.of_pair("the edge has no ports", edge & several[:, None] & ~ports.pending),
            Rule.of_pair("another edge has no ports", ~ports.pending.flatten(1).any(1)[:, None, None]),
            Rule.of_pair("another hidden node is not complete", others_complete[:, None]),
            Rule.of_pair(text, keeps & reopens),
        ]
        removable = torch.where(several[:, None], ports.pending & (edge.sum(1) >= 2)[:, None], settled[:, None, None])
        may_change = facts.is_hidden & is_last & (keeps & is_only).any(1) & ~ports.is_pending
        has_ports = "the edge still has ports"
        rules[Kind.RemoveNode] = [*rules[Kind.RemoveNode], Rule(has_ports, (~several | ports.is_pending)[:, :, None])]
        rules[Kind.RemoveEdge] = [*remove_edge, Rule.of_pair(f"{has_ports}, or a node is not complete", removable)]
        rules[Kind.RemoveNodeAttr] = [
            Rule("only a hidden node without later edges can change", may_change[:, :, None]),
            *remove_value,
        ]
        return rules

    def decisive_edges(self, facts: OperationFacts) -> Tensor:
        """Return the edges from sources with the shape of the target's merged inputs, [B, N, N]."""
        decisive = facts.edge & (facts.output[:, :, None] == facts.input[:, None, :])
        return decisive if facts.ports is None else decisive & (facts.ports.num == 1)[:, None]

    def edge_marks(self, states: GraphStates, index: int, source: int, target: int) -> Sequence[Mapping[str, Any]]:
        operation = int(states.node_type[index, target]) - self.num_ends
        if self.share and int(states.edge_type[index, source, target]) == SHARES:
            return ()
        names = self.choices.ports[operation] if operation >= 0 else ()
        if len(names) < 2:
            return ({},)
        is_fed = self.port_of_set[:, int(states.edge_attr[index, source, target, 0])].tolist()
        return [{"port": name} for name, fed in zip(names, is_fed, strict=False) if fed]

    def edge_values(self, target: Node, edges: Sequence[Edge]) -> Sequence[int]:
        if self.num_ports == 1:
            return ()
        is_hidden = target.node_type is NodeType.HIDDEN
        names = self.choices.ports[self.choices_of(target)[0]] if is_hidden else ()
        if len(names) < 2:
            return (UNSET,)
        places = sorted(position_of(names, each.port, "port") for each in edges)
        return (position_of(self.vocabulary.edge_attributes[0].values, "+".join(map(str, places)), "set of ports"),)

    def node_fields(self, position: int, operation: int, values: Mapping[str, Any]) -> dict[str, Any]:
        if position < self.num_inputs:
            shape = self.input_shapes[position]
            attributes: dict[str, Any] = {"shape": [*shape.sizes]}
            if Shape.of(shape.sizes).layout is not shape.layout:
                attributes["layout"] = str(shape.layout)
            return {"node_type": NodeType.INPUT, "output_size": None, "attributes": attributes}
        if position < self.num_ends:
            attributes = {"operation": head_of(self.output_shape), "aggregation": "sum", "align": "pad"}
            if self.output_shape.positions:
                attributes["positions"] = [*self.output_shape.positions]
            return {"node_type": NodeType.OUTPUT, "output_size": None, "attributes": attributes}
        offered = self.choices.operations[operation]
        applied = {"name": offered.name, **offered.settings(values)}
        return {
            "node_type": NodeType.HIDDEN,
            "output_size": None,
            "activation_function": offered.value(ACTIVATION, values),
            "attributes": {
                "operation": applied,
                "aggregation": offered.value(MERGE, values),
                "align": self.align,
                **({"share": values["share"]} if "share" in values else {}),
            },
        }

    def node_marks(self, states: GraphStates, index: int, node: int) -> Mapping[str, Any]:
        if not self.share:
            return {}
        shares = states.edge_type[index] == SHARES
        others = (shares[node] | shares[:, node]).nonzero().squeeze(1).tolist()
        return {"share": f"module_{min(node, *others)}"} if others else {}

    def describe(self, candidate: ComputationGraph) -> GraphDescription:
        description = super().describe(candidate)
        if not self.share:
            return description
        position = {each.node_id: place for place, each in enumerate(self.ordered(candidate))}
        modules: dict[str, list[int]] = {}
        values = [list(each) for each in description.node_values]
        for node_id, shapes in infer_shapes(candidate).items():
            applied = shapes.what if isinstance(shapes.what, Apply) else None
            if shapes.node.node_type is NodeType.HIDDEN and applied is not None and applied.at.cost[0]:
                values[position[node_id]][-1] = 0
                modules.setdefault(applied.share or str(node_id), []).append(position[node_id])
        unset = (UNSET,) * len(self.vocabulary.edge_attributes)
        pairs = (pair for nodes in modules.values() for pair in permutations(nodes, 2))
        shares = {pair: DescribedEdge(SHARES, unset) for pair in pairs}
        return replace(description, node_values=values, edges={**shares, **description.edges})

    def choices_of(self, node: Node) -> tuple[int, Mapping[str, Any]]:
        applied = read_operation(thawed(node.operation))
        names = [offered.name for offered in self.choices.operations]
        operation = position_of(names, applied.name, "operation")
        offered = self.choices.operations[operation]
        settings = {**applied.settings, ACTIVATION: node.activation_function, MERGE: node.aggregation}
        for name in offered.varying:
            position_of(offered.choices[name], settings.get(name), f"{applied.name}.{name}")
        return operation, {name: settings[name] for name in offered.varying}

    def check_candidate(self, candidate: ComputationGraph) -> None:
        """Raise ValueError for shapes that no actions build, or for a network above a limit."""
        inputs = [node for _, node in sorted(candidate.nodes.items()) if node.node_type is NodeType.INPUT]
        for node, shape in zip(inputs, self.input_shapes, strict=True):
            if input_shape(node) != shape:
                raise ValueError(f"node {node.node_id}: expected {shape} as in the task, got {input_shape(node)}")
        for node_id, shapes in infer_shapes(candidate).items():
            for plan in shapes.inputs.values() if shapes.node.node_type is NodeType.HIDDEN else ():
                if plan.shape not in [adapter.source for adapter in plan.adapters]:
                    raise ValueError(f"node {node_id}: expected an input of {plan.shape}, to which others are aligned")
        cost = graph_cost(candidate)
        if not is_within((cost.num_parameters, cost.multiply_adds), self.caps):
            raise ValueError(f"expected a network{self._limits.removeprefix(', or not')}, got {cost}")

    def within(
        self, facts: OperationFacts, completions: Tensor, *, rows: Tensor | None = None, cost: Tensor | None = None
    ) -> Tensor:
        """Return whether one of the completions [R, X, G, K, 2 D] of a new node is within the limits, [R, X, G] bool.

        Args:
            facts: of B graphs.
            completions: of R of them.
            rows: [R] int64, which; all of them by default.
            cost: [R, X, 2] int64, besides that of the node; nothing by default.
        """
        left, head = facts.caps - facts.cost, facts.head
        left, head = (left, head) if rows is None else (left[rows], head[rows])
        left = left[:, None] if cost is None else left[:, None] - cost
        costs, dims = completions.unbind(-1), self.tables.dims
        within = [
            torch.maximum(of_head, head[:, dim, None, None, None]).add_(cost) <= left[..., dim, None, None]
            for dim, cost, of_head in zip(dims, costs, costs[len(dims) :], strict=False)
        ]
        return functools.reduce(torch.logical_and, within).any(-1)

    def _is_affordable(self, facts: OperationFacts, shape: Tensor) -> Tensor:
        """Return whether the projections of sources to the shapes [B, N] of nodes are within the limits, [B, N, N]."""
        total = self.tables.adapter[facts.output[:, :, None], shape[:, None]]
        total = total + (facts.cost + facts.head)[:, None, None]
        return (total <= facts.caps[:, None, None]).all(-1) | self.is_output  # the output pads

    @cached_property
    def _limits(self) -> str:
        """Return the limits, for errors."""
        names = zip(SIZES, self.caps, strict=True)
        limits = [f"{cap:,} {name.replace('_', '-')}" for name, cap in names if cap < NO_LIMIT]
        return f", or not within {' and '.join(limits)}" if limits else ""


def _check_ends(inputs: Sequence[Shape], output: Shape) -> None:
    """Raise ValueError for inputs that no operation leads to the output."""
    layouts = {shape.layout for shape in inputs}
    if not inputs or (Layout.TOKENS in layouts and len(inputs) > 1):
        got = ", ".join(map(str, inputs)) or "none"
        raise ValueError(f"task: expected one input of tokens, or inputs without tokens, got {got}")
    if output.layout not in OUTPUTS or (output.positions and not layouts <= {output.layout, Layout.TOKENS}):
        raise ValueError(f"task: expected inputs of the output's layout, {output}, got {', '.join(map(str, inputs))}")


class OperationFacts(StateFacts):
    """Shapes and costs besides.

    The cost of a state counts the output layer at the widest node, so that no action ever lowers it.
    """

    def __init__(self, env: OperationGraphEnv, states: GraphStates, guess: Tensor | None = None) -> None:
        super().__init__(env, states)
        self._tables, self._has_projections = env.tables, env.align == "auto"
        self.node_type = states.node_type.long()
        self.caps = env.caps_of(states)  # [B, 2] of parameters and multiply-adds
        # [B, N] operation and values set so far, shape of the merged inputs of hidden nodes, and shape of inputs and
        # complete hidden nodes
        self.prefix = env.tables.prefixes(states.node_type, states.node_attr)
        if env.share:
            self.edge = self.forward = states.edge_type == FORWARD
        self.ports = EdgePorts(env, states, self.edge) if env.num_ports > 1 else None
        feeds = [self.edge] if self.ports is None else self.ports.feeds
        # [B, N] of each port, and all together
        self.received, self.input, self.output = env.inference(feeds, self.prefix, guess)
        is_open = env.tables.open[self.prefix]
        self.incomplete, self.next_values = is_open[:, :, 0], is_open[:, :, 1:]
        if self.ports is not None:
            self.incomplete = self.incomplete | self.ports.is_open | self.ports.is_pending
        self.sharing = Sharing(env, self, states) if env.share else None
        if self.sharing is not None:
            self.incomplete = self.incomplete | self.sharing.undecided
            self.next_values = torch.cat([self.next_values, self.sharing.undecided[:, :, None]], -1)

    @cached_property
    def node_cost(self) -> Tensor:
        """Return the parameters and multiply-adds of hidden nodes, [B, N, 2]."""
        cost = self._tables.cost[self.prefix, self.input]
        if self.sharing is not None:  # weights count once
            cost = cost * torch.stack([self.sharing.counts, torch.ones_like(self.sharing.counts)], -1)
        if not self._has_projections:
            return cost
        feeds = [self.edge] if self.ports is None else self.ports.feeds
        for shape, edge in zip(self.received, feeds, strict=True):
            adapters = self._tables.adapter[self.output[:, :, None], shape[:, None, :]]
            cost = cost + (adapters * (edge & self.is_hidden[:, None, :])[..., None]).sum(1)
        return cost

    @cached_property
    def cost(self) -> Tensor:
        """Return the cost of all hidden nodes, [B, 2]."""
        return self.node_cost.sum(1)

    @cached_property
    def head(self) -> Tensor:
        """Return the cost of the output layer at the widest node, [B, 2]."""
        return self._tables.head[self.output].amax(1)


class OperationGraphContext(GraphBuildingEnvContext):
    """Context of operation graphs, with shapes, costs and the remaining budget as features."""

    env: OperationGraphEnv
    num_extra_node_features = 8

    def __init__(self, env: OperationGraphEnv, *, num_cond_dim: int = 1) -> None:
        super().__init__(env, num_cond_dim=num_cond_dim)
        # [I, 2] channels and positions on a logarithmic scale, zeros for no shape; of several inputs the first one's
        self._of_shape = torch.tensor(env.tables.sizes, dtype=torch.float32).log2() / 8

    @classmethod
    def build_env(
        cls, config: EnvConfig, *, input_sizes: Sequence[int | Shape], output_sizes: Sequence[int | Shape]
    ) -> OperationGraphEnv:
        """Return the environment.

        Raises:
            ValueError: an invalid option under `env.operation_graph`, or invalid shapes of the task.
        """
        if len(output_sizes) != 1:
            raise ValueError(f"task: expected one output, got {', '.join(map(str, output_sizes)) or 'none'}")
        inputs = [size if isinstance(size, Shape) else Shape.of(size) for size in input_sizes]
        options = {each.name: getattr(config.operation_graph, each.name) for each in fields(OperationGraphConfig)}
        return OperationGraphEnv(inputs, output_sizes[0], **options)

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
