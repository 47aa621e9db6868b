"""The rules of an environment, checked on all transitions of a space or on those of sampled states.

Letters: B states, E pairs of states (G, G') joined by actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.certificate.automorphisms import LabelledGraph, are_isomorphic, count_automorphisms, labelled_graphs
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

_NUM_PATHS = 100  # paths back to the initial state
_MAX_PATH = 1_000  # steps of a path


_MAX_PAIRS = 800_000  # pairs of nodes in all graphs after the forward actions of sampled states


@dataclass(frozen=True)
class SampleSizes:
    """Limits of the expensive checks: a few seconds for all states, about one second for sampled ones."""

    num_counted: int = 2_000  # states with an independent automorphism count
    num_compared: int = 1_000  # pairs of states with an independent isomorphism test
    num_actions: int = 2_000  # forward actions, unless the states are complete
    num_children: int = 200  # states after these whose backward actions are checked, unless the states are complete

    @staticmethod
    def of(env: Environment, *, is_complete: bool) -> SampleSizes:
        """Return the limits; fewer sampled states for environments with large graphs."""
        if is_complete:
            return SampleSizes()
        share = min(1.0, _MAX_PAIRS / (2_000 * env.vocabulary.max_nodes**2))
        return SampleSizes(*(max(1, round(share * size)) for size in (300, 300, 2_000, 200)))


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
    num_compared = _check_codes(env, states, violations, generator, max_pairs=sizes.num_compared)
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


def _check_codes(
    env: Environment, states: GraphStates, violations: Violations, generator: torch.Generator, *, max_pairs: int
) -> int:
    """Compare codes with isomorphism tests; return the number of pairs.

    The pairs are states with equal neighbourhoods of their nodes, and states after actions on one state.
    """
    sampled = torch.randperm(len(states), generator=generator)[: max_pairs // 5]
    num, num_equal = 0, _check_equal_neighbourhoods(env, states, violations, max_pairs=max_pairs)
    for steps in legal_steps(env, states[sampled]):
        code = env.identify(steps.after)
        order = code.argsort(stable=True)
        order = order[steps.owner[order].argsort(stable=True)]
        first, second = order[:-1], order[1:]
        joined = (steps.owner[first] == steps.owner[second]).nonzero().squeeze(1)
        joined = joined[torch.randperm(len(joined), generator=generator)[: max_pairs - num]]
        ends = torch.cat([first[joined], second[joined]])
        graphs = labelled_graphs(steps.after[ends])
        for position, pair in enumerate(joined.tolist()):
            one, other = int(first[pair]), int(second[pair])
            isomorphic = are_isomorphic(graphs[position], graphs[position + len(joined)])
            if isomorphic is not None and isomorphic != bool(code[one] == code[other]):
                states_shown = " and ".join(f"[{shown_state(env, steps.after, i)}]" for i in (one, other))
                problem = "are isomorphic with different codes" if isomorphic else "differ with equal codes"
                violations.add(Check.CODES, 1, f"{states_shown} {problem}")
        num += len(joined)
        if num >= max_pairs:
            break
    return num + num_equal


def _check_equal_neighbourhoods(
    env: Environment, states: GraphStates, violations: Violations, *, max_pairs: int
) -> int:
    """Check that states with equal neighbourhoods and other codes are not isomorphic; return the number of pairs."""
    order = torch.arange(0, len(states), math.ceil(len(states) / (2 * max_pairs)))
    groups: dict[tuple[str, ...], list[tuple[int, LabelledGraph]]] = {}
    num = 0
    for index, graph in zip(order.tolist(), labelled_graphs(states[order]), strict=True):
        group = groups.setdefault(tuple(sorted(map(repr, graph.neighbourhoods))), [])
        for other, other_graph in group:
            if num >= max_pairs // 2:
                return num
            num += 1
            if are_isomorphic(graph, other_graph):
                shown = " and ".join(f"[{shown_state(env, states, each)}]" for each in sorted((index, other)))
                violations.add(Check.CODES, 1, f"{shown} are isomorphic with different codes")
                break
        else:
            group.append((index, graph))
    return num


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

    States of violated edges are counted first, then states of every |Aut| in turn.
    """
    counts = torch.tensor(env.num_automorphisms(states), dtype=torch.float64)
    edges = _joined(*edges_both_ways, env.identify(states))
    violated = edges.violated(counts)
    is_suspect = torch.zeros(len(states), dtype=torch.bool)
    is_suspect[edges.before[violated]] = is_suspect[edges.after[violated]] = True
    is_suspect[0] = True  # the identity starts from the initial state
    order = _in_turn(counts, generator)
    order = torch.cat([order[is_suspect[order]], order[~is_suspect[order]]])[:max_counted]
    independent = [count_automorphisms(graph) for graph in labelled_graphs(states[order])]
    for index, count in zip(order.tolist(), independent, strict=True):
        if count is not None and count != int(counts[index]):
            example = f"{int(counts[index])} instead of {count} for [{shown_state(env, states, index)}]"
            violations.add(Check.AUTOMORPHISMS, 1, example)
            counts[index] = count
    violated = edges.violated(counts)
    if len(violated):
        _add_orbits(env, states, counts, edges, violated, violations)
    return len(edges.before), sum(count is not None for count in independent)


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


def _in_turn(counts: Tensor, generator: torch.Generator) -> Tensor:
    """Return all indices so that the first ones have every count equally often, else at random."""
    order = torch.randperm(len(counts), generator=generator)
    _, group = counts[order].unique(return_inverse=True)
    by_group = group.argsort(stable=True)
    start = group.bincount().cumsum(0) - group.bincount()
    rank = torch.empty_like(by_group)
    rank[by_group] = torch.arange(len(counts)) - start[group[by_group]]
    return order[rank.argsort(stable=True)]


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
