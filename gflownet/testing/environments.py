"""Contract of environments and their contexts, on random walks and on an enumerated small space.

Letters: B states.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch

from gflownet.certificate.exact import StateGraph, enumerate_states
from gflownet.certificate.rules import check_rules, limit_violations
from gflownet.mdp.action import ActionBatch, ActionMasks, GraphAction, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment, IllegalAction
from gflownet.mdp.states import GraphStates
from gflownet.testing.contract import Contract, expect, expect_error

MAX_STATES = 6_000


def check_environment(env: Environment, *, max_states: int = MAX_STATES) -> None:
    """Check the rules of a small environment.

    Args:
        env: with a limit on its size that leaves at most `max_states` states; they are enumerated.
        max_states: bound on the enumeration.

    Raises:
        ContractError: the first rule that the environment breaks, in one line.
    """
    EnvironmentContract(env, max_states=max_states).run_all()


def random_walk(env: Environment, *, num: int, seed: int) -> Iterator[tuple[GraphStates, ActionBatch]]:
    """Yield the states and actions of `num` uniformly random walks, which stop only where no other action is legal."""
    generator, states = torch.Generator().manual_seed(seed), env.initial_states(num)
    while len(states):
        legal = env.forward_masks(states)
        stop = legal.masks[GraphActionType.Stop]
        moves = legal.num_actions() > stop.flatten(1).sum(1)
        masks = {**legal.masks, GraphActionType.Stop: stop & ~moves[:, None, None]}
        actions = ActionMasks(masks).sample_uniform(generator)
        yield states, actions
        states = env.step(states[moves], actions[moves])


class EnvironmentContract(Contract):
    """Checks of one environment.

    Args:
        env: a small one.
        max_states: bound on the enumeration of its states.
        num_round_trips: terminal objects that are written to JSON and read again.
        has_code: whether states are codes of their objects, whose symmetries they do not have.
    """

    def __init__(
        self, env: Environment, *, max_states: int = MAX_STATES, num_round_trips: int = 100, has_code: bool = False
    ) -> None:
        self.env, self.max_states = env, max_states
        self.num_round_trips, self.has_code = num_round_trips, has_code
        self.subject = type(env).__name__

    @cached_property
    def state_graph(self) -> StateGraph:
        """All states."""
        return enumerate_states(self.env, max_states=self.max_states)

    def key(self, states: GraphStates, index: int = 0) -> str:
        """Return the identity of a state up to isomorphism."""
        return self.env.coloured_graph(states, index).canonical_key()

    def keys(self, states: GraphStates) -> list[str]:
        """Return the identities of states [B]."""
        return [self.key(states, index) for index in range(len(states))]

    def check_rules_of_all_transitions(self) -> None:
        """Legal states, inverse actions, masks in both directions, isomorphism codes and automorphism counts."""
        report = check_rules(self.env, self.state_graph.states, is_complete=True, seed=0)
        for violation in report.violations:
            times = f"{violation.num} time{'s' * (violation.num != 1)}"
            expect(False, f"{violation.check.value}, {times}, first {violation.example}")

    def check_terminal_object_survives_json(self) -> None:
        """The restored states have the identity, canonical keys and number of backward actions of the originals.

        For environments with `describe`, without which no object is read.
        """
        env, terminal = self.env, self.state_graph.terminal
        if not env.is_readable(self.state_graph.states[terminal]):
            return
        states = self.state_graph.states[terminal[:: max(1, len(terminal) // self.num_round_trips)]]
        objects = [env.terminal(states, i) for i in range(len(states))]
        restored = env.states_of([env.terminal_type.from_dict(json.loads(json.dumps(x.to_dict()))) for x in objects])
        place = "expected states_of to restore the states of terminal objects from JSON"
        expect(self.keys(restored) == self.keys(states), f"{place}, got other ones")
        expect(torch.equal(env.identify(restored), env.identify(states)), f"{place}, got another code of identify")
        for kind, mask in env.backward_masks(states).masks.items():
            other = env.backward_masks(restored).masks[kind]
            expect(
                torch.equal(other.flatten(1).sum(1), mask.flatten(1).sum(1)),
                f"{place}, got other numbers of backward actions {kind.name}",
            )

    def check_step_changes_no_state_in_place(self) -> None:
        states = self.env.initial_states(3)
        copy = states.clone()
        self.env.step(states, self.env.forward_masks(states).sample_uniform(torch.Generator().manual_seed(0)))
        expect(bool(states.equals(copy).all()), "expected step to return new states, got changes in the given ones")

    def check_step_accepts_exactly_the_legal_actions(self) -> None:
        env, generator, num_actions = self.env, torch.Generator().manual_seed(3), Counter()
        for states, _ in random_walk(env, num=6, seed=3):
            for kind in (*env.forward_types, *env.backward_types):
                for _ in range(3):
                    num_actions[self._is_accepted_iff_legal(states[:1], kind, generator)] += 1
        expect(num_actions[True] and num_actions[False], "expected legal and illegal actions on random walks")

    def _is_accepted_iff_legal(self, state: GraphStates, kind: GraphActionType, generator: torch.Generator) -> bool:
        """Try a random action of a type, and return whether it is legal."""
        env = self.env
        sizes = env.vocabulary.num_rows(kind), env.vocabulary.num_columns(kind)
        row, column = (int(torch.randint(size, (1,), generator=generator)) for size in sizes)
        action = ActionBatch(*(torch.tensor([value]) for value in (int(kind), row, column)))
        masks = env.forward_masks(state) if kind in env.forward_types else env.backward_masks(state)
        if bool(masks.masks[kind][0, row, column]):
            env.step(state, action)
            return True
        doing = f"the illegal action {kind.name} [{row}, {column}]"
        expect_error(IllegalAction, r"graph 0: .*illegal: ", lambda: env.step(state, action), doing=doing)
        return False

    def check_action_index_round_trip(self) -> None:
        env = self.env
        context = GraphBuildingEnvContext(env)
        for states, actions in random_walk(env, num=8, seed=4):
            batch = context.to_batch(states)
            restored = context.from_indices(batch, context.to_indices(batch, actions))
            for name in ("kind", "row", "column"):
                same = torch.equal(getattr(restored, name), getattr(actions, name))
                expect(same, f"expected from_indices to restore the {name} of actions from to_indices")
            action = env.decode(states, 0, actions)
            indices = int(actions.kind[0]), int(actions.row[0]), int(actions.column[0])
            expect(env.encode(action) == indices, f"{action}: expected encode to undo decode")
            index = context.action_to_index(states, 0, action)
            expect(
                context.index_to_action(states, 0, index) == action,
                f"{action}: expected index_to_action to undo action_to_index",
            )

    def check_batch_equals_collated_graphs(self) -> None:
        from torch_geometric.data import Batch  # takes two CPU seconds

        context = GraphBuildingEnvContext(self.env)
        for states, _ in random_walk(self.env, num=4, seed=5):
            direct: Any = context.to_batch(states)
            collated: Any = Batch.from_data_list([context.to_data(states, i) for i in range(len(states))])
            expect(sorted(direct.keys()) == sorted(collated.keys()), "expected to_batch to have the fields of to_data")
            expect(direct.num_graphs == collated.num_graphs == len(states), "expected one graph of a batch per state")
            for name in direct.keys():  # noqa: SIM118 (a Batch is not a dict)
                expect(torch.equal(direct[name], collated[name]), f"expected to_batch and to_data to agree on {name}")
            expect(direct.x.shape[1] == context.num_node_features, "expected num_node_features features per node")
            expect(direct.edge_attr.shape[1] == context.num_edge_features, "expected num_edge_features per edge")

    def check_features_differ_between_states(self) -> None:
        """The policy cannot distinguish two states with equal features and edges."""
        states = self.state_graph.states[:: max(1, len(self.state_graph) // 300)]
        batch: Any = GraphBuildingEnvContext(self.env).to_batch(states)
        owner, edges = batch.batch[batch.edge_index[0]].tolist(), [[] for _ in range(batch.num_graphs)]
        ends = (batch.edge_index - batch.ptr[batch.batch[batch.edge_index[0]]]).T.tolist()
        for graph, *edge in zip(owner, ends, batch.edge_attr.tolist(), strict=True):
            edges[graph].append(edge)
        nodes = [x.tolist() for x in batch.x.split(batch.ptr.diff().tolist())]
        encodings = {str((x, sorted(edge_list))) for x, edge_list in zip(nodes, edges, strict=True)}
        num = batch.num_graphs
        expect(num > 1, f"expected more than one state, got {num}")
        expect(len(encodings) == num, f"expected different features of {num} states, got {len(encodings)} encodings")

    def check_limits_reach_exactly_what_they_allow(self) -> None:
        """Under a cap the masks reach each terminal state within it, by `sizes`, and no other."""
        env, whole = self.env, self.state_graph
        sizes = env.sizes(every := whole.states[whole.terminal])
        expect(sizes.shape == every.limit.shape, "expected sizes to return a column for each of vocabulary.limits")
        expect(tuple(sizes.amin(0)) == env.smallest_sizes, "expected smallest_sizes to be the smallest of `sizes`")
        for cap in sizes[:: max(1, len(sizes) // 3)] if env.vocabulary.limits else ():
            part = enumerate_states(env, max_states=self.max_states, limit=cap)
            for violation in limit_violations(env, [part.states[part.terminal]], every):
                expect(False, f"expected the masks to keep a cap, got {violation.example}")

    def check_numbers_are_equal_for_isomorphic_states(self) -> None:
        """`numbers` has a value for each terminal state, the same for all orders in which it can be built."""
        walks = random_walk(self.env, num=64, seed=6)
        states = GraphStates.cat([states[actions.kind == int(GraphActionType.Stop)] for states, actions in walks])
        group = self.env.identify(states).unique(return_inverse=True)[1]
        member = torch.empty_like(group).scatter_(0, group, torch.arange(len(group)))[group]  # one of the same code
        for name, _, values in self.env.numbers(states):
            expect(values.shape == group.shape, f"expected a value of {name!r} in `numbers` for each of the states")
            same = torch.allclose(values.double(), values.double()[member], equal_nan=True)
            expect(same, f"expected one value of {name!r} in `numbers` for isomorphic states")

    def check_terminal_objects_are_states_up_to_isomorphism(self) -> None:
        """One canonical key per state, unchanged by JSON, and the automorphism count of the state."""
        graph, keys = self.state_graph, set()
        for index in graph.terminal.tolist():
            candidate: Any = self.env.terminal(graph.states, index)
            keys.add(candidate.canonical_key())
            restored = type(candidate).from_dict(candidate.to_dict())
            expect(
                restored.canonical_key() == candidate.canonical_key(),
                "expected to_dict and from_dict of a terminal object to keep its canonical key",
            )
            count = 1 if self.has_code else candidate.num_automorphisms()
            expect(
                graph.num_automorphisms[index] == count,
                f"expected a terminal object to have the {int(graph.num_automorphisms[index])} automorphisms of its "
                f"state, got {count}",
            )
        num = len(graph.terminal)
        expect(len(keys) == num, f"expected {num} different terminal objects, got {len(keys)}: terminal loses a part")

    def check_unknown_value_is_refused(self) -> None:
        action = GraphAction(GraphActionType.AddNode, source=0, value="nonsense")
        pattern = r"expected a node type out of .*got 'nonsense'"
        expect_error(ValueError, pattern, lambda: self.env.encode(action), doing="an unknown node type")
