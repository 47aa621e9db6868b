"""Checks of an environment's transitions: masks, inverse actions, legal states, isomorphism codes and automorphisms.

They use no policy and no reward. If all hold, flows that balance R(x) |Aut(x)| sample x in proportion to R(x).
Letters: B states, M actions of them, E pairs of states (G, G') joined by actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.certificate.exact import Steps, first_positions, legal_steps
from gflownet.certificate.result import Check, Violation
from gflownet.certificate.state_checks import first_problem, shown_state, shown_step
from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates


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
    code, seen = env.identify(states), torch.zeros(0, dtype=torch.int64)
    befores, afters, children = [], [], [states[:0]]
    for steps in legal_steps(env, states):
        _check_states(env, steps, violations)
        undone = _is_undone(env, steps, env.backward_types)
        _add(violations, Check.NO_REVERSE, env, steps, ~undone)
        hidden = undone & ~env.backward_masks(steps.after).contains(steps.inverse)
        _add(violations, Check.HIDDEN, env, steps, hidden, shows_inverse=True)
        after = env.identify(steps.after)
        befores.append(code[steps.owner])
        afters.append(after)
        new, _ = first_positions(after)
        new = new[~torch.isin(after[new], seen)]
        seen = torch.cat([seen, after[new]])
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
        undone = _is_undone(env, steps, env.forward_types)
        hidden = ~env.forward_masks(steps.after).contains(steps.inverse)
        is_reached = torch.isin(after, reachable)
        disagree = undone & hidden & is_reached
        _add_disagreements(violations, env, steps, disagree)
        wrong = ~undone | hidden | ~is_reached if is_complete else ~undone | hidden
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
    undone = torch.zeros(len(steps.owner), dtype=torch.bool)
    index = _is_action(env, steps.inverse, kinds).nonzero().squeeze(1)
    if not len(index):
        return undone
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
    rest = (~same).nonzero().squeeze(1)
    codes = env.identify_actions(before[rest], action[rest])
    possible = _is_action(env, twice[rest], tuple(GraphActionType(k) for k in action.kind.unique().tolist()))
    moved = rest[possible]
    same[moved] = env.identify_actions(restored[moved], twice[moved]) == codes[possible]
    undone[index] = same
    return undone


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
