"""Memory of earlier trajectory batches for later updates, and merging of isomorphic states."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import torch

from gflownet.data.action_sequences import ActionSequences, action_sequences
from gflownet.evaluation.conditioning import Conditioning
from gflownet.mdp.action import ActionBatch
from gflownet.mdp.environment import Environment
from gflownet.mdp.isomorphism import CanonicalForms
from gflownet.mdp.trajectory import Origin, TrajectoryBatch


@dataclass(frozen=True)
class FormedBatch:
    """Trajectories and, where isomorphic states are merged, the canonical forms of their states."""

    trajectories: TrajectoryBatch
    forms: CanonicalForms | None

    def first(self, num: int) -> FormedBatch:
        """Return the first `num` trajectories."""
        if num == len(self.trajectories):
            return self
        forms = None if self.forms is None else self.forms[self.trajectories.trajectory < num]
        return FormedBatch(self.trajectories.part(0, num), forms)


class TrajectoryMemory:
    """The last `capacity` batches of sampled trajectories."""

    def __init__(self, env: Environment, *, capacity: int, merges: bool) -> None:
        self._env, self._merges = env, merges
        self._batches: deque[FormedBatch] = deque(maxlen=capacity)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    def add(self, batch: FormedBatch) -> None:
        """Add a batch; a full memory drops the oldest."""
        trajectories = batch.trajectories
        origin = torch.full_like(trajectories.origin, int(Origin.REMEMBERED))
        self._batches.append(replace(batch, trajectories=replace(trajectories, origin=origin)))

    def sample(self, num: int, *, generator: torch.Generator) -> list[FormedBatch]:
        """Return `num` batches drawn uniformly with replacement, none from an empty memory."""
        indices = torch.randint(max(len(self), 1), (num,), generator=generator).tolist()
        return [self._batches[i] for i in indices if self._batches]

    def state_dict(self) -> dict[str, Any]:
        """Return the batches as action sequences, safe to load with `weights_only=True`."""
        return {"batches": [_packed(self._env, batch.trajectories) for batch in self._batches]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self._batches.clear()
        for packed in state["batches"]:
            trajectories = _unpacked(self._env, packed)
            self._batches.append(formed(self._env, trajectories, merges=self._merges))


def formed(env: Environment, trajectories: TrajectoryBatch, *, merges: bool) -> FormedBatch:
    """Return the trajectories with the canonical forms of their states if `merges`."""
    return FormedBatch(trajectories, env.canonical_forms(trajectories.states) if merges else None)


def merge_isomorphic(env: Environment, batch: TrajectoryBatch, forms: CanonicalForms) -> TrajectoryBatch:
    """Return isomorphic trajectories in which isomorphic states of the batch are equal arrays.

    Each step's state becomes the first isomorphic state of the batch, and its actions are translated to it, so that a
    policy reads each isomorphism class once. The log-probabilities of a policy that is invariant under isomorphism
    stay the same.

    Args:
        env: the environment of the trajectories.
        batch: trajectories with S steps.
        forms: canonical forms of the S states.
    """
    directed = env.vocabulary.directed
    representative = forms.representatives()
    names = forms.isomorphism(representative)  # [S, N]
    step, successor = batch.successors()
    names_after = names.clone()  # of the state after each action, in which the backward action is taken
    names_after[step] = names[successor]
    return replace(
        batch,
        states=batch.states[representative],
        actions=batch.actions.renamed(names, directed=directed),
        backward=batch.backward.renamed(names_after, directed=directed),
    )


def _packed(env: Environment, batch: TrajectoryBatch) -> dict[str, Any]:
    sequences = action_sequences(env, batch)
    return {
        "num_actions": sequences.num_actions,
        "actions": list(sequences.actions.parts),
        "conditioning": batch.conditioning,
        "beta": batch.beta,
        "log_reward": batch.log_reward,
        "state_log_reward": batch.optional_state_log_reward,
    }


def _unpacked(env: Environment, packed: dict[str, Any]) -> TrajectoryBatch:
    sequences = ActionSequences(packed["num_actions"], ActionBatch(*packed["actions"]))
    conditioning = Conditioning(packed["conditioning"], packed["beta"])
    batch = sequences.walk(env, conditioning=conditioning, origin=Origin.REMEMBERED)
    batch = batch.with_rewards(packed["log_reward"])
    return batch if packed["state_log_reward"] is None else batch.with_state_rewards(packed["state_log_reward"])
