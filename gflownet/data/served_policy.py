"""The policy as workers see it: a copy whose weights change when a rollout begins only, and calls that merge."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from gflownet.mdp.categorical import GraphActionCategorical
from gflownet.mdp.layout import Batch, BatchLayout, Kinds
from gflownet.policy.on_device import PolicyOnDevice

_NUM_KEPT = 2  # a rollout begins after its predecessor was taken: it may want the weights before the last ones


class ServedPolicy:
    """Answers with the weights that the last `refresh` has chosen among those that `publish` has offered.

    The trainer publishes before it waits for a rollout, a worker refreshes before it begins one. One worker names the
    publication that it wants: its rollouts have one set of weights each, and timing does not decide which. Several
    share the weights, which change in the middle of a rollout when another begins.
    """

    def __init__(self, policy: PolicyOnDevice) -> None:
        self._policy = policy.policy
        self._served = copy.copy(policy)
        self._served.policy = copy.deepcopy(policy.policy)
        self._published: dict[int, dict[str, Tensor]] = {}  # number of the publication -> weights
        self._num_published = 0
        self._copying = threading.Lock()

    def __call__(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, Tensor]:
        """Return the policy's answer, see `Policy.forward`."""
        return self._served(batch, conditioning)

    def both(self, batch: Batch, conditioning: Tensor) -> tuple[GraphActionCategorical, GraphActionCategorical, Tensor]:
        """Return a two-way policy's answer, see `TwoWayPolicy.both`."""
        return self._served.both(batch, conditioning)

    def publish(self) -> None:
        """Offer the policy's weights of this moment; the first publication has the number 1."""
        weights = {name: value.detach().clone() for name, value in self._policy.state_dict().items()}
        with self._copying:
            self._num_published += 1
            self._published[self._num_published] = weights
            self._published.pop(self._num_published - _NUM_KEPT, None)

    def refresh(self, number: int | None) -> None:
        """Answer with the weights of this publication from now on, or with the last ones."""
        with self._copying:
            self._served.policy.load_state_dict(self._published[self._num_published if number is None else number])


class MergedPolicyCalls:
    """One forward pass for the calls of several workers (a `Merger`)."""

    def __init__(self, layout: BatchLayout, *answers: Kinds) -> None:
        """Keep how batches lie, and of which actions the distributions are that are answered, forward ones if none."""
        self._layout, self._answers = layout, answers or (layout.context.action_types,)

    def merge(self, calls: Sequence[tuple]) -> tuple[Batch, Tensor]:
        """Return one batch of the graphs of all calls, and their conditioning."""
        return self._layout.merge([batch for batch, _ in calls]), torch.cat([conditioning for _, conditioning in calls])

    def split(self, result: tuple, calls: Sequence[tuple]) -> list[tuple]:
        """Return every call's part of the distributions and, last, of the numbers."""
        *categoricals, numbers = result
        batches, sizes = [batch for batch, _ in calls], [len(conditioning) for _, conditioning in calls]
        answered = zip(categoricals, self._answers, strict=True)
        parts = [self._layout.split(categorical, batches, kinds) for categorical, kinds in answered]
        return list(zip(*parts, numbers.split(sizes), strict=True))
