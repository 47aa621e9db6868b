"""Merging of isomorphic states: one representative of each class, so that a policy reads each class once."""

from __future__ import annotations

from dataclasses import replace

from gflownet.mdp.environment import Environment
from gflownet.mdp.identifier import CanonicalForms
from gflownet.mdp.trajectory import TrajectoryBatch


def merge_isomorphic(env: Environment, batch: TrajectoryBatch, forms: CanonicalForms) -> TrajectoryBatch:
    """Return isomorphic trajectories in which isomorphic states of the batch are equal arrays.

    Each step's state becomes the first isomorphic state of the batch, and its actions are translated to it. A policy
    that treats isomorphic states alike gives every step the same log-probabilities as before; nothing else changes.

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
