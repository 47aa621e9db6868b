"""Random terminal states, mutations and neighbourhoods, pools of unknown candidates, and batches sampled from them.

Letters: B candidates or terminal states, P states of a pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.action import ActionMasks, GraphActionType
from gflownet.mdp.environment import Environment
from gflownet.mdp.moves import Moves
from gflownet.mdp.states import GraphStates
from gflownet.search.history import History, ProposalOrigin, first_mask

_NUM_SPREAD = 512  # uniform samples of which evenly spread ones are drawn
_NUM_PROBED = 8  # of them that show whether sizes are known
_NUM_BINS = 16
_NUM_DRAWN = 16  # objects of a space at random; two different ones are enough
_MAX_VISITED = 25_000  # transitions of a space whose random objects are equal
Sizes = Callable[[GraphStates], Tensor]  # of terminal states [B] float64; NaN: unknown or refused


def check_space(env: Environment) -> None:
    """Raise UserError for a space of fewer than two objects, which leaves a search no choice."""
    drawn = uniform_states(env, _NUM_DRAWN, generator=torch.Generator().manual_seed(0))
    if len(env.identify(drawn).unique()) == 1 and (num := _num_objects(env)) < 2:
        reasons = "; ".join(env.remarks()) or "the task and the options under env leave no choice"
        raise UserError(f"env: expected a search space of two or more, got {num}; {reasons}")


def _num_objects(env: Environment) -> int:
    """Return the number of terminal states, at least 2 for several and for a space that takes too long to visit."""
    frontier, codes, num, num_transitions = env.initial_states(1), set[int](), 0, 0
    while len(frontier):
        masks = env.forward_masks(frontier)
        num += int(masks.masks[GraphActionType.Stop].sum())
        num_transitions += int(masks.num_actions().sum())
        if num > 1 or num_transitions > _MAX_VISITED:
            return 2
        actions = {kind: mask for kind, mask in masks.masks.items() if kind != GraphActionType.Stop}
        graph, action = ActionMasks(actions).positions()
        children = env.apply(frontier[graph], action)
        frontier = children[first_mask(env.identify(children), codes)]
    return num


class SpreadDraws:
    """Random terminal states: uniform actions, and a share that is drawn evenly over their sizes.

    Uniform actions lead to small architectures mostly. Of that share, half is even over bins of the size, half over
    bins of its logarithm. Without sizes all have uniform actions.
    """

    def __init__(self, env: Environment, sizes: Sizes, *, even_share: float, generator: torch.Generator) -> None:
        """Draw the pool of the share, and measure it."""
        self._env, self.even_share = env, 0.0  # without sizes
        for num in (_NUM_PROBED, _NUM_SPREAD) if even_share else ():
            self._pool = uniform_states(env, num, generator=generator)
            values = sizes(self._pool)
            if bool(values.isnan().all()):
                return
            self._weights = even_weights(values)
        self.even_share = even_share

    def __call__(self, num: int, generator: torch.Generator) -> GraphStates:
        """Return `num` terminal states."""
        num_even = int((torch.rand(num, generator=generator) < self.even_share).sum()) if self.even_share else 0
        parts = [uniform_states(self._env, num - num_even, generator=generator)] if num > num_even else []
        if not num_even:
            return parts[0]
        even = torch.multinomial(self._weights, num_even, replacement=True, generator=generator)
        return GraphStates.cat([*parts, self._pool[even]])[torch.randperm(num, generator=generator)]


def even_weights(sizes: Tensor) -> Tensor:
    """Return weights [P] of which half are even over bins of the sizes, half over bins of their logarithms."""
    weights, known = torch.zeros(len(sizes), dtype=torch.float64), ~sizes.isnan()
    for values in (sizes[known], sizes[known].log1p()):
        place = (values - values.min()) / (values.max() - values.min()).clamp(min=1e-9)
        bins = (place * _NUM_BINS).long().clamp(max=_NUM_BINS - 1)
        counts = bins.bincount(minlength=_NUM_BINS)
        weights[known] += 1 / (counts[bins] * (counts > 0).sum())
    return weights


# Edits of one kind that are tried for a mutation, and kinds: few edits are legal where shapes and budgets are tight.
_MAX_EDITS, _MAX_KINDS = 4, 3
_NUM_TOGETHER = 256  # edits of few states are tried together: a batch of them takes hardly longer than one


def mutated(env: Environment, states: GraphStates, generator: torch.Generator) -> GraphStates:
    """Return each terminal state after one random local move, different from its original where a move is found.

    The kind of move is uniform, then the edit. Of several edits the first without repairs is taken, otherwise the one
    with the smallest number of them.
    """
    moves, codes, children = Moves.of(env, states, generator), env.identify(states), states
    for _ in range(_MAX_KINDS):
        index = ((env.identify(children) == codes) & moves.kinds().any(1)).nonzero().squeeze(1)
        if not len(index):
            break
        kind = torch.multinomial(moves.kinds()[index].double(), 1, generator=generator).squeeze(1)
        children = _moved(env, children, index, kind, moves=moves, codes=codes, generator=generator)
    return children


def _moved(
    env: Environment,
    states: GraphStates,
    index: Tensor,
    kind: Tensor,
    *,
    moves: Moves,
    codes: Tensor,
    generator: torch.Generator,
) -> GraphStates:
    most = torch.iinfo(torch.int64).max
    num_repairs, num_tried = torch.full((len(index),), most), 0
    while num_tried < _MAX_EDITS and bool((num_repairs > 0).any()):
        rows = (num_repairs > 0).nonzero().squeeze(1)
        num_copies = max(1, min(_MAX_EDITS - num_tried, _NUM_TOGETHER // len(rows)))
        owner, kinds = index[rows].repeat(num_copies), kind[rows].repeat(num_copies)
        children, repairs = moves.results(owner, kinds, moves.sample(owner, kinds, generator), generator)
        repairs = repairs.masked_fill(env.identify(children) == codes[owner], most).unflatten(0, (num_copies, -1))
        fewest, copy = repairs.min(0)
        better = (fewest < num_repairs[rows]).nonzero().squeeze(1)
        position = torch.arange(len(states)).index_copy(0, index[rows[better]], torch.arange(len(better)) + len(states))
        states = GraphStates.cat([states, children[copy[better] * len(rows) + better]])[position]
        num_repairs[rows[better]] = fewest[better]
        num_tried += num_copies
    return states


def neighbours(env: Environment, state: GraphStates, generator: torch.Generator, *, num: int) -> GraphStates:
    """Return distinct other terminal states one move away from one terminal state, in random order.

    In an environment of places these are all changes of one place; otherwise up to `num` random ones.
    """
    if {GraphActionType.AddNode, GraphActionType.AddEdge}.isdisjoint(env.forward_types):
        moves = Moves.of(env, state, generator)
        kind, position = moves.all_of(0)
        states, _ = moves.results(torch.zeros_like(kind), kind, position, generator)
    else:
        states = mutated(env, state[torch.zeros(num, dtype=torch.int64)], generator)
    states = distinct(env, states[(env.identify(states) != env.identify(state)).nonzero().squeeze(1)])
    return states[torch.randperm(len(states), generator=generator)]


def distinct(env: Environment, states: GraphStates) -> GraphStates:
    """Return the first of all isomorphic states, in order."""
    return states[first_mask(env.identify(states))]


LogValues = Callable[[GraphStates], Tensor]  # acquisition of terminal states [B], on a logarithmic scale
_NUM_PARENTS = 10  # best known architectures, and best candidates of a generation, that are mutated
_MAX_DRAWS = 20  # batches of random architectures until enough are new


@dataclass(frozen=True)
class Pool:
    """Distinct unknown candidates with their values."""

    states: GraphStates  # [B]
    log_values: Tensor  # [B] float64
    origin: Tensor  # [B] int64, a ProposalOrigin

    def __len__(self) -> int:
        """Return B."""
        return len(self.states)

    def best(self, num: int) -> Pool:
        """Return up to `num` candidates with the highest values, best first."""
        order = self.log_values.argsort(descending=True, stable=True)[:num]
        return Pool(self.states[order], self.log_values[order], self.origin[order])

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors, safe to load with `weights_only=True`."""
        return {"states": self.states.state_dict(), "log_values": self.log_values, "origin": self.origin}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Pool:
        """Return the pool of a `state_dict`."""
        return cls(GraphStates(**state["states"]), state["log_values"], state["origin"])


