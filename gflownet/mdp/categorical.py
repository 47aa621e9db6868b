"""One categorical distribution per graph over ragged groups of logits: which action, on which row, with which column.

Letters: B graphs, T action types, M_t rows and C_t columns of type t, L legal actions of the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class GraphActionCategorical:
    """B independent distributions; actions are (type, row, column), rows counted within a graph.

    Only legal actions are ever normalised, sampled or differentiated; the masked logits are -inf to the outside.

    Args:
        logits: one tensor [M_t, C_t] per type.
        masks: which entries are legal, one bool tensor [M_t, C_t] per type.
        row_graphs: the graph of every row, ascending, one int64 tensor [M_t] per type.
        num_graphs: B.

    Raises:
        ValueError: a graph has no legal action; the message names it.
    """

    def __init__(
        self, logits: Sequence[Tensor], masks: Sequence[Tensor], *, row_graphs: Sequence[Tensor], num_graphs: int
    ) -> None:
        self.masks, self.row_graphs, self.num_graphs = list(masks), list(row_graphs), num_graphs
        sizes = [mask.numel() for mask in masks]
        self._offsets = [sum(sizes[:t]) for t in range(len(sizes) + 1)]
        legal = [mask.reshape(-1).nonzero().squeeze(1) for mask in masks]
        self._position = torch.cat([at + offset for at, offset in zip(legal, self._offsets, strict=False)])  # [L]
        self._graph = torch.cat(
            [graphs[at // mask.shape[1]] for at, graphs, mask in zip(legal, row_graphs, masks, strict=True)]
        )  # [L]
        self._logits = torch.cat([x.reshape(-1)[at] for x, at in zip(logits, legal, strict=True)])  # [L]
        self._counts = torch.bincount(self._graph, minlength=num_graphs)  # [B]
        if bool((self._counts == 0).any()):
            graph = int((self._counts == 0).nonzero()[0])
            raise ValueError(f"graph {graph}: expected at least one legal action, got none")

    @property
    def logits(self) -> list[Tensor]:
        """Return the logits, one [M_t, C_t] per type, -inf where masked."""
        flat = self._logits.new_full((self._offsets[-1],), -math.inf).index_put((self._position,), self._logits)
        bounds = zip(self._offsets, self._offsets[1:], self.masks, strict=False)
        return [flat[start:stop].reshape(mask.shape) for start, stop, mask in bounds]

    def logsumexp(self) -> Tensor:
        """Return the log-normaliser of each graph, [B]."""
        largest = self._largest(self._logits.detach())
        total = torch.zeros_like(largest).index_add(0, self._graph, (self._logits - largest[self._graph]).exp())
        return total.log() + largest

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of one action per graph, [B]; an illegal action has -inf.

        Args:
            actions: (type, row, column), [B, 3] int64.
        """
        position = self._flat_position(actions)
        at = torch.searchsorted(self._position, position).clamp(max=len(self._position) - 1)
        legal = self._position[at] == position
        return torch.where(legal, self.log_probs()[1][at], -math.inf)

    def log_probs(self) -> tuple[Tensor, Tensor]:
        """Return the graph [L] and the log-probability [L] of every legal action, types in order, rows ascending."""
        # The largest logit comes off first: beside a log-normaliser of 1e4, float32 keeps three digits of a difference.
        shifted = self._logits - self._largest(self._logits.detach())[self._graph]
        total = shifted.new_zeros(self.num_graphs).index_add(0, self._graph, shifted.exp())
        return self._graph, shifted - total.log()[self._graph]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return one action per graph, [B, 3] int64, by the Gumbel-max trick.

        Raises:
            FloatingPointError: the logits of a graph are not numbers.
        """
        noise = torch.empty_like(self._logits, dtype=torch.float64).exponential_(generator=generator).log()
        return self._best(self._logits.detach().double() - noise)

    def argmax(self) -> Tensor:
        """Return the most likely action of each graph, [B, 3] int64; the first one of equals."""
        return self._best(self._logits.detach())

    def entropy(self) -> Tensor:
        """Return the entropy of each graph's distribution in nats, [B]."""
        _, log_p = self.log_probs()
        return torch.zeros_like(self._largest(log_p.detach())).index_add(0, self._graph, -log_p.exp() * log_p)

    def log_n_actions(self) -> Tensor:
        """Return the logarithm of the number of legal actions of each graph, [B]."""
        return self._counts.to(self._logits.dtype).log()

    def tempered(self, temperature: float) -> GraphActionCategorical:
        """Return the distribution with its logits divided by a temperature > 0.

        Raises:
            ValueError: the temperature is not positive.
        """
        if not temperature > 0:
            raise ValueError(f"temperature: expected a number > 0, got {temperature}")
        return self._with(self._logits / temperature)

    def mixed(self, epsilon: float) -> GraphActionCategorical:
        """Return the mixture (1 - epsilon) p + epsilon u with the uniform distribution u over the legal actions.

        Raises:
            ValueError: epsilon is not in [0, 1].
        """
        if not 0 <= epsilon <= 1:
            raise ValueError(f"epsilon: expected a number in [0, 1], got {epsilon}")
        if epsilon == 0:
            return self
        uniform = -self.log_n_actions()[self._graph] + math.log(epsilon)
        if epsilon == 1:
            return self._with(uniform)
        return self._with(torch.logaddexp(self.log_probs()[1] + math.log1p(-epsilon), uniform))

    def _with(self, legal_logits: Tensor) -> GraphActionCategorical:
        twin = object.__new__(GraphActionCategorical)
        twin.__dict__.update(self.__dict__)
        twin._logits = legal_logits
        return twin

    def _largest(self, values: Tensor) -> Tensor:
        lowest = values.new_full((self.num_graphs,), -math.inf)
        return lowest.scatter_reduce(0, self._graph, values, "amax")

    def _best(self, values: Tensor) -> Tensor:
        """Return the action with the largest value of each graph; the first one of equals."""
        winner = values == self._largest(values)[self._graph]
        index = torch.arange(len(values))[winner]
        first = torch.full((self.num_graphs,), len(values)).scatter_reduce(0, self._graph[winner], index, "amin")
        lost = (first == len(values)).nonzero().squeeze(1)
        if len(lost):
            raise FloatingPointError(f"graph {int(lost[0])}: expected numbers as logits, got nan")
        return self._actions(self._position[first])

    def _actions(self, position: Tensor) -> Tensor:
        """Return the (type, row, column) [B, 3] behind one flat position per graph."""
        actions = torch.zeros(self.num_graphs, 3, dtype=torch.int64)
        for t, (mask, graphs) in enumerate(zip(self.masks, self.row_graphs, strict=True)):
            at = ((position >= self._offsets[t]) & (position < self._offsets[t + 1])).nonzero().squeeze(1)
            local, columns = position[at] - self._offsets[t], max(mask.shape[1], 1)
            actions[at, 0] = t
            actions[at, 1] = local // columns - torch.searchsorted(graphs, at)
            actions[at, 2] = local % columns
        return actions

    def _flat_position(self, actions: Tensor) -> Tensor:
        """Return the flat position of one action per graph, [B]; an action outside its graph's rows has -1."""
        flat = torch.full((self.num_graphs,), -1, dtype=torch.int64)
        for t, (mask, graphs) in enumerate(zip(self.masks, self.row_graphs, strict=True)):
            at = (actions[:, 0] == t).nonzero().squeeze(1)
            row, column = actions[at, 1] + torch.searchsorted(graphs, at), actions[at, 2]
            inside = (row < torch.searchsorted(graphs, at, right=True)) & (column >= 0) & (column < mask.shape[1])
            flat[at] = torch.where(inside & (actions[at, 1] >= 0), self._offsets[t] + row * mask.shape[1] + column, -1)
        return flat
