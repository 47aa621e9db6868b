"""The exact distribution over terminal states that a policy samples from, on spaces small enough to enumerate.

States are taken up to isomorphism. Letters: S states, M legal actions of all states together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates

_CHUNK = 2_000  # states expanded at once, to bound memory


@dataclass(frozen=True)
class StateGraph:
    """Every state of an environment once, and where every labelled action of its representative leads."""

    states: GraphStates  # S states, level by level: every action leads to a later one
    level: Tensor  # [S] number of actions from the initial state
    num_automorphisms: Tensor  # [S] float64
    num_backward: Tensor  # [S] legal backward actions
    parent: Tensor  # [M] state an action is taken in; the actions of Stop come with child = parent
    action: ActionBatch  # M actions
    child: Tensor  # [M]

    def __len__(self) -> int:
        """Return the number of states up to isomorphism."""
        return len(self.states)

    @property
    def stops(self) -> Tensor:
        """Return which of the M actions are Stop."""
        return self.action.kind == int(GraphActionType.Stop)

    @property
    def terminal(self) -> Tensor:
        """Return the indices of the states on which Stop is legal, [X], ascending."""
        return self.parent[self.stops].sort().values


def enumerate_states(env: Environment, *, max_states: int = 100_000) -> StateGraph:
    """Return every state reachable from the initial one, up to isomorphism, level by level.

    Raises:
        ValueError: there are more than `max_states`.
    """
    frontier = env.initial_states(1)
    known = {env.coloured_graph(frontier, 0).canonical_key(): 0}
    levels, level_of, parents, actions, children = [frontier], [0], [], [], []
    start = 0
    while len(frontier):
        found: list[GraphStates] = []
        for first in range(0, len(frontier), _CHUNK):
            part = frontier[first : first + _CHUNK]
            graph, action = env.forward_masks(part).positions()
            after = env.apply(part[graph], action)
            child, new = _identify(env, after, action, known, graph + start + first)
            parents.append(graph + start + first)
            actions.append(action)
            children.append(child)
            found.append(after[torch.tensor(new, dtype=torch.int64)])
        if len(known) > max_states:
            raise ValueError(f"expected at most {max_states} states, found {len(known)} and more to come")
        start += len(frontier)
        frontier = GraphStates.cat(found)
        levels.append(frontier)
        level_of += [level_of[-1] + 1] * len(frontier)
    states = GraphStates.cat(levels)
    return StateGraph(
        states=states,
        level=torch.tensor(level_of),
        num_automorphisms=torch.tensor(env.num_automorphisms(states), dtype=torch.float64),
        num_backward=env.backward_masks(states).num_actions(),
        parent=torch.cat(parents),
        action=ActionBatch.cat(actions),
        child=torch.cat(children),
    )


def _identify(
    env: Environment, after: GraphStates, action: ActionBatch, known: dict[str, int], parent: Tensor
) -> tuple[Tensor, list[int]]:
    """Return the state behind every successor, and which successors are new; `known` grows by those."""
    child, new = [], []
    for i, (kind, origin) in enumerate(zip(action.kind.tolist(), parent.tolist(), strict=True)):
        if kind == GraphActionType.Stop:
            child.append(origin)
            continue
        key = env.coloured_graph(after, i).canonical_key()
        if key not in known:
            known[key] = len(known)
            new.append(i)
        child.append(known[key])
    return torch.tensor(child, dtype=torch.int64), new


def terminating_distribution(graph: StateGraph, log_prob: Tensor) -> Tensor:
    """Return p(x) over all S states [S] float64 (zero where Stop is illegal) by pushing probability forward.

    Args:
        graph: the enumerated states.
        log_prob: log P_F of each of the M actions.
    """
    flow = torch.zeros(len(graph), dtype=torch.float64)
    flow[0] = 1.0
    probability = log_prob.double().exp()
    action_level = torch.where(graph.stops, -1, graph.level[graph.parent])
    for level in range(int(graph.level.max()) + 1):
        here = action_level == level
        flow.index_add_(0, graph.child[here], flow[graph.parent[here]] * probability[here])
    stops = graph.stops
    result = torch.zeros_like(flow)
    result[graph.parent[stops]] = flow[graph.parent[stops]] * probability[stops]
    return result


def analytic_log_prob(graph: StateGraph, log_reward: Tensor) -> tuple[Tensor, float]:
    """Return log P_F [M] of the flows that balance a reward exactly under the uniform backward policy, and log Z.

    F(s) = sum over actions of F(s') / (number of backward actions of s'), plus R(s) where Stop is legal (the detailed
    balance conditions of Bengio et al. 2023, section 3, in labelled counting).

    Args:
        graph: the enumerated states.
        log_reward: [S] log-reward of the terminal states; anything elsewhere.
    """
    flow = torch.zeros(len(graph), dtype=torch.float64)
    edge_flow = torch.zeros(len(graph.parent), dtype=torch.float64)
    stops = graph.stops
    edge_flow[stops] = log_reward.double().exp()[graph.parent[stops]]
    for level in reversed(range(int(graph.level.max()) + 1)):
        here = graph.level[graph.parent] == level
        moves = here & ~stops
        child = graph.child[moves]
        edge_flow[moves] = flow[child] / graph.num_backward[child]
        flow.index_add_(0, graph.parent[here], edge_flow[here])
    return edge_flow.log() - flow[graph.parent].log(), float(flow[0].log())


def target_distribution(graph: StateGraph, log_reward: Tensor) -> Tensor:
    """Return R(x) / sum R over all S states, [S] float64, zero where Stop is illegal."""
    target = torch.zeros(len(graph), dtype=torch.float64)
    target[graph.terminal] = log_reward.double()[graph.terminal].softmax(0)
    return target


def policy_log_prob(
    graph: StateGraph, score: Callable[[GraphStates], tuple[Tensor, Tensor]], *, chunk: int = 512
) -> Tensor:
    """Return log P_F [M] of a policy for the actions of every state.

    Args:
        graph: the enumerated states.
        score: maps states to (graph [L], log-probability [L]) of all legal actions, in the order of
            `ActionMasks.positions`: what `GraphActionCategorical.log_probs` returns.
        chunk: states per call of the policy.
    """
    result = torch.empty(len(graph.parent), dtype=torch.float64)
    for first in range(0, len(graph), chunk):
        states = graph.states[first : first + chunk]
        owner, log_prob = score(states)
        ours = ((graph.parent >= first) & (graph.parent < first + len(states))).nonzero().squeeze(1)
        # Both lists hold a state's actions in one order; a stable sort by state lines them up.
        ours = ours[graph.parent[ours].argsort(stable=True)]
        result[ours] = log_prob.detach().double()[owner.argsort(stable=True)]
    return result


def l1_distance(p: Tensor, q: Tensor) -> float:
    """Return sum |p - q|, in [0, 2]."""
    return float((p - q).abs().sum())


def total_variation(p: Tensor, q: Tensor) -> float:
    """Return half the L1 distance, in [0, 1]."""
    return l1_distance(p, q) / 2


def jensen_shannon(p: Tensor, q: Tensor) -> float:
    """Return the Jensen-Shannon divergence in nats, in [0, log 2]."""
    middle = (p + q) / 2
    return float((_relative_entropy(p, middle) + _relative_entropy(q, middle)) / 2)


def _relative_entropy(p: Tensor, q: Tensor) -> Tensor:
    there = p > 0
    return (p[there] * (p[there] / q[there]).log()).sum()
