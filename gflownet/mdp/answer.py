"""Evaluation of a policy on states, once per distinct pair of state and conditioning; tables of small environments.

Letters: B states or trajectories, U distinct states, C conditioning features, S states of a table, A slots of a
distribution, M steps of all trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch, GraphActionType
from gflownet.mdp.categorical import GraphActionCategorical, sampled_slots
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.environment import Environment
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates


class AnswersBothWays(Protocol):
    """A `TwoWayPolicy`, or one on another device."""

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return forward and backward distributions and scalars, see `TwoWayPolicy.both`."""
        ...


_SEED = 20_231_107  # of the multipliers that hash states
# torch.compile and oneDNN in bfloat16 cache kernels by shape: large batches are padded to few sizes to reuse them.
_LARGE, _SIZE_STEP = 1_024, 256


@dataclass(frozen=True)
class Answer:
    """A policy's outputs on B states."""

    context: GraphBuildingEnvContext
    batch: Batch  # of U states and padding
    first: Tensor | None  # [U] one of the B states for each distinct one, any for one that is not there; None if U = B
    owner: Tensor | None  # [B] distinct state of each of the B states; None if U = B
    forward: GraphActionCategorical  # U distributions
    numbers: Tensor  # [B]
    backward: GraphActionCategorical | None = None  # U distributions over backward actions, from `ask_both`

    @property
    def num_distinct(self) -> int:
        """U."""
        return len(self.numbers) if self.first is None else len(self.first)

    @cached_property
    def categorical(self) -> GraphActionCategorical:
        """B distributions. The methods of this class are cheaper: they work on U distributions."""
        return self._of_each(self.forward)

    def sample(self, generator: torch.Generator, *, random_action_prob: float = 0.0) -> ActionBatch:
        """Return one action per state, sampled from the policy mixed with uniform actions."""
        indices = self.categorical.mixed(random_action_prob).sample(generator)
        return self.context.from_indices(self.batch, indices, graphs=self.owner)

    def log_prob(self, actions: ActionBatch, *, states: Tensor | None = None) -> Tensor:
        """Return the log-probability of A legal actions, [A].

        Args:
            actions: A actions.
            states: index of the state of each action, [A]; one action per state, in order, by default.
        """
        graphs = self._graphs(states)
        return self.forward.log_prob(self.context.to_indices(self.batch, actions, graphs=graphs), graphs=graphs)

    def backward_log_prob(self, actions: ActionBatch, *, states: Tensor | None = None) -> Tensor:
        """Return the log-probability of A backward actions, [A], as `log_prob` does; -inf if a state has none."""
        graphs = self._graphs(states)
        indices = self.context.to_indices(self.batch, actions, graphs=graphs, backward=True)
        return self._backward.log_prob(indices, graphs=graphs)

    def sample_backward(self, generator: torch.Generator) -> ActionBatch:
        """Return one backward action per state, sampled from the policy."""
        indices = self._of_each(self._backward).sample(generator)
        return self.context.from_indices(self.batch, indices, graphs=self.owner, backward=True)

    def log_ways(self) -> Tensor:
        """Return the log-normaliser of each state's backward logits, [B]."""
        log_sums = self._backward.logsumexp()
        return log_sums if self.owner is None else log_sums[self.owner.to(log_sums.device)]

    @property
    def _backward(self) -> GraphActionCategorical:
        assert self.backward is not None, "evaluated by ask_both"
        return self.backward

    def _of_each(self, distributions: GraphActionCategorical) -> GraphActionCategorical:
        """Return B distributions for U."""
        return distributions if self.owner is None else distributions.repeated(self.owner.to(self.numbers.device))

    def _graphs(self, states: Tensor | None) -> Tensor | None:
        """Return the graph of the batch for each of these states."""
        if self.owner is None:
            return states
        return self.owner if states is None else self.owner[states]


