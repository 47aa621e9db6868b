"""Networks of tensor operations within hard limits of parameters and multiply-adds.

The shapes and costs of all nodes follow from tables. No edge changes a shape: a hidden node accepts a further input
only if it can be aligned to the shape of the present inputs. The output accepts every input.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gflownet.envs.computation_graph import NetworkEnv, StateFacts
from gflownet.envs.config import EnvConfig
from gflownet.envs.operation_choices import ACTIVATION, MERGE, OperationChoices
from gflownet.envs.operation_tables import OUTPUTS, Completions, ShapeInference, build_tables, head_of, is_within
from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.graphs.elements import Node
from gflownet.graphs.operation import read_operation
from gflownet.graphs.operation_costs import graph_cost
from gflownet.graphs.operation_shapes import infer_shapes, input_shape
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import position_of
from gflownet.mdp.environment import SIZES, Rule, Rules
from gflownet.mdp.states import NO_LIMIT, GraphStates
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
        super().__init__(
            (*(f"input_{i}" for i in range(len(inputs))), "output"),
            len(inputs),
            operations,
            self.choices.attributes,
            max_hidden_nodes=max_hidden_nodes,
            max_edges=max_edges,
            caps={name: cap for name, cap in zip(SIZES, self.caps, strict=True) if cap < NO_LIMIT},
        )
        self.tables = build_tables(
            self.choices, self.input_shapes, outputs=self.output_shape, max_depth=max_hidden_nodes, caps=self.caps
        )
        for name, cap, cost in zip(SIZES, self.vocabulary.caps, self.smallest_sizes, strict=False):
            if cost > cap:
                expected = f"expected at least {cost:,}, for the output layer"
                raise ValueError(f"env.operation_graph.max_{name}: {expected}, got {cap:,}")
        self.inference = ShapeInference.of(self.tables, max_nodes=self.vocabulary.max_nodes)
        # [S, types, K] of new nodes behind a shape
        self._of_new = self.tables.completions[torch.arange(len(operations))].mapped(
            lambda x: torch.nn.functional.pad(x.transpose(0, 1), (0, 0, self.num_ends, 0)).contiguous()
        )

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
        first = self.tables.completions[torch.arange(len(self.choices.operations)), self.tables.inputs]
        totals = torch.stack([(cost + head).flatten() for cost, head in zip(first.cost, first.head, strict=True)])
        fits = (totals <= torch.tensor([self.caps[dim] for dim in first.dims])[:, None]).all(0)
        if not fits.any() or self.max_hidden_nodes < 1 or self.max_edges < 2:
            expected = f"expected an operation that leads from {self.input_shapes[0]} to the output"
            raise ValueError(f"{self.key}.operations: {expected}{self._limits}, got none")
        return tuple(totals[:, fits].amin(1)[: len(self.vocabulary.caps)].tolist())

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

    def fit_rules(self, facts: OperationFacts) -> Rules:
        fits = self.inference.fits(facts.output, facts.input)
        edge_rules = [Rule("the source's shape does not fit into the shape of the target's inputs", fits[..., None])]
        if self.align == "auto":
            adapter = self.tables.adapter[facts.output[:, :, None], facts.input[:, None, :]]
            total = adapter + (facts.cost + facts.head)[:, None, None]
            affordable = (total <= facts.caps[:, None, None]).all(-1) | self.is_output  # the output pads
            edge_rules.append(Rule(f"the edge's projection does not fit the rest{self._limits}", affordable[..., None]))
        node = facts.incomplete.view(torch.uint8).argmax(1, keepdim=True)
        child = self.tables.child[facts.prefix.gather(1, node)]  # [B, 1, C]
        of_values = self.tables.completions[child, facts.input.gather(1, node)[:, :, None]]
        of_new = self._of_new[facts.output]
        return {
            Kind.AddNode: [Rule(f"the operation does not fit the source{self._limits}", self._within(facts, of_new))],
            Kind.AddEdge: edge_rules,
            Kind.SetNodeAttr: [
                Rule(
                    f"the operation with this value does not fit the input{self._limits}",
                    self._within(facts, of_values),
                )
            ],
        }

    def decisive_edges(self, facts: OperationFacts) -> Tensor:
        """Return the edges from sources with the shape of the target's merged inputs, [B, N, N]."""
        return facts.edge & (facts.output[:, :, None] == facts.input[:, None, :])

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
            "attributes": {"operation": applied, "aggregation": offered.value(MERGE, values), "align": self.align},
        }

    def choices_of(self, node: Node) -> tuple[int, Mapping[str, Any]]:
        applied = read_operation(thawed(node.attributes.get("operation")))
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

    def _within(self, facts: OperationFacts, completions: Completions) -> Tensor:
        """Return whether one of the completions [B, N, X, K] of a new node is within the limits, [B, N, X] bool."""
        left, head = facts.caps - facts.cost, facts.head
        within = [
            torch.maximum(of_head, head[:, dim, None, None, None]).add_(cost) <= left[:, dim, None, None, None]
            for dim, cost, of_head in zip(completions.dims, completions.cost, completions.head, strict=True)
        ]
        return functools.reduce(torch.logical_and, within).any(-1)

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
        self.caps = env.caps_of(states)  # [B, 2] of parameters and multiply-adds
        # [B, N] operation and values set so far, shape of the merged inputs of hidden nodes, and shape of inputs and
        # complete hidden nodes
        self.prefix = env.tables.prefixes(states.node_type, states.node_attr)
        self.input, self.output = env.inference(self.edge, self.prefix, guess)
        is_open = env.tables.open[self.prefix]
        self.incomplete, self.next_values = is_open[:, :, 0], is_open[:, :, 1:]

    @cached_property
    def node_cost(self) -> Tensor:
        """Return the parameters and multiply-adds of hidden nodes, [B, N, 2]."""
        cost = self._tables.cost[self.prefix, self.input]
        if not self._has_projections:
            return cost
        adapters = self._tables.adapter[self.output[:, :, None], self.input[:, None, :]]
        return cost + (adapters * (self.edge & self.is_hidden[:, None, :])[..., None]).sum(1)

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
        # [S, 2] channels and positions on a logarithmic scale, zeros for no shape
        self._of_shape = torch.tensor(env.tables.sizes, dtype=torch.float32).log2() / 8

    @classmethod
    def build_env(
        cls, config: EnvConfig, *, input_sizes: Sequence[int | Shape], output_sizes: Sequence[int | Shape]
    ) -> OperationGraphEnv:
        """Return the environment.

        Raises:
            ValueError: an invalid option under `env.operation_graph`, or invalid shapes of the task.
        """
        options = config.operation_graph
        if len(output_sizes) != 1:
            raise ValueError(f"task: expected one output, got {', '.join(map(str, output_sizes)) or 'none'}")
        return OperationGraphEnv(
            [size if isinstance(size, Shape) else Shape.of(size) for size in input_sizes],
            output_sizes[0],
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