def sampled_order(log_weights: Tensor, generator: torch.Generator, *, beta: float = 1.0) -> Tensor:
    """Return the positions of weights [B] in an order sampled without replacement in proportion to weight^beta.

    The first k are a sample of k: sorted sums of beta * log weight and Gumbel noise (Kool et al. 2019). With infinite
    beta the order is that of the weights.
    """
    uniform = torch.rand(len(log_weights), generator=generator, dtype=torch.float64)
    noise = -(-uniform.clamp(min=torch.finfo(torch.float64).tiny).log()).log()
    return (log_weights.double() + noise / beta).argsort(descending=True, stable=True)


def accepted(states: GraphStates, order: Tensor, num: int, is_refused: Callable[[GraphStates, int], bool]) -> Tensor:
    """Return the first `num` positions of an order that no hard cap refuses."""
    positions = (position for position in order.tolist() if not is_refused(states, position))
    return torch.tensor(list(islice(positions, num)), dtype=torch.int64)


def unknown_mask(history: History, states: GraphStates) -> Tensor:
    """Return which states [B] are the first of an architecture that is neither evaluated nor in flight, [B] bool."""
    codes = history.env.identify(states)
    return first_mask(codes) & history.is_unknown(codes)


def random_unknown(history: History, num: int, generator: torch.Generator) -> GraphStates:
    """Return up to `num` different unknown architectures from uniformly random actions."""
    states = history.env.initial_states(0)
    for _ in range(_MAX_DRAWS):
        drawn_states = uniform_states(history.env, 2 * num, generator=generator)
        states = GraphStates.cat([states, drawn_states])
        states = states[unknown_mask(history, states)]
        if len(states) >= num:
            break
    return states[:num]


