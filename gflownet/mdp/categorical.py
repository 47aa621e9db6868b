"""One categorical distribution per graph over actions (type, row, column), for ragged groups of logits.

Letters: B graphs, T action types, M_t rows of all graphs and C_t columns of type t, R_t maximum rows of one graph of
type t, A = sum of R_t C_t slots of a graph, L legal actions of all graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gflownet.mdp.action import INVALID, ActionBatch, ActionLayout

_CPU = torch.device("cpu")
_BELOW_ONE = 1 - 2**-52  # keeps a uniform number times a total strictly below that total in float64


class GraphActionCategorical:
    """B independent distributions; actions are (type, row, column), rows counted within a graph.

    The logits of a graph are stored in A slots, -inf for illegal actions, so that each operation is one over a matrix
    [B, A]. Illegal actions have probability 0 and carry no gradient.

    Args:
        logits: one tensor [M_t, C_t] per type.
        masks: legal entries, one bool tensor [M_t, C_t] per type.
        row_graphs: the graph of every row, ascending, one int64 tensor [M_t] per type.
        num_graphs: B.
        may_be_empty: whether graphs without legal actions are allowed; their actions have no probability.

    Raises:
        ValueError: a graph has no legal action; the message names it.
    """

    def __init__(
        self,
        logits: Sequence[Tensor],
        masks: Sequence[Tensor],
        *,
        row_graphs: Sequence[Tensor],
        num_graphs: int,
        may_be_empty: bool = False,
    ) -> None:
        self._rows: list[tuple[Tensor, Tensor]] | None = [(g, _rank(g, num_graphs)) for g in row_graphs]
        self._lay_out(
            [_padded(x, *at, num_graphs) for x, at in zip(logits, self._rows, strict=True)],
            [_padded(x, *at, num_graphs) for x, at in zip(masks, self._rows, strict=True)],
            may_be_empty=may_be_empty,
        )

    @classmethod
    def dense(
        cls, logits: Sequence[Tensor], masks: Sequence[Tensor], *, may_be_empty: bool = False
    ) -> GraphActionCategorical:
        """Return the distributions over the same rows for every graph.

        Args:
            logits: one tensor [B, R_t, C_t] per type.
            masks: legal entries, bool tensors of the same shapes.
            may_be_empty: whether graphs without legal actions are allowed.

        Raises:
            ValueError: a graph has no legal action; the message names it.
        """
        self = object.__new__(cls)
        self._rows = None
        self._lay_out(logits, masks, may_be_empty=may_be_empty)
        return self

    @property
    def num_graphs(self) -> int:
        """Return B."""
        return self._logits.shape[0]

    @property
    def logits(self) -> list[Tensor]:
        """Return the logits, -inf where illegal, one per type: [M_t, C_t], of `dense` distributions [B, R_t, C_t]."""
        parts = zip(self._layout.slices.values(), self._layout.shapes, strict=True)
        dense = [self._logits[:, slots].unflatten(1, shape) for slots, (_, *shape) in parts]
        return dense if self._rows is None else [x[at] for x, at in zip(dense, self._rows, strict=True)]

    @property
    def slots(self) -> Tensor:
        """Return the logits of all slots, [B, A], -inf for illegal actions."""
        return self._logits

    def with_slots(self, logits: Tensor) -> GraphActionCategorical:
        """Return distributions over the same legal actions with other logits [B, A]."""
        return self._with(logits.masked_fill(~self._mask, -math.inf))

    def logits_of(self, actions: Tensor) -> Tensor:
        """Return the logit of one action (type, row, column) per graph, [B]; -inf of an illegal one."""
        graphs = torch.arange(self.num_graphs, device=self._logits.device)
        slot, exists = self._slots(actions, graphs)
        return torch.where(exists, self._logits[graphs, slot], -math.inf)

    def __getitem__(self, graphs: slice) -> GraphActionCategorical:
        """Return the distributions of consecutive graphs."""
        start, stop, _ = graphs.indices(self.num_graphs)
        part = self._with(self._logits[start:stop])
        part._mask = self._mask[start:stop]
        if self._rows is not None:
            inside = [(graph >= start) & (graph < stop) for graph, _ in self._rows]
            part._rows = [(g[i] - start, row[i]) for (g, row), i in zip(self._rows, inside, strict=True)]
        return part

    def repeated(self, graphs: Tensor) -> GraphActionCategorical:
        """Return the distributions of the given graphs [B'] in the dense layout."""
        part = self._with(self._logits[graphs])
        part._mask, part._rows = self._mask[graphs], None
        return part

    def logsumexp(self) -> Tensor:
        """Return the log-normaliser of each graph, [B]."""
        return self._logits.logsumexp(1)

    def log_prob(self, actions: Tensor, *, graphs: Tensor | None = None) -> Tensor:
        """Return the log-probability of A actions, [A]; an illegal action has -inf.

        Args:
            actions: (type, row, column), [A, 3] int64.
            graphs: graph of each action, [A]; one action per graph, in order, by default.
        """
        graphs = torch.arange(self.num_graphs) if graphs is None else graphs
        graphs = graphs.to(self._logits.device)
        slot, exists = self._slots(actions, graphs)
        return torch.where(exists, self._logits.log_softmax(1)[graphs, slot], -math.inf)

    def log_probs(self) -> tuple[Tensor, Tensor]:
        """Return the graph [L] and the log-probability [L] of every legal action, by type, then by graph."""
        graphs, values, log_p = [], [], self._logits.log_softmax(1)
        for slots in self._layout.slices.values():
            graph, slot = self._mask[:, slots].nonzero(as_tuple=True)
            graphs.append(graph)
            values.append(log_p[:, slots][graph, slot])
        return torch.cat(graphs), torch.cat(values)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Return one sampled action per graph, [B, 3] int64, in main memory.

        Raises:
            FloatingPointError: a graph has nan or inf logits; the message names it.
        """
        if self._logits.device.type != "cpu":
            actions = self.sample_on_device(generator).cpu()
            refuse_invalid(actions[:, 0])
            return actions
        slot, is_valid = self._sampled_slots(generator)
        if not bool(is_valid.all()):
            refuse_invalid(torch.where(is_valid, 0, INVALID).squeeze(1))
        return self._actions(slot.squeeze(1))

    def sample_on_device(self, generator: torch.Generator | None = None) -> Tensor:
        """Return one sampled action per graph, [B, 3] int64, without waiting for the device.

        INVALID three times for a graph with nan or inf logits.
        """
        slot, is_valid = self._sampled_slots(generator)
        return self._actions(torch.where(is_valid, slot, self._logits.shape[1]).squeeze(1))

    @torch.no_grad()
    def _sampled_slots(self, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return a slot of each graph, [B, 1], by inverting the cumulative distribution, and whether it is valid.

        The uniform numbers come from main memory, so that all devices sample the same actions.
        """
        cumulated = self._cumulated()
        total = cumulated[:, -1:]
        uniform = torch.rand(total.shape, dtype=torch.float64, generator=generator, device=_CPU).mul_(_BELOW_ONE)
        # The first slot above the threshold is legal, because cumulative sums only rise at legal actions.
        slot = torch.searchsorted(cumulated, sent(uniform, cumulated.device).mul_(total), right=True)
        return slot, total > 0  # nan otherwise: softmax of nan, of inf, or of no legal action

    def _cumulated(self) -> Tensor:
        """Return the cumulative distributions, [B, A] float64."""
        return self._logits.softmax(1).cumsum(1, dtype=torch.float64)

    @torch.no_grad()
    def cumulated(self) -> np.ndarray:
        """Return the cumulative distributions, [B, A] float64, for `sampled_slots`.

        Raises:
            FloatingPointError: a graph has nan or inf logits; the message names it.
        """
        cumulated = self._cumulated().cpu().numpy()
        is_valid = cumulated[:, -1] > 0
        if not is_valid.all():
            refuse_invalid(torch.where(torch.from_numpy(is_valid), 0, INVALID))
        return cumulated

    def slots_of(self, actions: Tensor, *, graphs: Tensor) -> Tensor:
        """Return the slots of legal actions (type, row, column) [K, 3] of some graphs, [K] int64."""
        return self._slots(actions, graphs)[0]

    def argmax(self) -> Tensor:
        """Return the most likely action of each graph, [B, 3] int64; the first one of ties."""
        return self._actions(self._logits.argmax(1)).cpu()

    def entropy(self) -> Tensor:
        """Return the entropy of each graph's distribution in nats, [B]."""
        log_p = self._logits.log_softmax(1).masked_fill(~self._mask, 0.0)
        return -(log_p.exp() * log_p).sum(1)

    def log_n_actions(self) -> Tensor:
        """Return the logarithm of the number of legal actions of each graph, [B]."""
        return self._mask.sum(1).to(self._logits.dtype).log()

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
        mixture = (1 - epsilon) * self._logits.softmax(1) + epsilon / self._mask.sum(1, keepdim=True)
        # Illegal slots are masked because the gradient of the logarithm is infinite at zero.
        return self._with(mixture.log().masked_fill(~self._mask, -math.inf))

    def _lay_out(self, logits: Sequence[Tensor], masks: Sequence[Tensor], *, may_be_empty: bool) -> None:
        """Concatenate the [B, R_t, C_t] of all types and check that every graph has a legal action."""
        self._layout = ActionLayout(tuple((t, mask.shape[1], mask.shape[2]) for t, mask in enumerate(masks)))
        self._mask = torch.cat([mask.flatten(1) for mask in masks], 1)  # [B, A]
        flat = torch.cat([x.flatten(1) for x in logits], 1)
        if flat.dtype in (torch.bfloat16, torch.float16):
            flat = flat.float()  # probabilities need more than three digits
        self._logits = flat.masked_fill(~self._mask, -math.inf)  # [B, A]
        has_action = self._mask.any(1)
        if may_be_empty:
            self._logits = self._logits.masked_fill(~has_action[:, None], 0.0)  # finite values, never read
        elif has_action.device.type == "cpu" and not bool(has_action.all()):  # on a device the sample is INVALID
            graph = int((~has_action).nonzero()[0])
            raise ValueError(f"graph {graph}: expected at least one legal action, got none")

    def _with(self, logits: Tensor) -> GraphActionCategorical:
        other = object.__new__(GraphActionCategorical)
        other.__dict__.update(self.__dict__)
        other._logits = logits
        return other

    def _actions(self, slot: Tensor) -> Tensor:
        """Return the (type, row, column) [B, 3] of one slot per graph."""
        return self._layout.entries(slot.device).index_select(0, slot)

    def _slots(self, actions: Tensor, graphs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slot of every action, [A], and whether it is legal in its graph, [A] bool."""
        slot = self._layout.find(ActionBatch(*actions.to(self._logits.device).unbind(1)))
        exists, slot = slot >= 0, slot.clamp(min=0)
        return slot, exists & self._mask[graphs, slot]


def sampled_slots(cumulated: np.ndarray, generator: torch.Generator) -> np.ndarray:
    """Return one slot for each cumulative distribution [K, A], [K] int64, as `GraphActionCategorical.sample` does."""
    uniform = torch.rand((len(cumulated), 1), dtype=torch.float64, generator=generator, device=_CPU).numpy()
    return (cumulated > uniform * _BELOW_ONE * cumulated[:, -1:]).argmax(1)


def refuse_invalid(kinds: Tensor) -> None:
    """Raise FloatingPointError for the first INVALID action, sampled from logits that are no numbers."""
    invalid = kinds == INVALID
    if bool(invalid.any()):
        raise FloatingPointError(f"graph {int(invalid.nonzero()[0])}: expected numbers as logits, got nan or inf")


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; a GPU gets a copy from pinned memory, and the host does not wait."""
    if values.device == device:
        return values
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.contiguous().pin_memory().to(device, non_blocking=True)


def _rank(graphs: Tensor, num_graphs: int) -> Tensor:
    """Return the position of every row within its graph, [M]."""
    first = torch.searchsorted(graphs, torch.arange(num_graphs, device=graphs.device))
    return torch.arange(len(graphs), device=graphs.device) - first[graphs]


def _padded(values: Tensor, graphs: Tensor, rank: Tensor, num_graphs: int) -> Tensor:
    """Return rows [M, C] as [B, R, C], padded with zeros (False)."""
    num_rows = int(rank.max()) + 1 if len(rank) else 0
    return values.new_zeros(num_graphs, num_rows, values.shape[1]).index_put((graphs, rank), values)
