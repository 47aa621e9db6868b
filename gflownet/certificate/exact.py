"""Enumerated state spaces and the exact distribution of a policy over their terminal states.

States are enumerated up to isomorphism. Letters: S states, M legal forward actions of all states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates

_CHUNK = 10_000  # actions applied at once, to bound memory
_STATE_CHUNK = 500  # states with masks at once

# Maps states to (graph [L], log-probability [L]) of all legal actions, as `GraphActionCategorical.log_probs` does.
Scores = Callable[[GraphStates], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class StateGraph:
    """Every state of an environment once, and the child of every labelled action of it."""

    states: GraphStates  # S states, by level: every action leads to the next level
    code: Tensor  # [S] int64, from Environment.identify
    level: Tensor  # [S] number of actions from the initial state
    num_automorphisms: Tensor  # [S] float64
    num_backward: Tensor  # [S] legal backward actions
    parent: Tensor  # [M] state before each action, ascending; Stop has child = parent
    action: ActionBatch  # M actions
    child: Tensor  # [M]

    def __len__(self) -> int:
        """Return the number of states up to isomorphism."""
        return len(self.states)

    @property
    def stops(self) -> Tensor:
        """Return which of the M actions are Stop, [M] bool."""
        return self.action.kind == int(GraphActionType.Stop)

    @property
    def terminal(self) -> Tensor:
        """Return the indices of the states in which Stop is legal, [X], ascending."""
        return self.parent[self.stops]

    def locate(self, codes: Tensor) -> Tensor:
        """Return the state with each code, [B] int64. Raises ValueError: no enumerated state has this code."""
        sorted_codes, position = self._sorted_code
        index = torch.searchsorted(sorted_codes, codes).clamp_(max=len(sorted_codes) - 1)
        missing = (sorted_codes[index] != codes).nonzero().squeeze(1)
        if len(missing):
            raise ValueError(f"expected enumerated states, got {len(missing)} of {len(codes)} others")
        return position[index]

    @cached_property
    def _sorted_code(self) -> tuple[Tensor, Tensor]:
        """Return the codes, ascending, and their states, cached for thousands of look-ups."""
        values, states = self.code.sort()
        return values, states

    def level_actions(self) -> list[slice]:
        """Return the range of actions of each level."""
        bounds = torch.searchsorted(self.level[self.parent], torch.arange(int(self.level.max()) + 2)).tolist()
        return [slice(first, last) for first, last in pairwise(bounds)]


@dataclass(frozen=True)
class Flows:
    """Flows that balance a reward exactly, and their forward policy."""

    log_forward: Tensor  # [M] log P_F
    log_flow: Tensor  # [S] log of the flow through each state

    @property
    def log_z(self) -> float:
        """Return the log of the total reward."""
        return float(self.log_flow[0])


@dataclass(frozen=True)
class Steps:
    """M actions and the states they lead to."""

    env: Environment
    owner: Tensor  # [M] index of the state before each action, ascending
    before: GraphStates
    action: ActionBatch
    after: GraphStates  # the same state after Stop

    @property
    def moves(self) -> Tensor:
        """Return which actions are not Stop, [M] bool."""
        return self.action.kind != int(GraphActionType.Stop)

    @cached_property
    def inverse(self) -> ActionBatch:
        """Return the actions from the states after to those before."""
        return self.env.reverse(self.before, self.action)


def legal_steps(
    env: Environment, states: GraphStates, *, backward: bool = False, with_stop: bool = False
) -> Iterator[Steps]:
    """Yield all legal actions of the states, applied, in chunks; Stop only on request."""
    for first in range(0, len(states), _STATE_CHUNK):
        part = states[first : first + _STATE_CHUNK]
        owner, action = (env.backward_masks(part) if backward else env.forward_masks(part)).positions()
        order = owner.argsort(stable=True)
        if not with_stop:
            order = order[action.kind[order] != int(GraphActionType.Stop)]
        for chunk in order.split(_CHUNK):
            before, action_part = part[owner[chunk]], action[chunk]
            yield Steps(env, owner[chunk] + first, before, action_part, env.apply(before, action_part))


def first_positions(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of the first of each distinct value, values ascending, and the distinct value of each."""
    distinct, owner = values.unique(return_inverse=True)
    first = torch.full((len(distinct),), len(values))
    return first.scatter_reduce(0, owner, torch.arange(len(values)), "amin"), owner


def enumerate_states(env: Environment, *, max_states: int = 100_000, limit: Tensor | None = None) -> StateGraph:
    """Return every state reachable from the initial one, within caps [K] where given, up to isomorphism, by level.

    Raises:
        ValueError: there are more than `max_states`, or paths of different lengths lead to a state.
    """
    frontier = env.initial_states(1)
    frontier = frontier if limit is None else frontier.with_limit(limit)
    index_of = {int(env.identify(frontier)): 0}
    levels, parents, actions, children = [], [], [], []
    start = 0
    while len(frontier):
        levels.append(frontier)
        end, following = start + len(frontier), [frontier[:0]]
        for steps in legal_steps(env, frontier, with_stop=True):
            after, num_known = steps.after[steps.moves], len(index_of)
            indices = [index_of.setdefault(code, len(index_of)) for code in env.identify(after).tolist()]
            if len(index_of) > max_states:
                raise ValueError(f"expected at most {max_states} states, got at least {len(index_of)}")
            child = torch.tensor(indices, dtype=torch.int64)
            if bool((child < end).any()):
                raise ValueError("expected all paths to a state to have the same length, got several lengths")
            first, _ = first_positions(child)
            following.append(after[first[child[first] >= num_known]])
            parents.append(steps.owner + start)
            actions.append(steps.action)
            children.append(parents[-1].clone())
            children[-1][steps.moves] = child
        start, frontier = end, GraphStates.cat(following)
    sizes, states = torch.tensor([len(level) for level in levels]), GraphStates.cat(levels)
    chunks = [states[first : first + _STATE_CHUNK] for first in range(0, len(states), _STATE_CHUNK)]
    automorphisms = [count for chunk in chunks for count in env.num_automorphisms(chunk)]
    return StateGraph(
        states=states,
        code=torch.tensor(list(index_of)),
        level=torch.arange(len(sizes)).repeat_interleave(sizes),
        num_automorphisms=torch.tensor(automorphisms, dtype=torch.float64),
        num_backward=torch.cat([env.backward_masks(chunk).num_actions() for chunk in chunks]),
        parent=torch.cat(parents),
        action=ActionBatch.cat(actions),
        child=torch.cat(children),
    )


