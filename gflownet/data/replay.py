"""Replay buffer of scored terminal states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from gflownet.data.action_sequences import ActionSequences
from gflownet.data.config import ReplayConfig
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.states import GraphStates

TOP_QUANTILE = 0.9  # of the scores in the buffer: above it are the best states
RANK_OFFSET = 0.01  # k of Tripp et al. 2020, appendix: smaller values prefer the best more


@dataclass(frozen=True)
class SeenStates:
    """B terminal states with their scores and optionally the action sequences that built them."""

    terminal: GraphStates  # B states
    scores: Tensor  # [B], or utilities [B, K]
    sequences: ActionSequences | None = None  # B

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.scores)

    def __getitem__(self, index: Tensor | slice) -> SeenStates:
        """Return the states selected by an index."""
        sequences = None if self.sequences is None else self.sequences[index]
        return SeenStates(self.terminal[index], self.scores[index], sequences)

    @staticmethod
    def cat(batches: Sequence[SeenStates]) -> SeenStates:
        """Concatenate batches of states."""
        sequences = [batch.sequences for batch in batches if batch.sequences is not None]
        return SeenStates(
            GraphStates.cat([batch.terminal for batch in batches]),
            torch.cat([batch.scores for batch in batches]),
            ActionSequences.cat(sequences) if len(sequences) == len(batches) else None,
        )

    @property
    def quality(self) -> Tensor:
        """Return the ranking criterion [B]: the score, or the mean of the utilities."""
        return self.scores if self.scores.ndim == 1 else self.scores.mean(1)


class ReplayBuffer:
    """Distinct terminal states with their scores; a full buffer drops the oldest or the worst.

    It stores scores, not rewards, which depend on the conditioning of the replayed trajectory. Thread-safe: one thread
    serves workers while another saves a checkpoint.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        self._keys: list[str] = []  # canonical keys, oldest first
        self._seen: SeenStates | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self._keys)

    def add(self, states: SeenStates, *, keys: Sequence[str]) -> int:
        """Add the states whose canonical key is new, and return the size of the buffer."""
        with self._lock:
            stored = set(self._keys)
            new = [i for i, key in enumerate(keys) if key not in stored and key not in keys[:i]]
            if new:
                self._add(states[torch.tensor(new)], [keys[i] for i in new])
            return len(self)

    def _add(self, states: SeenStates, keys: Sequence[str]) -> None:
        together = states if self._seen is None else SeenStates.cat([self._seen, states])
        index = torch.arange(len(together))[-self.config.capacity :]
        if self.config.evict == "worst":  # the oldest of equal states
            index = together.quality.argsort(stable=True)[-self.config.capacity :].sort().values
        all_keys = [*self._keys, *keys]
        self._keys, self._seen = [all_keys[i] for i in index.tolist()], together[index]

    def sample(self, num: int, *, seed: int) -> SeenStates | None:
        """Return `num` states drawn by priority; None until the buffer holds `warmup` states.

        Counts differ from their expectation by less than 1 (systematic sampling).
        """
        generator = torch.Generator().manual_seed(seed)
        with self._lock:
            if self._seen is None or len(self) < self.config.warmup:
                return None
            weights = PRIORITIES[self.config.priority](self._seen.quality, self.config)
            return self._seen[draw(weights, num, generator)]

    def state_dict(self) -> dict[str, Any]:
        """Return the contents as tensors and strings, safe to load with `weights_only=True`."""
        with self._lock:
            contents = self._seen
            if contents is None:
                return {"keys": [], "states": None, "scores": None, "sequences": None}
            states = {f.name: getattr(contents.terminal, f.name) for f in fields(GraphStates)}
            actions = contents.sequences
            sequences = None if actions is None else [actions.num_actions, *actions.actions.parts]
            return {"keys": list(self._keys), "states": states, "scores": contents.scores, "sequences": sequences}

    def load_state_dict(
        self, state: dict[str, Any], *, key_of: Callable[[GraphStates, int], str] | None = None
    ) -> None:
        """Restore the result of `state_dict`.

        Args:
            state: the result.
            key_of: canonical key of a state; if given, other keys (of an earlier version) are computed again.
        """
        self._keys, self._seen = list(state["keys"]), None
        if state["states"] is None:
            return
        sequences = None
        if state["sequences"] is not None:
            num_actions, *parts = state["sequences"]
            sequences = ActionSequences(num_actions, ActionBatch(*parts))
        states = GraphStates(**state["states"])
        if key_of is not None and self._keys and key_of(states, 0) != self._keys[0]:
            self._keys = [key_of(states, index) for index in range(len(states))]
        self._seen = SeenStates(states, state["scores"], sequences)


def draw(weights: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Draw `num` indices in proportion to their weights by systematic sampling in random order (Madow & Madow 1944).

    The expected counts equal those of independent draws, and each count differs from its expectation by less than 1.

    Args:
        weights: [B], not negative, not all 0.
        num: number of draws.
        generator: of the order and the offset.
    """
    order = torch.randperm(len(weights), generator=generator)
    expected = weights[order].double().cumsum(0)  # [B]
    point = torch.arange(num) + torch.rand((), generator=generator, dtype=torch.float64)
    index = torch.searchsorted(expected * (num / expected[-1]), point, right=True)
    return order[index.clamp(max=len(order) - 1)]  # a rounded sum may exceed the last bound


def _uniform(quality: Tensor, config: ReplayConfig) -> Tensor:
    """Return equal weights."""
    return torch.ones_like(quality)


def _mixed(quality: Tensor, config: ReplayConfig) -> Tensor:
    """Return weights with `top_share` for the best tenth and the remainder for all states.

    Prioritized replay training, Shen et al. 2023, section 4, where the remainder goes to the other nine tenths.
    """
    best = (quality >= quality.quantile(TOP_QUANTILE)).float()
    return config.top_share * best / best.sum() + (1 - config.top_share) / len(quality)


def _rank(quality: Tensor, config: ReplayConfig) -> Tensor:
    """Return weights 1 / (k size + rank), rank 0 the best (Tripp et al. 2020, eq. 4).

    Ranks, unlike rewards, are the same at every temperature; equal states share their best rank.
    """
    rank = len(quality) - torch.searchsorted(quality.sort().values, quality, right=True)
    return 1 / (RANK_OFFSET * len(quality) + rank)


Priority = Callable[[Tensor, ReplayConfig], Tensor]  # qualities [B] -> weights [B]
PRIORITIES: dict[str, Priority] = {"uniform": _uniform, "mixed": _mixed, "rank": _rank}