def ask(
    context: GraphBuildingEnvContext,
    policy: PolicyFunction,
    states: GraphStates,
    conditioning: Tensor,
    *,
    look_for_twins: bool = True,
) -> Answer:
    """Return the policy's outputs on B states under conditioning [B, C].

    Equal states are evaluated once (`look_for_twins`): all trajectories start from the same state, so most early
    states of a batch are equal.
    """
    table = state_table(context) if look_for_twins else None
    is_equal = table is not None and bool((conditioning == conditioning[:1]).all())
    if table is not None and is_equal and table.suits(conditioning, states.limit, num=len(states)):
        return _from_table(context, policy, table, table.locate(states), conditioning)
    first, owner = distinct(states, conditioning) if look_for_twins else (None, None)
    if first is None or owner is None or len(first) == len(owner):
        batch = context.to_batch(states)
        return Answer(context, batch, None, None, *policy(batch, conditioning))
    padded = _padded_to_step(first)
    batch = context.to_batch(states[padded])
    forward, numbers = policy(batch, conditioning[padded])
    return Answer(context, batch, first, owner, forward, numbers[owner.to(numbers.device)])


def _from_table(
    context: GraphBuildingEnvContext, policy: PolicyFunction, table: StateTable, places: Tensor, conditioning: Tensor
) -> Answer:
    """Return the policy's outputs on states at places [B] of a table under equal conditionings [B, C]."""
    owner, batch, num, size = places, table.batch, len(table.codes), len(table.codes)
    if num > len(places):
        chosen, owner = places.unique(return_inverse=True)
        padded = _padded_to_step(chosen)
        batch, num, size = table.rows(padded), len(chosen), len(padded)
    forward, numbers = policy(batch, conditioning[:1].expand(size, -1))
    first = torch.zeros(num, dtype=torch.int64).scatter_(0, owner, torch.arange(len(owner)))
    return Answer(context, batch, first, owner, forward, numbers[owner.to(numbers.device)])


def ask_both(
    context: GraphBuildingEnvContext, policy: AnswersBothWays, states: GraphStates, conditioning: Tensor
) -> Answer:
    """Return the outputs of a two-way policy, with its backward distributions, from one evaluation."""
    first, owner = distinct(states, conditioning)
    padded = _padded_to_step(first)
    batch = context.to_batch(states[padded])
    forward, backward, numbers = policy.both(batch, conditioning[padded])
    return Answer(context, batch, first, owner, forward, numbers[owner.to(numbers.device)], backward)


def distinct(states: GraphStates, conditioning: Tensor) -> tuple[Tensor, Tensor]:
    """Return one representative of each distinct (state, conditioning), [U], and the index in it of each state, [B].

    They are compared by 64-bit hashes, sums of their bytes times random numbers: two different ones collide with a
    probability of at most 2^-57, about 1e-17. Reachability and bridges follow from the other arrays. States with other
    limits are distinct: their masks differ.
    """
    n = states.largest
    nodes, pairs = (states.node_type, states.node_attr), (states.edge_type, states.edge_attr, states.edge_order)
    entries = [x[:, :n].flatten(1) for x in nodes if x.numel()] + [x[:, :n, :n].flatten(1) for x in pairs if x.numel()]
    # Wider numbers may only differ in their last bits.
    limit = states.limit - states.limit[:1]
    as_bytes = [x.detach().contiguous().view(torch.int8) for x in (conditioning, limit) if x.numel()]
    hashes = [_hash(part, stream) for stream, part in enumerate([torch.cat(entries, 1), *as_bytes])]
    codes, owner = torch.unique(torch.stack(hashes).sum(0), return_inverse=True)
    first = torch.empty_like(codes).scatter_(0, owner, torch.arange(len(owner)))
    return first, owner


def _padded_to_step(first: Tensor) -> Tensor:
    """Return the states to evaluate: large numbers are rounded up by repeating the first state."""
    if len(first) < _LARGE:
        return first
    return torch.cat([first, first[:1].expand(-len(first) % _SIZE_STEP)])


def _hash(entries: Tensor, stream: int) -> Tensor:
    return (entries.long() * _multipliers(entries.shape[1], stream)).sum(1)


@lru_cache(maxsize=32)
def _multipliers(num: int, stream: int) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED + stream)
    with torch.inference_mode(False):
        return torch.randint(-(2**63), 2**63 - 1, (num,), generator=generator)


_AFTER_STOP = -1
# States that are evaluated at once, with those that the next steps may reach: 4 per trajectory, at least 128. A small
# network reads 128 states in about twice the time of 16.
_AHEAD, _MIN_AHEAD = 4, 128


