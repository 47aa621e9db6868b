"""The rules of an environment, checked on all transitions of a space or on those of sampled states.

Letters: B states, E pairs of states (G, G') joined by actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.certificate.exact import first_positions, legal_steps
from gflownet.certificate.result import Check, RuleReport, Violation
from gflownet.certificate.transitions import (
    Edges,
    Violations,
    check_backward,
    check_forward,
    check_paths_back,
    shown_state,
)
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import TrajectoryBatch

_NUM_PATHS = 100  # paths back to the initial state
_MAX_PATH = 1_000  # steps of a path


_ROUNDING = 1e-4  # nats, of a log-probability in single precision

_MAX_PAIRS = 800_000  # pairs of nodes in all graphs after the forward actions of sampled states


@dataclass(frozen=True)
class SampleSizes:
    """Limits of the expensive checks: a few seconds for all states, about one second for sampled ones."""

    num_counted: int = 2_000  # states with an independent automorphism count
    num_compared: int = 2_000  # states with an independent canonical key
    num_actions: int = 2_000  # forward actions, unless the states are complete
    num_children: int = 200  # states after these whose backward actions are checked, unless the states are complete

    @staticmethod
    def of(env: Environment, *, is_complete: bool) -> SampleSizes:
        """Return the limits; fewer sampled states for environments with large graphs."""
        if is_complete:
            return SampleSizes()
        share = min(1.0, _MAX_PAIRS / (2_000 * env.vocabulary.max_nodes**2))
        return SampleSizes(*(max(1, round(share * size)) for size in (300, 600, 2_000, 200)))


def check_rules(env: Environment, states: GraphStates, *, is_complete: bool, seed: int) -> RuleReport:
    """Check the rules of an environment, cheap checks first.

    Args:
        env: the environment.
        states: states without isomorphic pairs, the initial one first if they are complete.
        is_complete: whether they are all reachable states; otherwise a random part of them is checked.
        seed: of the samples.
    """
    sizes = SampleSizes.of(env, is_complete=is_complete)
    violations, generator = Violations(), torch.Generator().manual_seed(seed)
    reachable = env.identify(states)
    _check_list(env, states, violations, is_complete=is_complete)
    if not is_complete:
        states = _sampled(env, states, sizes.num_actions, generator)
    forward, children = check_forward(env, states, violations)
    if is_complete:
        checked = states
    else:
        children = children[torch.randperm(len(children), generator=generator)[: sizes.num_children]]
        checked = _distinct(env, GraphStates.cat([states, children]))
    backward, parents = check_backward(env, checked, violations, reachable=reachable, is_complete=is_complete)
    if len(parents):
        sampled = torch.randperm(len(parents), generator=generator)[:_NUM_PATHS]
        check_paths_back(env, parents[sampled], violations, generator=generator, max_steps=_MAX_PATH)
    num_compared = _check_codes(env, states, violations, generator, max_keys=sizes.num_compared)
    num_edges, num_counted = _check_symmetries(
        env, checked, (forward, backward), violations, generator, max_counted=sizes.num_counted
    )
    return RuleReport(
        is_complete=is_complete,
        num_states=len(states),
        num_forward=forward.total,
        num_backward=backward.total,
        num_edges=num_edges,
        num_counted=num_counted,
        num_compared=num_compared,
        violations=violations.listed(),
    )


def limit_violations(env: Environment, reached: Sequence[GraphStates], every: GraphStates) -> Iterator[Violation]:
    """Yield the terminal states that the masks reach above a cap, or miss within it.

    Args:
        env: the environment, whose `sizes` decide.
        reached: terminal states, each batch under one limit.
        every: all terminal states of the space; empty if they are unknown, then none is missed.
    """
    names = env.vocabulary.limits
    for states in reached if names else ():
        within = every[(env.sizes(every) <= states.limit[:1]).all(1)].with_limit(states.limit[0])
        missed = ~torch.isin(env.identify(within), env.identify(states))
        wrong = GraphStates.cat([states[(env.sizes(states) > states.limit).any(1)], within[missed]])
        if len(wrong):
            sizes, caps = (dict(zip(names, x[0].tolist(), strict=True)) for x in (env.sizes(wrong), wrong.limit))
            yield Violation(Check.LIMIT, len(wrong), f"[{shown_state(env, wrong, 0)}] has {sizes}, caps {caps}")


def uniform_violations(env: Environment, trajectories: TrajectoryBatch, name: str) -> Iterator[Violation]:
    """Yield the steps whose uniform log P_B is not that of the masks of the state after, or that are not undone."""
    step, successor = trajectories.successors()
    after = trajectories.states[successor]
    expected, found = env.backward_masks(after).num_actions(), trajectories.log_backward[step]
    wrong = ((found + expected.log()).abs() > _ROUNDING).nonzero().squeeze(1)
    if len(wrong):
        index = int(wrong[0])
        text = f"1 / {math.exp(-float(found[index])):.4g} instead of 1 / {int(expected[index])} into "
        yield Violation(Check.UNIFORM, len(wrong), f"{text}[{shown_state(env, after, index)}], {name}")
    undo = trajectories.backward[step]
    is_undone = env.backward_masks(after).contains(undo)
    legal = is_undone.nonzero().squeeze(1)
    back, before = env.apply(after[legal], undo[legal]), trajectories.states[step[legal]]
    is_undone[legal] = env.identify(back) == env.identify(before)
    if len(wrong := (~is_undone).nonzero().squeeze(1)):
        text = f"the inverse of a step into [{shown_state(env, after, int(wrong[0]))}] does not undo it, {name}"
        yield Violation(Check.DISAGREE, len(wrong), text)


def _sampled(env: Environment, states: GraphStates, num_actions: int, generator: torch.Generator) -> GraphStates:
    """Return random states, the initial one first, with at most `num_actions` forward actions; at least two."""
    order = torch.randperm(len(states), generator=generator)[:num_actions]
    states = _distinct(env, GraphStates.cat([env.initial_states(1), states[order]]))
    total = env.forward_masks(states).num_actions().cumsum(0)
    return states[: max(2, int((total <= num_actions).sum()))]


def _distinct(env: Environment, states: GraphStates) -> GraphStates:
    """Return the first state of each isomorphism class, in order."""
    first, _ = first_positions(env.identify(states))
    return states[first.sort().values]


def _check_list(env: Environment, states: GraphStates, violations: Violations, *, is_complete: bool) -> None:
    """Compare the list of `Environment.every_state`, where there is one, with the reachable states."""
    listed, initial = env.every_state(), env.initial_states(1)
    if listed is None:
        return
    codes, reachable = env.identify(listed), env.identify(states)
    if not torch.equal(codes[:1], env.identify(initial)):
        violations.add(Check.LIST, 1, f"expected [{shown_state(env, initial, 0)}] first, the initial state")
    for wrong, group, problem in (
        (~torch.isin(reachable, codes), states, "is missing"),
        (~torch.isin(codes, reachable) & is_complete, listed, "is not reachable"),
    ):
        if bool(wrong.any()):
            violations.add(Check.LIST, int(wrong.sum()), f"[{shown_state(env, group[wrong], 0)}] {problem}")
    if (num := len(codes) - len(codes.unique())) > 0:
        violations.add(Check.LIST, num, f"expected {len(codes) - num} different states, got {len(codes)}")


def _check_codes(
    env: Environment, states: GraphStates, violations: Violations, generator: torch.Generator, *, max_keys: int
) -> int:
    """Compare codes with canonical keys, found one graph at a time; return the number of keys."""
    by_code: dict[int, tuple[str, GraphStates, int]] = {}
    by_key: dict[str, tuple[int, GraphStates, int]] = {}
    num = 0
    for batch in _states_to_compare(env, states, generator, max_keys):
        num += len(batch)
        for index, code in enumerate(env.identify(batch).tolist()):
            key = env.coloured_graph(batch, index).canonical_key()
            for first, value, problem in (
                (by_code.setdefault(code, (key, batch, index)), key, "differ with equal codes"),
                (by_key.setdefault(key, (code, batch, index)), code, "are isomorphic with different codes"),
            ):
                if first[0] != value:
                    shown = " and ".join(f"[{shown_state(env, *where)}]" for where in (first[1:], (batch, index)))
                    violations.add(Check.CODES, 1, f"{shown} {problem}")
    return num


def _states_to_compare(
    env: Environment, states: GraphStates, generator: torch.Generator, max_states: int
) -> Iterator[GraphStates]:
    """Yield random states, and states after random actions on them."""
    sampled = states[torch.randperm(len(states), generator=generator)[: max_states // 2]]
    yield sampled
    left = max_states - len(sampled)
    for steps in legal_steps(env, sampled[: max_states // 5]):
        after = steps.after[torch.randperm(len(steps.owner), generator=generator)[:left]]
        left -= len(after)
        yield after
        if not left:
            return


def _check_symmetries(
    env: Environment,
    states: GraphStates,
    edges_both_ways: tuple[Edges, Edges],
    violations: Violations,
    generator: torch.Generator,
    *,
    max_counted: int,
) -> tuple[int, int]:
    """Check automorphism counts and the orbit identity; return the numbers of edges and of counted states.

    States of violated edges are counted first.
    """
    counts = torch.tensor(env.num_automorphisms(states), dtype=torch.float64)
    edges = _joined(*edges_both_ways, env.identify(states))
    violated = edges.violated(counts)
    is_suspect = torch.zeros(len(states), dtype=torch.bool)
    is_suspect[edges.before[violated]] = is_suspect[edges.after[violated]] = True
    is_suspect[0] = True  # the identity starts from the initial state
    order = torch.randperm(len(counts), generator=generator)
    order = torch.cat([order[is_suspect[order]], order[~is_suspect[order]]])[:max_counted]
    for index in order.sort().values.tolist():  # the smallest state is the example
        count = env.coloured_graph(states, index).num_automorphisms()
        if count != int(counts[index]):
            example = f"{int(counts[index])} instead of {count} for [{shown_state(env, states, index)}]"
            violations.add(Check.AUTOMORPHISMS, 1, example)
            counts[index] = count
    violated = edges.violated(counts)
    if len(violated):
        _add_orbits(env, states, counts, edges, violated, violations)
    return len(edges.before), len(order)


@dataclass(frozen=True)
class _Joined:
    """E pairs (G, G') with the numbers of labelled actions in both directions, 0 where there is none."""

    before: Tensor  # [E] position of G
    after: Tensor  # [E] position of G'
    num_forward: Tensor  # [E]
    num_backward: Tensor  # [E]

    def violated(self, counts: Tensor) -> Tensor:
        """Return the indices of the edges that violate n_f |Aut G'| = n_b |Aut G|."""
        return (self.num_forward * counts[self.after] != self.num_backward * counts[self.before]).nonzero().squeeze(1)


def _joined(forward: Edges, backward: Edges, codes: Tensor) -> _Joined:
    """Return the forward edges and the backward edges between states whose actions are known on both sides."""
    inside = torch.isin(forward.before, codes) & torch.isin(forward.after, codes)
    # All forward actions of the states before are known.
    outside = torch.isin(backward.after, forward.before)
    before = torch.cat([forward.before[inside], backward.after[outside]])
    after = torch.cat([forward.after[inside], backward.before[outside]])
    pairs, owner = torch.stack([before, after], 1).unique(dim=0, return_inverse=True)
    num = torch.zeros(2, len(pairs), dtype=torch.int64)
    is_backward = (torch.arange(len(owner)) >= int(inside.sum())).long()
    num[is_backward, owner] = torch.cat([forward.num[inside], backward.num[outside]])
    values, order = codes.sort()
    positions = order[torch.searchsorted(values, pairs.T.contiguous())]
    return _Joined(*positions, *num)


def _add_orbits(
    env: Environment, states: GraphStates, counts: Tensor, edges: _Joined, violated: Tensor, violations: Violations
) -> None:
    """Add the violations of the orbit identity, with the first edge as the example, and their cause if none is known.

    The cause is a mask: the forward actions are legal and have legal inverses.
    """
    first = int(violated[0])
    before, after, num_forward, num_backward = (
        int(each[first]) for each in (edges.before, edges.after, edges.num_forward, edges.num_backward)
    )
    expected = num_forward * counts[after] / counts[before]
    states_shown = f"from [{shown_state(env, states, after)}] to [{shown_state(env, states, before)}]"
    if not len(violations):
        cause = Check.HIDDEN if num_backward < expected else Check.ALLOWED
        text = f"{num_backward} removals lead {states_shown}, expected {expected:g}"
        violations.add(cause, len(violated), text)
    products = f"{num_forward} * {counts[after]:.0f} is not {num_backward} * {counts[before]:.0f}"
    violations.add(Check.ORBITS, len(violated), f"{products}, removals lead {states_shown}")