def analytic_flows(graph: StateGraph, log_reward: Tensor, log_backward: Tensor | None = None) -> Flows:
    """Return the flows that balance a reward exactly under a backward policy.

    F(s) = sum over actions of F(s') P_B(action | s'), plus R(s) if Stop is legal (detailed balance, Bengio et al. 2023,
    section 3). With labelled counting, use the reward R(x) |Aut(x)| to sample x in proportion to R(x).

    Args:
        graph: the enumerated states.
        log_reward: [S] log-reward of the terminal states; anything elsewhere.
        log_backward: [M] log P_B of undoing each forward action; uniform over the labelled backward actions by default.
    """
    if log_backward is None:
        log_backward = -graph.num_backward[graph.child].double().log()
    shift = float(log_reward.double()[graph.terminal].max())  # rewards may be below the smallest float
    flow = torch.zeros(len(graph), dtype=torch.float64)
    edge_flow = torch.zeros(len(graph.parent), dtype=torch.float64)
    stops, share = graph.stops, log_backward.double().exp()
    edge_flow[stops] = (log_reward.double()[graph.terminal] - shift).exp()
    for level in reversed(graph.level_actions()):
        edge_flow[level] = torch.where(stops[level], edge_flow[level], flow[graph.child[level]] * share[level])
        flow.index_add_(0, graph.parent[level], edge_flow[level])
    return Flows(edge_flow.log() - flow.log()[graph.parent], flow.log() + shift)


def terminating_distribution(graph: StateGraph, log_prob: Tensor) -> Tensor:
    """Return p(x) over all S states [S] float64 by pushing probability forward; 0 if Stop is illegal.

    Args:
        graph: the enumerated states.
        log_prob: log P_F of each of the M actions.
    """
    probability = log_prob.double().exp()
    stops, flow = graph.stops, torch.zeros(len(graph), dtype=torch.float64)
    moved = probability.masked_fill(stops, 0.0)
    flow[0] = 1.0
    for level in graph.level_actions():
        flow.index_add_(0, graph.child[level], flow[graph.parent[level]] * moved[level])
    result = torch.zeros_like(flow)
    result[graph.terminal] = flow[graph.terminal] * probability[stops]
    return result


def target_distribution(graph: StateGraph, log_reward: Tensor) -> Tensor:
    """Return R(x) / sum R over all S states, [S] float64, 0 if Stop is illegal."""
    target = torch.zeros(len(graph), dtype=torch.float64)
    target[graph.terminal] = log_reward.double()[graph.terminal].softmax(0)
    return target


def policy_log_prob(graph: StateGraph, score: Scores, *, chunk: int = 512) -> Tensor:
    """Return log P_F [M] of a policy for the actions of every state, `chunk` states per call of the policy."""
    values = torch.empty(len(graph.parent), dtype=torch.float64)
    for first in range(0, len(graph), chunk):
        states = graph.states[first : first + chunk]
        index, log_prob = score(states)
        low, high = torch.searchsorted(graph.parent, torch.tensor([first, first + len(states)])).tolist()
        # Both lists have the actions of a state in the same order; a stable sort by state aligns them.
        values[low:high] = log_prob.detach().double()[index.argsort(stable=True)]
    return values


def forward_scores(context: GraphBuildingEnvContext, policy: PolicyFunction, encoding: Tensor) -> Scores:
    """Return the `Scores` of forward actions under conditioning `encoding` [C], without gradients."""
    return torch.no_grad()(
        lambda states: policy(context.to_batch(states), encoding.expand(len(states), -1))[0].log_probs()
    )


def l1_distance(p: Tensor, q: Tensor) -> float:
    """Return sum |p - q|, in [0, 2]."""
    return float((p - q).abs().sum())


def total_variation(p: Tensor, q: Tensor) -> float:
    """Return half the L1 distance, in [0, 1]."""
    return l1_distance(p, q) / 2


def jensen_shannon(p: Tensor, q: Tensor) -> float:
    """Return the Jensen-Shannon divergence in nats, in [0, log 2]."""
    return float((_entropy_to_mean(p, q) + _entropy_to_mean(q, p)) / 2)


def _entropy_to_mean(p: Tensor, q: Tensor) -> Tensor:
    """Return the relative entropy of p to (p + q) / 2, without halving, which could underflow to zero."""
    positive = p > 0
    return (p[positive] * (2 * p[positive] / (p + q)[positive]).log()).sum()
