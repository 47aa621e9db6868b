"""Checks of an environment's transitions: masks, inverse actions, legal states, isomorphism codes and automorphisms.

They use no policy and no reward. If all hold, flows that balance R(x) |Aut(x)| sample x in proportion to R(x).
Letters: B states, M actions of them, E pairs of states (G, G') joined by actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.certificate.exact import Steps, first_positions, legal_steps
from gflownet.certificate.result import Check, Violation
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import ABSENT, MAIN_EDGE, UNSET, GraphStates, count_bridges, transitive_closure

_MAX_TEXT = 300  # characters of a state as text


def first_problem(env: Environment, states: GraphStates) -> tuple[Tensor, str]:
    """Return which states violate the first violated condition, [B] bool, and the condition; none: all False, ""."""
    for text, violated in _problems(env, states):
        if bool(violated.any()):
            return violated, text
    return torch.zeros(len(states), dtype=torch.bool), ""


def shown_state(env: Environment, states: GraphStates, index: int) -> str:
    """Return a state as text: `3 nodes: 0 red, 1 red, 2 blue; edges: 0-1, 1-2`."""
    graph = env.coloured_graph(states, index)
    nodes = ", ".join(f"{node} {_shown(colour)}" for node, colour in enumerate(graph.node_colours))
    labels = {ends: _shown(colour) for ends, colour in graph.edge_colours.items()}
    plain = set(labels.values()) == {env.vocabulary.edge_types[MAIN_EDGE]}
    arrow = "->" if graph.directed else "-"
    edges = ", ".join(
        f"{source}{arrow}{target}{'' if plain else ' ' + labels[source, target]}" for source, target in sorted(labels)
    )
    num = len(graph.node_colours)
    text = f"{num} node{'s' * (num != 1)}: {nodes}" if num else "no nodes"
    text += f"; edges: {edges}" if edges else "; no edges"
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."


def shown_step(env: Environment, states: GraphStates, index: int, actions: ActionBatch) -> str:
    """Return action `index` on state `index` as text: the action, then the state."""
    return f"{env.decode(states, index, actions)} on [{shown_state(env, states, index)}]"


def _shown(colour: str) -> str:
    """Return a colour without empty fields: `red||0` as `red`, `a|1,?` as `a(1,?)`."""
    name, *ranks = colour.split("|")
    details = [part for part in ranks[:1] if part] + [f"rank {part}" for part in ranks[1:] if part not in ("", "0")]
    return f"{name}({', '.join(details)})" if details else name


def _problems(env: Environment, states: GraphStates) -> Iterator[tuple[str, Tensor]]:
    """Yield conditions with the states that violate them, [B] bool, cheap ones first."""
    vocabulary = env.vocabulary
    inside = torch.arange(vocabulary.max_nodes) < states.num_nodes[:, None]
    pair = inside[:, :, None] & inside[:, None, :]
    edge = states.edge_type != ABSENT
    yield "nodes fill the first positions", _any((states.node_type != ABSENT) != inside)
    yield "absent nodes have no attributes", _any((states.node_attr != UNSET).any(-1) & ~inside)
    yield "edges join nodes of the graph", _any(edge & ~pair)
    yield "absent edges have no attributes", _any((states.edge_attr != UNSET).any(-1) & ~edge)
    yield "absent edges have no rank", _any((states.edge_order != 0) & ~edge)
    yield (
        "types are in the vocabulary",
        _any(states.node_type >= len(vocabulary.node_types)) | _any(states.edge_type >= len(vocabulary.edge_types)),
    )
    for values, attributes in (
        (states.node_attr, vocabulary.node_attributes),
        (states.edge_attr, vocabulary.edge_attributes),
    ):
        for position, attribute in enumerate(attributes):
            outside = values[..., position] >= len(attribute.values)
            yield f"values of {attribute.name} are in the vocabulary", _any(outside)
    if vocabulary.ranked:
        yield "ranked inputs have ranks 0, 1, ...", _any(_has_wrong_ranks(env, states))
    if vocabulary.directed:
        closure = transitive_closure(states.edge_type == MAIN_EDGE)
        yield "reachability follows from the edges", _any(states.reach != closure)
    else:
        yield "undirected edges are stored both ways", _any(states.edge_type != states.edge_type.transpose(1, 2))
        yield "the numbers of bridges follow from the edges", _any(states.num_bridges != count_bridges(edge))
    yield "some forward action is legal", env.forward_masks(states).num_actions() == 0


def _has_wrong_ranks(env: Environment, states: GraphStates) -> Tensor:
    """Return the nodes whose in-edges have wrong ranks, [B, N]: 0, 1, ... in ranking nodes, else 0."""
    edge = states.edge_type != ABSENT
    ranks = states.edge_order.long().masked_fill(~edge, states.edge_order.shape[1])
    ordered = ranks.sort(1).values
    num_in = edge.sum(1)
    expected = torch.arange(edge.shape[1])[None, :, None]
    wrong = ((ordered != expected) & (expected < num_in[:, None, :])).any(1)
    return torch.where(env.ordered_nodes(states), wrong, (states.edge_order != 0).any(1))


def _any(violated: Tensor) -> Tensor:
    return violated.flatten(1).any(1)


class Violations:
    """The number of violations of each check and the first one as text."""

    def __init__(self) -> None:
        self._num: dict[Check, int] = {}
        self._example: dict[Check, str] = {}

    def add(self, check: Check, num: int, example: str) -> None:
        """Count violations; the first example of a check is stored."""
        self._num[check] = self._num.get(check, 0) + num
        self._example.setdefault(check, example)

    def __len__(self) -> int:
        """Return the number of failed checks."""
        return len(self._num)

    def listed(self) -> tuple[Violation, ...]:
        """Return the failed checks, causes before consequences."""
        return tuple(Violation(check, self._num[check], self._example[check]) for check in Check if check in self._num)


@dataclass(frozen=True)
class Edges:
    """Numbers of labelled actions between E pairs of isomorphism codes; the state before is one labelled graph."""

    before: Tensor  # [E] int64 code
    after: Tensor  # [E] int64 code
    num: Tensor  # [E]

    @staticmethod
    def of(before: Tensor, after: Tensor) -> Edges:
        """Count equal pairs of codes."""
        if not len(before):
            return Edges(before, after, before)
        pairs, num = torch.stack([before, after], 1).unique(dim=0, return_counts=True)
        before, after = pairs.T.contiguous()
        return Edges(before, after, num)

    @property
    def total(self) -> int:
        """Return the number of labelled actions."""
        return int(self.num.sum())


def check_forward(env: Environment, states: GraphStates, violations: Violations) -> tuple[Edges, GraphStates]:
    """Check every forward action; return the edges and one state of each class that actions lead to."""
    code, codes_after = env.identify(states), torch.zeros(0, dtype=torch.int64)
    befores, afters, children = [], [], [states[:0]]
    for steps in legal_steps(env, states):
        _check_states(env, steps, violations)
        is_undone = _is_undone(env, steps, env.backward_types)
        _add(violations, Check.NO_REVERSE, env, steps, ~is_undone)
        hidden = is_undone & ~env.backward_masks(steps.after).contains(steps.inverse)
        _add(violations, Check.HIDDEN, env, steps, hidden, shows_inverse=True)
        after = env.identify(steps.after)
        befores.append(code[steps.owner])
        afters.append(after)
        new, _ = first_positions(after)
        new = new[~torch.isin(after[new], codes_after)]
        codes_after = torch.cat([codes_after, after[new]])
        children.append(steps.after[new])
    empty = [code[:0]]
    return Edges.of(torch.cat(befores or empty), torch.cat(afters or empty)), GraphStates.cat(children)


def check_backward(
    env: Environment, states: GraphStates, violations: Violations, *, reachable: Tensor, is_complete: bool
) -> tuple[Edges, GraphStates]:
    """Check every backward action; return the edges from the later to the earlier state, and the earlier states.

    Args:
        env: the environment.
        states: B states.
        violations: gets the violations.
        reachable: codes of reachable states.
        is_complete: whether these are all.
    """
    code = env.identify(states)
    befores, afters, parents = [], [], [states[:0]]
    for steps in legal_steps(env, states, backward=True):
        after = env.identify(steps.after)
        is_undone = _is_undone(env, steps, env.forward_types)
        hidden = ~env.forward_masks(steps.after).contains(steps.inverse)
        is_reached = torch.isin(after, reachable)
        disagree = is_undone & hidden & is_reached
        _add_disagreements(violations, env, steps, disagree)
        wrong = ~is_undone | hidden | ~is_reached if is_complete else ~is_undone | hidden
        _add(violations, Check.ALLOWED, env, steps, wrong & ~disagree)
        _check_states(env, steps, violations)
        befores.append(code[steps.owner])
        afters.append(after)
        if not is_complete:
            parents.append(steps.after)
    empty = [code[:0]]
    return Edges.of(torch.cat(befores or empty), torch.cat(afters or empty)), GraphStates.cat(parents)


def check_paths_back(
    env: Environment, states: GraphStates, violations: Violations, *, generator: torch.Generator, max_steps: int
) -> None:
    """Check that random removals lead from every state to the initial one."""
    initial, current = env.identify(env.initial_states(1)), states
    for _ in range(max_steps):
        masks = env.backward_masks(current)
        at_end = masks.num_actions() == 0
        stuck = at_end & (env.identify(current) != initial)
        if bool(stuck.any()):
            text = shown_state(env, current, int(stuck.nonzero()[0]))
            violations.add(Check.ALLOWED, int(stuck.sum()), f"removals end at [{text}], not at the initial state")
        goes_on = (~at_end).nonzero().squeeze(1)
        if not len(goes_on):
            return
        current = current[goes_on]
        current = env.apply(current, env.backward_masks(current).sample_uniform(generator))
    violations.add(
        Check.ALLOWED,
        len(current),
        f"{max_steps} removals do not lead to the initial state, but to [{shown_state(env, current, 0)}]",
    )


def _check_states(env: Environment, steps: Steps, violations: Violations) -> None:
    violated, condition = first_problem(env, steps.after)
    if condition:
        index = int(violated.nonzero()[0])
        example = f"{shown_step(env, steps.before, index, steps.action)} violates: {condition}"
        violations.add(Check.ILLEGAL_STATE, int(violated.sum()), example)


def _is_undone(env: Environment, steps: Steps, kinds: tuple[GraphActionType, ...]) -> Tensor:
    """Return whether the inverse leads back, and whether its own inverse is the action, up to isomorphism, [M]."""
    is_undone = torch.zeros(len(steps.owner), dtype=torch.bool)
    index = _is_action(env, steps.inverse, kinds).nonzero().squeeze(1)
    if not len(index):
        return is_undone
    before, action, after, inverse = (
        steps.before[index],
        steps.action[index],
        steps.after[index],
        steps.inverse[index],
    )
    restored, twice = env.apply(after, inverse), env.reverse(after, inverse)
    same = restored.equals(before)
    for part, other in zip(twice.parts, action.parts, strict=True):
        same &= part == other
    # Nodes may come back in another order.
    differing = (~same).nonzero().squeeze(1)
    codes = env.identify_actions(before[differing], action[differing])
    possible = _is_action(env, twice[differing], tuple(GraphActionType(k) for k in action.kind.unique().tolist()))
    moved = differing[possible]
    same[moved] = env.identify_actions(restored[moved], twice[moved]) == codes[possible]
    is_undone[index] = same
    return is_undone


def _is_action(env: Environment, actions: ActionBatch, kinds: tuple[GraphActionType, ...]) -> Tensor:
    """Return which actions have one of these kinds and a row and a column of the vocabulary, [M]."""
    valid = torch.zeros(len(actions), dtype=torch.bool)
    for kind in kinds:
        inside = (actions.row >= 0) & (actions.row < env.vocabulary.num_rows(kind))
        inside &= (actions.column >= 0) & (actions.column < env.vocabulary.num_columns(kind))
        valid |= inside & (actions.kind == int(kind))
    return valid


def _add(
    violations: Violations,
    check: Check,
    env: Environment,
    steps: Steps,
    violated: Tensor,
    *,
    shows_inverse: bool = False,
) -> None:
    """Count the violations [M] with the first step, or its inverse, as the example."""
    if not bool(violated.any()):
        return
    index = int(violated.nonzero()[0])
    states, actions = (steps.after, steps.inverse) if shows_inverse else (steps.before, steps.action)
    violations.add(check, int(violated.sum()), shown_step(env, states, index, actions))


def _add_disagreements(violations: Violations, env: Environment, steps: Steps, violated: Tensor) -> None:
    """Count legal removals to reachable states with an illegal inverse; either mask may be wrong."""
    if bool(violated.any()):
        index = int(violated.nonzero()[0])
        removal = shown_step(env, steps.before, index, steps.action)
        inverse = shown_step(env, steps.after, index, steps.inverse)
        violations.add(Check.DISAGREE, int(violated.sum()), f"{removal} is legal, but not {inverse}")
