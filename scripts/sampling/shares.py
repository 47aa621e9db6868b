"""Where the time of a sampling pass goes: the policy network, and each part around it."""

from __future__ import annotations

import functools
import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

from gflownet.data import sampler
from gflownet.data.sampler import sample_forward
from gflownet.mdp import answer
from gflownet.mdp.action import ActionMasks
from gflownet.mdp.categorical import GraphActionCategorical
from scripts.bench import Row, at_most, figure
from scripts.sampling.peer_settings import fixed_length
from scripts.sampling.sides import Ours

BATCHES = (64, 256)
MOST_OUTSIDE = 15.0  # percent
NETWORK, DISTRIBUTIONS, OTHER = "policy: network", "policy: distributions over legal actions", "everything else"
Profile = Mapping[str, float]  # wall seconds of one pass by label; together they are the whole pass


class Stopwatch:
    """Wall seconds by label; what one labelled function spends in another counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, its time put down under the label."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = perf_counter()
            result = function(*args, **kwargs)
            elapsed = perf_counter() - start
            self.seconds[label] += elapsed - self._inner.pop()
            if self._inner:
                self._inner[-1] += elapsed
            return result

        return run


def measure(*, num_rounds: int) -> list[Row]:
    """Print the profile of a pass at each batch size, and return the shares outside the policy."""
    passes = {batch: Ours(fixed_length(7, 12), batch=batch) for batch in BATCHES}
    for ours in passes.values():
        ours.sampled()
    gc.collect()
    gc.freeze()
    profiles: dict[int, list[Profile]] = {batch: [] for batch in BATCHES}
    for _ in range(num_rounds):
        for batch, ours in passes.items():
            profiles[batch].append(_profile(ours))
    rows = []
    for batch, of_batch in profiles.items():
        _print_profile(batch, of_batch)
        rows += _rows(batch, of_batch)
    return rows


def _profile(ours: Ours) -> Profile:
    """Return the profile of one pass."""
    watch = Stopwatch()
    with _watched(ours, watch):
        policy = watch.timed(NETWORK, ours.policy)
        sample = watch.timed(OTHER, sample_forward)
        sample(ours.context, policy, conditioning=ours.conditioning, generator=ours.generator)
    return watch.seconds


@contextmanager
def _watched(ours: Ours, watch: Stopwatch) -> Iterator[None]:
    """Time the parts of a sampling pass for as long as the context lasts."""
    context, env = ours.context, ours.context.env
    parts: list[tuple[Any, str, str]] = [
        (context, "categorical", DISTRIBUTIONS),
        (answer, "distinct", "telling states apart"),
        (GraphActionCategorical, "repeated", "telling states apart"),
        (context, "to_batch", "encoding"),
        (env, "forward_masks", "masks"),
        (GraphActionCategorical, "sample", "drawing actions"),
        (context, "from_indices", "drawing actions"),
        (env, "apply", "step"),
        (env, "backward_masks", "backward counts"),
        (ActionMasks, "num_actions", "backward counts"),
        (env, "num_automorphisms", "automorphisms"),
        (sampler, "assembled", "joining the steps"),
    ]
    with ExitStack() as stack:
        for owner, name, label in parts:
            stack.enter_context(patch.object(owner, name, watch.timed(label, getattr(owner, name))))
        yield


def _print_profile(batch: int, profiles: list[Profile]) -> None:
    medians = {label: median(profile[label] for profile in profiles) for label in profiles[0]}
    total = sum(medians.values())
    print(f"\nA sampling pass, batch {batch} (dense, width 64, 7 nodes, 13 states), wall time:")
    for label, seconds in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"  {label:40} {1e3 * seconds:8.2f} ms {100 * seconds / total:6.1f} %")


def _rows(batch: int, profiles: list[Profile]) -> list[Row]:
    """Return the share outside the policy, and the one outside its network proper."""
    label = f"share of a sampling pass, batch {batch}"
    outside = median(100 * (1 - (p[NETWORK] + p[DISTRIBUTIONS]) / sum(p.values())) for p in profiles)
    network = median(100 * (1 - p[NETWORK] / sum(p.values())) for p in profiles)
    return [
        at_most(f"{label}: outside policy(...)", outside, "%", MOST_OUTSIDE),
        figure(f"{label}: the same with the distributions that policy(...) returns", network, "%"),
    ]