def max_ahead(num: int) -> int:
    """Return the maximum number of states that are evaluated at once for `num` trajectories."""
    return max(_AHEAD * num, _MIN_AHEAD)


@dataclass(frozen=True)
class StateTable:
    """All states of an environment and its transitions."""

    env: Environment
    states: GraphStates  # S, the initial one first
    batch: Batch
    codes: Tensor  # [S] int64, ascending
    order: Tensor  # [S] int64, the state of each code
    successor: Tensor  # [S, A] int64, the state after the action at a slot, or _AFTER_STOP
    moves: Tensor  # [S * A, 6] int16, the action at a slot of a state and its inverse
    log_backward: Tensor  # [S + 1] float32, log P_B of the step into a state if it is uniform; the last one of Stop

    def suits(self, conditioning: Tensor, limit: Tensor | None, *, num: int) -> bool:
        """Return whether trajectories have the environment's own limit [B, K]: masks and features use that.

        A batch that is not dense is only read whole: under one conditioning [B, C], if there are at most `num` states.
        """
        if limit is not None and not bool((limit == self.states.limit[:1]).all()):
            return False
        is_whole = len(self.codes) <= num and bool((conditioning == conditioning[:1]).all())
        return is_whole or isinstance(self.batch, dict)

    def locate(self, states: GraphStates) -> Tensor:
        """Return the place of each state in the table, [B] int64."""
        return self.order[torch.searchsorted(self.codes, self.env.identify(states))]

    def rows(self, places: Tensor) -> Batch:
        """Return the states at some places as a dense batch."""
        shared, fields = self._fields
        num = places.shape[0]
        rows = {key: x.expand(num, *x.shape[1:]) for key, x in shared.items()}
        return rows | {key: x[places] for key, x in fields.items()}

    @cached_property
    def _fields(self) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Return one row of each field that is equal in all states, and the other fields of the batch."""
        fields = {key: self.batch[key] for key in self.batch.keys()}  # noqa: SIM118
        shared = {key: x[:1] for key, x in fields.items() if isinstance(x, Tensor) and bool((x == x[:1]).all())}
        return shared, {key: x for key, x in fields.items() if key not in shared}

    @cached_property
    def next_states(self) -> np.ndarray:
        """Return the states after all actions of each state, [S, maximum number of actions], and _AFTER_STOP."""
        successor = self.successor.numpy()
        return np.sort(successor, 1)[:, -max(1, (successor != _AFTER_STOP).sum(1).max()) :]

    def walk(self, policy: PolicyFunction, encoding: Tensor, explore: Explore, generator: torch.Generator) -> Walks:
        """Return a trajectory per conditioning [B, C]; each pair of state and conditioning is evaluated once.

        Raises:
            FloatingPointError: a state has nan or inf logits.
        """
        # NumPy is faster than PyTorch on arrays of few numbers.
        seen = _Distributions(self, policy, encoding, explore)
        successor = self.successor.numpy()
        alive, state, steps = np.arange(len(encoding)), np.zeros(len(encoding), dtype=np.int64), []
        while len(alive):
            slot = sampled_slots(seen.of(state, alive), generator)
            after = successor[state, slot]
            steps.append((state, slot, alive, after))
            goes_on = after != _AFTER_STOP
            alive, state = alive[goes_on], after[goes_on]
        return Walks(*(torch.from_numpy(np.concatenate(part)) for part in zip(*steps, strict=True)))

    def actions(self, walks: Walks) -> tuple[ActionBatch, ActionBatch]:
        """Return the actions of all steps and their inverses."""
        moves = self.moves[walks.state * self.successor.shape[1] + walks.slot].long()
        kind, row, column, *inverse = moves.unbind(1)
        return ActionBatch(kind, row, column), ActionBatch(*inverse)


Explore = Callable[[GraphActionCategorical], GraphActionCategorical]


class _Distributions:
    """Cumulative distributions of pairs of a state and a conditioning, evaluated when a trajectory needs them."""

    def __init__(self, table: StateTable, policy: PolicyFunction, encoding: Tensor, explore: Explore) -> None:
        self._table, self._policy, self._explore, self._encoding = table, policy, explore, encoding[:1]
        self._num, self._max_ahead = len(table.codes), max_ahead(len(encoding))
        self._group = None  # [B] first key of the conditioning of each trajectory; None: all have one conditioning
        if not bool((encoding == encoding[:1]).all()):
            self._encoding, group = encoding.unique(dim=0, return_inverse=True)
            self._group = group.numpy() * self._num
        num_keys = self._num * len(self._encoding)
        self._place = np.full(num_keys, -1, dtype=np.int32)  # of the distribution of a key
        self._mark = np.empty(num_keys, dtype=np.int32)
        self._cumulated = np.empty((0, table.successor.shape[1]))
        if num_keys <= self._max_ahead:
            self._evaluate(np.arange(num_keys))

    def of(self, state: np.ndarray, trajectory: np.ndarray) -> np.ndarray:
        """Return the cumulative distributions of states of some trajectories, [K, A]."""
        key = state if self._group is None else state + self._group[trajectory]
        place = self._place[key]
        if place.min() < 0:
            self._evaluate(self._with_next(self._missing(key)))
            place = self._place[key]
        return self._cumulated[place]

    def _missing(self, keys: np.ndarray) -> np.ndarray:
        """Return the distinct keys without a distribution."""
        keys = keys[self._place[keys] < 0]
        order = np.arange(len(keys))
        self._mark[keys] = order
        return keys[self._mark[keys] == order]

    def _with_next(self, keys: np.ndarray) -> np.ndarray:
        """Return keys with those of the next steps, as many steps as fit into one evaluation."""
        levels, num = [keys], len(keys)
        while len(levels[-1]):
            state = levels[-1] % self._num
            after = self._table.next_states[state]
            level = self._missing((after + (levels[-1] - state)[:, None])[after != _AFTER_STOP])
            num += len(level)
            if num > self._max_ahead:
                break
            levels.append(level)
        return np.concatenate(levels)

    @torch.inference_mode()
    def _evaluate(self, keys: np.ndarray) -> None:
        group, state = (torch.from_numpy(each) for each in divmod(keys, self._num))
        is_all = len(keys) == self._num == len(self._place)
        batch = self._table.batch if is_all else self._table.rows(state)
        encoding = self._encoding.expand(len(keys), -1) if self._group is None else self._encoding[group]
        rows = self._explore(self._policy(batch, encoding)[0]).cumulated()
        self._place[keys] = np.arange(len(self._cumulated), len(self._cumulated) + len(keys))
        self._cumulated = np.concatenate([self._cumulated, rows])


@dataclass(frozen=True)
class Walks:
    """Steps of B trajectories, earlier ones first."""

    state: Tensor  # [M] int64, in the table
    slot: Tensor  # [M] int64
    trajectory: Tensor  # [M] int64
    after: Tensor  # [M] int64, the next state, or _AFTER_STOP


@lru_cache(maxsize=8)
def state_table(context: GraphBuildingEnvContext) -> StateTable | None:
    """Return the table of an environment with few states, see `Environment.every_state`; else None."""
    with torch.inference_mode(False):
        env = context.env
        states = env.every_state()
        if states is None:
            return None
        batch, (codes, order) = context.to_batch(states), env.identify(states).sort()
        graph, actions = env.forward_masks(states).positions()
        before = states[graph]
        after = order[torch.searchsorted(codes, env.identify(env.apply(before, actions)))]
        after = after.masked_fill(actions.kind == int(GraphActionType.Stop), _AFTER_STOP)
        uniform = context.categorical(batch, [torch.zeros(mask.shape) for mask in context.masks(batch)])
        at = graph, uniform.slots_of(context.to_indices(batch, actions, graphs=graph), graphs=graph)
        successor = torch.full(uniform.slots.shape, _AFTER_STOP)
        moves = torch.zeros(*uniform.slots.shape, 6, dtype=torch.int16)
        inverse = env.reverse(before, actions)
        successor[at], moves[at] = after, torch.stack([*actions.parts, *inverse.parts], 1).to(torch.int16)
        log_backward = torch.cat([-env.backward_masks(states).num_actions().log(), torch.zeros(1)])
        return StateTable(env, states, batch, codes, order, successor, moves.flatten(0, 1), log_backward)