def best_states(history: History) -> GraphStates:
    """Return the best known architectures, the parents of mutations."""
    order = torch.tensor(history.scores, dtype=torch.float64).argsort(descending=True, stable=True)
    return history.states[order[:_NUM_PARENTS]]


def mutations(env: Environment, parents: GraphStates, num: int, generator: torch.Generator) -> GraphStates:
    """Return `num` mutations of parents, as many of each as possible."""
    if not num:
        return parents[:0]
    return mutated(env, parents[torch.arange(num) % len(parents)], generator)


def evolved(
    history: History,
    start: GraphStates,
    log_values: LogValues,
    *,
    origin: Tensor,
    num_mutations: int,
    num_generations: int,
    generator: torch.Generator,
) -> Pool:
    """Return a pool from start states [B] and their origins, whose best candidates are mutated in each generation."""
    is_unknown = unknown_mask(history, start)
    states, origin = start[is_unknown], origin[is_unknown]
    values = log_values(states)
    for _ in range(num_generations):
        if not len(states):
            break
        parents = states[values.argsort(descending=True, stable=True)[:_NUM_PARENTS]]
        children = mutations(history.env, parents, num_mutations, generator)
        combined = GraphStates.cat([states, children])
        combined = combined[unknown_mask(history, combined)]
        values = torch.cat([values, log_values(combined[len(states) :])])
        origin = torch.cat([origin, torch.full((len(combined) - len(states),), int(ProposalOrigin.MUTATION))])
        states = combined
    return Pool(states, values, origin)


def origin_of(*counts: tuple[ProposalOrigin, int]) -> Tensor:
    """Return each origin as often as it is counted, in order, int64."""
    return torch.cat([torch.full((num,), int(origin)) for origin, num in counts])
