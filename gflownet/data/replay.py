"""Terminal states seen before, to be trained on again."""

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

TOP_QUANTILE = 0.9  # "the best": scores from this quantile of the buffer on
RANK_OFFSET = 0.01  # k of Tripp et al. 2020, appendix: the smaller, the more the best are preferred


@dataclass(frozen=True)
class SeenStates:
    """B terminal states with their scores and, where they are kept, the trajectories that found them."""

    terminal: GraphStates  # B states
    scores: Tensor  # [B], or utilities [B, K]
    sequences: ActionSequences | None = None  # B

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.scores)

    def __getitem__(self, index: Tensor | slice) -> SeenStates:
        """Return the states chosen by an index."""
        sequences = None if self.sequences is None else self.sequences[index]
        return SeenStates(self.terminal[index], self.scores[index], sequences)

    @staticmethod
    def cat(parts: Sequence[SeenStates]) -> SeenStates:
        """Return the states of all parts one after another."""
        sequences = [part.sequences for part in parts if part.sequences is not None]
        return SeenStates(
            GraphStates.cat([part.terminal for part in parts]),
            torch.cat([part.scores for part in parts]),
            ActionSequences.cat(sequences) if len(sequences) == len(parts) else None,
        )

    @property
    def quality(self) -> Tensor:
        """Return what ranks the states, [B]: the score, or the mean of the utilities."""
        return self.scores if self.scores.ndim == 1 else self.scores.mean(1)


class ReplayBuffer:
    """Distinct terminal states with their scores; the oldest or the worst make room for new ones.

    What is kept is the score, not the reward: that depends on the conditioning under which a state is replayed. Threads
    may share a buffer: one answers workers while another saves it.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.config = config
        self._keys: list[str] = []  # canonical keys, oldest first
        self._seen: SeenStates | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of states kept."""
        return len(self._keys)

    def add(self, seen: SeenStates, *, keys: Sequence[str]) -> int:
        """Keep the states whose exact identity (their canonical key) is new, and return how many are kept in all."""
        with self._lock:
            known = set(self._keys)
            fresh = [i for i, key in enumerate(keys) if key not in known and key not in keys[:i]]
            if fresh:
                self._add(seen[torch.tensor(fresh)], [keys[i] for i in fresh])
            return len(self)

    def _add(self, seen: SeenStates, keys: Sequence[str]) -> None:
        together = seen if self._seen is None else SeenStates.cat([self._seen, seen])
        index = torch.arange(len(together))[-self.config.capacity :]
        if self.config.evict == "worst":  # of equals the oldest
            index = together.quality.argsort(stable=True)[-self.config.capacity :].sort().values
        known = [*self._keys, *keys]
        self._keys, self._seen = [known[i] for i in index.tolist()], together[index]

    def sample(self, num: int, *, seed: int) -> SeenStates | None:
        """Return `num` states, better ones more often unless the priority is uniform; None until `warmup` are kept.

        Each is there as often as expected but for less than once: none twice before all are there that weigh as much.
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
            seen = self._seen
            if seen is None:
                return {"keys": [], "states": None, "scores": None, "sequences": None}
            states = {f.name: getattr(seen.terminal, f.name) for f in fields(GraphStates)}
            kept = seen.sequences
            sequences = None if kept is None else [kept.num_actions, *kept.actions.parts]
            return {"keys": list(self._keys), "states": states, "scores": seen.scores, "sequences": sequences}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._keys, self._seen = list(state["keys"]), None
        if state["states"] is None:
            return
        sequences = None
        if state["sequences"] is not None:
            num_actions, *parts = state["sequences"]
            sequences = ActionSequences(num_actions, ActionBatch(*parts))
        self._seen = SeenStates(GraphStates(**state["states"]), state["scores"], sequences)


def draw(weights: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Return `num` indices, each as often as its weight says, but for less than once (systematic sampling).

    The expected counts are those of independent draws. What varies is only who gets what is left over, and so far less
    (Madow & Madow 1944, here in random order).

    Args:
        weights: [B], not negative, not all 0.
        num: how many.
        generator: draws the order and the offset.
    """
    order = torch.randperm(len(weights), generator=generator)
    expected = weights[order].double().cumsum(0)  # [B]
    point = torch.arange(num) + torch.rand((), generator=generator, dtype=torch.float64)
    index = torch.searchsorted(expected * (num / expected[-1]), point, right=True)
    return order[index.clamp(max=len(order) - 1)]  # whatever rounding did


def _uniform(quality: Tensor, config: ReplayConfig) -> Tensor:
    """Return equal weights."""
    return torch.ones_like(quality)


def _mixed(quality: Tensor, config: ReplayConfig) -> Tensor:
    """Return a share for the best tenth, the rest for all (prioritized replay training, Shen et al. 2023, section 4).

    There, the rest goes to the other nine tenths.
    """
    best = (quality >= quality.quantile(TOP_QUANTILE)).float()
    return config.top_share * best / best.sum() + (1 - config.top_share) / len(quality)


def _rank(quality: Tensor, config: ReplayConfig) -> Tensor:
    """Return weights 1 / (k size + rank), rank 0 the best (Tripp et al. 2020, eq. 4).

    Ranks, unlike rewards, mean the same at every temperature; equals share the best rank among them.
    """
    rank = len(quality) - torch.searchsorted(quality.sort().values, quality, right=True)
    return 1 / (RANK_OFFSET * len(quality) + rank)


Priority = Callable[[Tensor, ReplayConfig], Tensor]  # qualities [B] -> weights [B]
PRIORITIES: dict[str, Priority] = {"uniform": _uniform, "mixed": _mixed, "rank": _rank}
