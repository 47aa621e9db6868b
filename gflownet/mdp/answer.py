"""Asking a policy about states: one evaluation for all that are the same, under the same conditioning.

Letters: B states, U distinct ones, C conditioning features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import torch
from torch import Tensor

from gflownet.mdp.action import ActionBatch
from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.layout import Batch
from gflownet.mdp.policy import PolicyFunction
from gflownet.mdp.states import GraphStates


class AnswersBothWays(Protocol):
    """A `TwoWayPolicy`, or one on another device."""

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return forward and backward distributions and numbers, see `TwoWayPolicy.both`."""
        ...


_SEED = 20_231_107  # of the multipliers that hash states
# Kernels that are made for one shape, those of torch.compile and oneDNN's in bfloat16, are found again if large batches
# come in few sizes.
_LARGE, _SIZE_STEP = 1_024, 256


@dataclass(frozen=True)
class Answer:
    """What a policy says about B states."""

    context: GraphBuildingEnvContext
    batch: Batch  # of U states, and repetitions that nobody asked for
    first: Tensor | None  # [U] which of the B states each of the batch is like; None where U = B
    owner: Tensor | None  # [B] which of the U states each one is; None where U = B
    forward: GraphActionCategorical  # U distributions
    numbers: Tensor  # [B]
    backward: GraphActionCategorical | None = None  # U distributions over what leads here, of `ask_both`

    @property
    def num_distinct(self) -> int:
        """U."""
        return len(self.numbers) if self.first is None else len(self.first)

    @cached_property
    def categorical(self) -> GraphActionCategorical:
        """B distributions. What has a method here costs less: it is worked out for U of them."""
        return self._of_each(self.forward)

    def sample(self, generator: torch.Generator, *, random_action_prob: float = 0.0) -> ActionBatch:
        """Return one action per state, drawn from the policy mixed with uniform actions."""
        indices = self.categorical.mixed(random_action_prob).sample(generator)
        return self.context.from_indices(self.batch, indices, graphs=self.owner)

    def log_prob(self, actions: ActionBatch, *, states: Tensor | None = None) -> Tensor:
        """Return the log-probability of A legal actions, [A].

        Args:
            actions: A of them.
            states: which of the B states each one is taken in, [A]; one for each, in order, if not given.
        """
        graphs = self._graphs(states)
        return self.forward.log_prob(self.context.to_indices(self.batch, actions, graphs=graphs), graphs=graphs)

    def backward_log_prob(self, actions: ActionBatch, *, states: Tensor | None = None) -> Tensor:
        """Return the log-probability of A legal backward actions, [A], as `log_prob` does; -inf where there is none."""
        assert self.backward is not None, "asked by ask_both"
        graphs = self._graphs(states)
        indices = self.context.to_indices(self.batch, actions, graphs=graphs, backward=True)
        return self.backward.log_prob(indices, graphs=graphs)

    def sample_backward(self, generator: torch.Generator) -> ActionBatch:
        """Return one backward action per state, drawn from the policy."""
        assert self.backward is not None, "asked by ask_both"
        indices = self._of_each(self.backward).sample(generator)
        return self.context.from_indices(self.batch, indices, graphs=self.owner, backward=True)

    def log_ways(self) -> Tensor:
        """Return the log-normaliser of each state's backward logits, [B]."""
        assert self.backward is not None, "asked by ask_both"
        found = self.backward.logsumexp()
        return found if self.owner is None else found[self.owner.to(found.device)]

    def _of_each(self, distributions: GraphActionCategorical) -> GraphActionCategorical:
        """Return B distributions for U."""
        return distributions if self.owner is None else distributions.repeated(self.owner.to(self.numbers.device))

    def _graphs(self, states: Tensor | None) -> Tensor | None:
        """Return which graph of the batch each of these states is."""
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
    """Return the policy's answer about B states under conditioning [B, C].

    Every trajectory starts from one state, so the first states of a batch of trajectories are mostly the same.
    """
    first, owner = distinct(states, conditioning) if look_for_twins else (None, None)
    if first is None or owner is None or len(first) == len(owner):
        batch = context.to_batch(states)
        return Answer(context, batch, None, None, *policy(batch, conditioning))
    shown = _rounded_up(first)
    batch = context.to_batch(states[shown])
    forward, numbers = policy(batch, conditioning[shown])
    return Answer(context, batch, first, owner, forward, numbers[owner.to(numbers.device)])


def ask_both(
    context: GraphBuildingEnvContext, policy: AnswersBothWays, states: GraphStates, conditioning: Tensor
) -> Answer:
    """Return the answer of a two-way policy, backward distributions and all, from one evaluation."""
    first, owner = distinct(states, conditioning)
    shown = _rounded_up(first)
    batch = context.to_batch(states[shown])
    forward, backward, numbers = policy.both(batch, conditioning[shown])
    return Answer(context, batch, first, owner, forward, numbers[owner.to(numbers.device)], backward)


def _rounded_up(first: Tensor) -> Tensor:
    """Return which states to show: many are rounded up in number, the first of them once more as often as it takes."""
    if len(first) < _LARGE:
        return first
    return torch.cat([first, first[:1].expand(-len(first) % _SIZE_STEP)])


def distinct(states: GraphStates, conditioning: Tensor) -> tuple[Tensor, Tensor]:
    """Return one representative of each distinct (state, conditioning), [U], and whose twin each state is, [B].

    They are compared by 64-bit hashes, sums of their bytes times random numbers: two different ones are taken for one
    with a probability of at most 2^-57, about 1e-17. Reachability and bridges follow from the rest.
    """
    n = int(states.num_nodes.max())  # there is nothing beyond
    nodes, pairs = (states.node_type, states.node_attr), (states.edge_type, states.edge_attr, states.edge_order)
    entries = [x[:, :n].flatten(1) for x in nodes if x.numel()] + [x[:, :n, :n].flatten(1) for x in pairs if x.numel()]
    given = conditioning.detach().contiguous().view(torch.int8)  # wider numbers may differ in their last bits alone
    code = _hash(torch.cat(entries, 1), 0) + _hash(given, 1)
    found, owner = torch.unique(code, return_inverse=True)
    first = torch.empty_like(found).scatter_(0, owner, torch.arange(len(owner)))
    return first, owner


def _hash(entries: Tensor, stream: int) -> Tensor:
    return (entries.long() * _multipliers(entries.shape[1], stream)).sum(1)


@lru_cache(maxsize=32)
def _multipliers(num: int, stream: int) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED + stream)
    with torch.inference_mode(False):
        return torch.randint(-(2**63), 2**63 - 1, (num,), generator=generator)
