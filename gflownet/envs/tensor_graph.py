"""The MDP of tensor programs: operations on input tensors in index notation.

A state is a graph of tensors and indices (dev/decisions/0010-tensor-programs-as-graphs.md). An operation is
attached to its first operand and gets an edge from its second. Then each axis of the operands gets an index: a new one,
kept or summed over, or an index of the other operand (a match). A transform may have additional indices. Only one
operation is open at a time. Kept and additional indices are the axes of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from gflownet.envs.config import EnvConfig
from gflownet.envs.tensor_program import (
    BINARY,
    KEEP,
    NEW,
    OPERATIONS,
    ORDERED,
    SUM,
    TRANSFORM,
    TensorProgram,
    axis_name,
    read_inputs,
)
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.action import GraphActionType as Kind
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.description import DescribedEdge, GraphDescription, position_of
from gflownet.mdp.environment import Environment, Rule, Rules
from gflownet.mdp.states import UNSET, Attribute, GraphStates, GraphVocabulary


class TensorKinds:
    """Properties of each node type, [C + 1] each; the last entry stands for "no node" (ABSENT = -1)."""

    def __init__(self, types: Sequence[str], inputs: Mapping[str, Sequence[int]], operations: Sequence[str]) -> None:
        def table(condition: Callable[[str], bool]) -> Tensor:
            return torch.tensor([*map(condition, types), False])

        def extent_of(kind: str) -> int:
            return int(kind.partition(":")[2] or 0)

        self.is_operation = table(lambda kind: kind in operations)
        self.is_binary = table(lambda kind: kind in operations and kind in BINARY)
        self.is_transform = table(lambda kind: kind in operations and kind == TRANSFORM)
        self.is_ordered = table(lambda kind: kind in operations and kind == ORDERED)
        self.is_tensor = self.is_operation | table(lambda kind: kind in inputs)
        self.is_kept = table(lambda kind: kind == KEEP)
        self.is_placed = table(lambda kind: kind in (KEEP, SUM))  # indices that axes are placed on
        self.is_new = table(lambda kind: kind.startswith(f"{NEW}:"))
        self.is_axis = self.is_kept | table(lambda kind: extent_of(kind) > 0)
        self.extent = torch.tensor([*map(extent_of, types), 0])  # extents of axes, 0 for other types
        self.arity = self.is_operation.long() + self.is_binary.long()


class TensorGraphFacts:
    """Existing nodes, the open operation, and the nodes that may still change."""

    def __init__(self, kinds: TensorKinds, states: GraphStates) -> None:
        self._types = states.node_type.long()
        self.has_edge = states.has_edge
        self.is_tensor, self.is_axis = self.of(kinds.is_tensor), self.of(kinds.is_axis)  # [B, N]
        self.is_placed = self.of(kinds.is_placed)
        self.is_index = self.is_placed | self.of(kinds.is_new)
        is_operation = self.of(kinds.is_operation)
        self.operand = self.has_edge & self.is_tensor[:, :, None] & is_operation[:, None, :]  # [B, tensor, operation]
        self.owns = self.has_edge & self.is_tensor[:, :, None] & ~is_operation[:, None, :]  # [B, tensor, index]
        self.placed = self.has_edge & self.is_axis[:, :, None]  # [B, axis, index]
        self.num_operands, self.num_axes = self.operand.sum(1), self.placed.sum(1)  # [B, N]
        self.owns_axis = self.owns & self.is_axis[:, None, :]
        self.rank = self.owns_axis.sum(2)  # [B, N] of tensors
        needed = self.operand.mT.float() @ self.owns_axis.float() > 0  # [B, operation, axis]
        unplaced = needed & ~(self.owns.float() @ self.placed.mT.float() > 0)
        self.has_operands = self.num_operands == self.of(kinds.arity)
        self.is_open = is_operation & (~self.has_operands | unplaced.any(2))
        self.has_open = self.is_open.any(1)  # [B]
        self.other_open = self.has_open[:, None] & ~self.is_open  # [B, N]: at most one operation is open
        self.is_pending = (unplaced & (self.is_open & self.has_operands)[:, :, None]).any(1)  # [B, N] axes
        self.is_used = self.operand.any(2)
        self.is_sink = is_operation & ~self.is_used
        self.num_sinks, self.num_operations = self.is_sink.sum(1), is_operation.sum(1)  # [B]
        self.has_function = (states.node_attr != UNSET).any(2)  # [B, N]
        roots = torch.where(self.is_axis, self.of(kinds.extent), 0)
        # An axis only reaches the indices on which it is placed, directly or through results.
        self.extent = (states.reach * roots[:, :, None]).amax(1) * (self.is_axis | self.is_index)

    def of(self, table: Tensor) -> Tensor:
        """Return the entry of a table [C + 1] for each node, [B, N]."""
        return table[self._types]


class IndexFacts(TensorGraphFacts):
    """Additionally: axes that share a tensor with an axis of an index."""

    def __init__(self, kinds: TensorKinds, states: GraphStates) -> None:
        super().__init__(kinds, states)
        of_one_tensor = self.owns_axis.mT.float() @ self.owns_axis.float()  # [B, axis, axis]
        self.shares_tensor = of_one_tensor @ self.placed.float() > 0  # [B, axis, index]


_EDGE = 0  # the one edge type


class TensorGraphEnv(Environment):
    """Programs of up to `max_operations` operations on named inputs with one result."""

    terminal_type = TensorProgram

    def __init__(
        self,
        inputs: Mapping[str, Sequence[int]],
        *,
        functions: Sequence[str],
        new_extents: Sequence[int],
        max_operations: int,
        operations: Sequence[str] = OPERATIONS,
        max_rank: int = 3,
    ) -> None:
        self.inputs = {name: tuple(shape) for name, shape in inputs.items()}
        self.max_operations, self.max_rank = max_operations, max_rank
        self._check(operations, new_extents)
        ends: list[str] = []
        for name, shape in self.inputs.items():
            ends += [name, *(axis_name(name, axis, extent) for axis, extent in enumerate(shape))]
        indices = [KEEP, SUM, *(f"{NEW}:{extent}" for extent in new_extents)]
        types = (*ends, *operations, *indices)
        self.kinds = TensorKinds(types, self.inputs, operations)
        self.can_join = any(operation in BINARY for operation in operations)
        max_axes = max([max_rank, *(len(shape) for shape in self.inputs.values())])
        super().__init__(
            GraphVocabulary(
                node_types=types,
                max_nodes=len(ends) + max_operations * (1 + max_axes + max(max_axes, max_rank)),
                directed=True,
                node_attributes=(Attribute("function", tuple(functions)),) if functions else (),
                ranked=ORDERED in operations,
            )
        )
        if not self.can_join:  # transforms alone have no second operand, and nothing to match
            self.forward_types = tuple(kind for kind in self.forward_types if kind != Kind.AddEdge)
            self.backward_types = tuple(kind for kind in self.backward_types if kind != Kind.RemoveEdge)

    def _check(self, operations: Sequence[str], new_extents: Sequence[int]) -> None:
        unknown = [operation for operation in operations if operation not in OPERATIONS]
        if not operations or unknown:
            raise ValueError(f"operations: expected some of {', '.join(OPERATIONS)}, got {list(operations)}")
        if not self.inputs or (len(self.inputs) == 1 and TRANSFORM not in operations):
            raise ValueError(f"inputs: expected two, or one and transforms, got {list(self.inputs)}")
        if self.max_operations < 1 or self.max_rank < 0:
            raise ValueError(
                f"expected max_operations >= 1 and max_rank >= 0, got {self.max_operations} and {self.max_rank}"
            )
        if any(extent < 1 for extent in new_extents):
            raise ValueError(f"new_extents: expected extents of at least 1, got {list(new_extents)}")

    def initial_states(self, num: int) -> GraphStates:
        states = GraphStates.empty(num, self.vocabulary)
        position = 0
        for shape in self.inputs.values():
            axes = slice(position + 1, position + 1 + len(shape))
            states.edge_type[:, position, axes] = _EDGE
            states.reach[:, position, axes] = True
            position = axes.stop
        states.node_type[:, :position] = torch.arange(position, dtype=torch.int8)
        states.num_nodes[:] = position
        return states

    def ordered_nodes(self, states: GraphStates) -> Tensor:
        """Return the mask of nodes with ordered operands (differences), [B, N] bool."""
        return self.kinds.is_ordered[states.node_type.long()]

    def apply(self, states: GraphStates, actions: ActionBatch) -> GraphStates:
        """Return the states after one action each; an index attached to an axis belongs to the open operation."""
        after = super().apply(states, actions)
        graphs = (actions.kind == int(Kind.AddNode)).nonzero().squeeze(1)
        graphs = graphs[self.kinds.is_placed[actions.column[graphs]]]
        if len(graphs):
            owner = TensorGraphFacts(self.kinds, states[graphs]).is_open.int().argmax(1)
            new = states.num_nodes[graphs]
            after.edge_type[graphs, owner, new] = _EDGE
            after.reach[graphs, :, new] |= after.reach[graphs, :, owner]
        return after

    def reverse(self, states: GraphStates, actions: ActionBatch) -> ActionBatch:
        """Return the reverse actions; a removed index is attached to its axis again."""
        back = super().reverse(states, actions)
        graphs = (actions.kind == int(Kind.RemoveNode)).nonzero().squeeze(1)
        removed = actions.row[graphs]
        placed = self.kinds.is_placed[states.node_type[graphs, removed].long()]
        graphs, removed = graphs[placed], removed[placed]
        on_axis = states.has_edge[graphs, :, removed] & self.kinds.is_axis[states.node_type[graphs].long()]
        axis = on_axis.int().argmax(1)
        back.row[graphs] = axis - (axis > removed).long()
        return back

    def terminal(self, states: GraphStates, index: int) -> TensorProgram:
        graph = self.coloured_graph(states, index)
        colours = tuple(colour.removesuffix("?") for colour in graph.node_colours)  # no function is no colour
        return TensorProgram(replace(graph, node_colours=colours))

    def describe(self, candidate: TensorProgram) -> GraphDescription:
        graph, types, values = candidate.graph, [], []
        functions = [attribute.values for attribute in self.vocabulary.node_attributes]
        for colour in graph.node_colours:
            kind, _, function = colour.partition("|")
            types.append(position_of(self.vocabulary.node_types, kind, "node type"))
            if function and not functions:
                raise ValueError(f"expected no functions, got {function!r}")
            values.append([position_of(names, function, "function") if function else UNSET for names in functions])
        edges = {ends: DescribedEdge(_EDGE, (), int(c.split("|")[2])) for ends, c in graph.edge_colours.items()}
        return GraphDescription(types, values, edges)

    def forward_rules(self, states: GraphStates) -> Rules:
        facts = IndexFacts(self.kinds, states)
        changed = "another operation has to be finished first"
        rules = {
            Kind.Stop: [
                Rule.of_graph("an operation has to be finished first", ~facts.has_open),
                Rule.of_graph("expected one operation that no other uses, the result", facts.num_sinks == 1),
            ],
            Kind.AddNode: self._node_rules(facts, changed),
            Kind.AddEdge: self._edge_rules(facts),
        }
        if self.vocabulary.node_attributes:
            rules[Kind.SetNodeAttr] = [
                Rule("only an operation that no other uses gets a function", facts.is_sink[:, :, None]),
                Rule.of_graph("an operation has to be finished first", ~facts.has_open),
                Rule("the operation has a function", ~facts.has_function[:, :, None]),
            ]
        return rules

    def _node_rules(self, facts: IndexFacts, changed: str) -> list[Rule]:
        kinds = self.kinds
        operation, placed, is_kept, new = (
            kinds.is_operation[:-1],
            kinds.is_placed[:-1],
            kinds.is_kept[:-1],
            kinds.is_new[:-1],
        )
        is_transform = facts.of(kinds.is_transform)
        fits = (facts.is_tensor[:, :, None] & operation) | (facts.is_pending[:, :, None] & placed)
        fits |= is_transform[:, :, None] & new
        free = torch.where(operation, ~facts.has_open[:, None, None], ~facts.other_open[:, :, None] | ~new)
        open_rank = torch.where(facts.is_open, facts.rank, 0).sum(1)[:, None, None]
        rank = torch.where(is_kept, open_rank, torch.where(new, facts.rank[:, :, None], -1))
        return [
            Rule("only operations and their indices are added", operation | placed | new),
            Rule("attached to a tensor: an operation; to an unplaced axis: keep, sum; to a transform: new", fits),
            Rule(changed, free),
            Rule(
                "an operation with a function or used by another operation is fixed",
                ~new | (~facts.is_used & ~facts.has_function)[:, :, None],
            ),
            Rule(f"a result has at most {self.max_rank} axes", rank < self.max_rank),
            Rule(self._budget, ~operation | self._affordable(facts)),
        ]

    @property
    def _budget(self) -> str:
        return f"at most {self.max_operations} operations, all of which must still lead to one result"

    def _affordable(self, facts: IndexFacts) -> Tensor:
        """Return the mask of types on tensors after which all results can still be joined, [B, N, C] bool."""
        left = (self.max_operations - facts.num_operations - 1)[:, None]
        num_other_sinks = facts.num_sinks[:, None] - facts.is_sink.long()  # [B, N] results without the operand
        joins = left if self.can_join else torch.zeros_like(left)
        unary = (left >= 0) & (num_other_sinks <= joins)
        pair = (
            (left >= 0)
            & (num_other_sinks - (num_other_sinks > 0).long() <= joins)
            & (facts.is_tensor.sum(1) > 1)[:, None]
        )
        return torch.where(self.kinds.is_binary[:-1], pair[:, :, None], unary[:, :, None])

    def _edge_rules(self, facts: IndexFacts) -> list[Rule]:
        into_operation = (facts.is_tensor & ~facts.is_open)[:, :, None] & facts.of(self.kinds.is_operation)[:, None, :]
        onto_index = facts.is_axis[:, :, None] & facts.is_placed[:, None, :]
        lacks = (facts.is_open & ~facts.has_operands)[:, None, :]
        left = (self.max_operations - facts.num_operations)[:, None]
        affordable = facts.num_sinks[:, None] - facts.is_sink.long() - 1 <= left
        in_work = (facts.owns & facts.is_open[:, :, None]).any(1)[:, None, :]
        alike = facts.extent[:, :, None] == facts.extent[:, None, :]
        return [
            Rule.of_pair("from a finished tensor to an operation or an axis to an index", into_operation | onto_index),
            Rule.of_pair("the edge is already there", ~facts.has_edge),
            Rule.of_pair("the operation has its operands", ~into_operation | lacks),
            Rule.of_pair(self._budget, ~into_operation | affordable[:, :, None]),
            Rule.of_pair("the axis is placed, or not the open operation's", ~onto_index | facts.is_pending[:, :, None]),
            Rule.of_pair("the index is not one of the open operation's", ~onto_index | in_work),
            Rule.of_pair("no index twice in one tensor", ~onto_index | ~facts.shares_tensor),
            Rule.of_pair("only equal extents match", ~onto_index | alike),
        ]  # fmt: skip

    def backward_rules(self, states: GraphStates) -> Rules:
        facts = TensorGraphFacts(self.kinds, states)
        used = "another operation uses it, or it has a function"
        changed = "another operation has to be taken away or finished first"
        is_operation = facts.of(self.kinds.is_operation)
        owner = facts.owns & is_operation[:, :, None]  # [B, operation, index]
        untouched = ~(facts.is_used | facts.has_function)
        # The same for an operation and its indices.
        loose = (is_operation & untouched) | (owner & untouched[:, :, None]).any(1)
        alone = (is_operation & ~facts.other_open) | (owner & ~facts.other_open[:, :, None]).any(1)
        bare = ~facts.owns.any(2)
        single = (is_operation & bare & (facts.num_operands == 1)) | (facts.is_index & (facts.num_axes <= 1))
        last = (states.edge_order == 1) | ~self.ordered_nodes(states)[:, None, :]
        second = is_operation & bare & (facts.num_operands == 2)
        matched = facts.is_placed & (facts.num_axes == 2)
        from_axis = facts.is_axis[:, :, None] & matched[:, None, :]
        rules = {
            Kind.RemoveNode: [
                Rule("only an operation or an index is removed", (is_operation | facts.is_index)[:, :, None]),
                Rule(used, loose[:, :, None]),
                Rule(changed, alone[:, :, None]),
                Rule("it has indices or a second operand, or is matched", single[:, :, None]),
            ],
            Kind.RemoveEdge: [
                Rule.of_pair("the edge is not there", facts.has_edge),
                Rule.of_pair(used, loose[:, None, :]),
                Rule.of_pair(changed, alone[:, None, :]),
                Rule.of_pair("neither a match nor an operand before its indices", from_axis | second[:, None, :]),
                Rule.of_pair("a difference gives up its right operand first", last),
            ],
        }  # fmt: skip
        if self.vocabulary.node_attributes:
            rules[Kind.RemoveNodeAttr] = [
                Rule("there is no function", facts.has_function[:, :, None]),
                Rule("another operation uses it", facts.is_sink[:, :, None]),
                Rule.of_graph("an operation has to be taken away or finished first", ~facts.has_open),
            ]
        return rules

    @cached_property
    def extents(self) -> Tensor:
        """Return all extents of axes, ascending."""
        return self.kinds.extent.unique()[1:]  # the first is 0, of other types


class TensorGraphContext(GraphBuildingEnvContext):
    """Context of tensor programs, with extra node features: extents, open operation, unplaced axes."""

    env: TensorGraphEnv

    def __init__(self, env: TensorGraphEnv, *, num_cond_dim: int = 1) -> None:
        self.num_extra_node_features = len(env.extents) + 5
        super().__init__(env, num_cond_dim=num_cond_dim)

    @classmethod
    def build_env(cls, config: EnvConfig, *, input_sizes: Sequence[int], output_sizes: Sequence[int]) -> TensorGraphEnv:
        space = config.tensor_graph
        return TensorGraphEnv(
            read_inputs(space.inputs), functions=space.functions, new_extents=(), max_operations=space.max_operations
        )

    def extra_node_features(self, states: GraphStates) -> Tensor:
        """Return extents, the flags open, unplaced and unused, and the number of axes and of operands."""
        facts = TensorGraphFacts(self.env.kinds, states)
        flags = [facts.is_open, facts.is_pending, facts.is_sink, facts.rank / 4, facts.num_operands / 2]
        extents = facts.extent[:, :, None] == self.env.extents
        return torch.cat([extents.float(), torch.stack([flag.float() for flag in flags], -1)], -1)
