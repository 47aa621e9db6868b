"""The state of the process-wide random generators, as something a checkpoint may hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def get_random_state() -> dict[str, Any]:
    """Return the states of torch's, numpy's and Python's generators as tensors and plain containers."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # type: ignore[misc]
    return {
        "torch": torch.get_rng_state(),
        "python": [version, list(words), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(cached)],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore a state returned by `get_random_state`."""
    version, words, gauss = state["python"]
    keys, position, has_gauss, cached = state["numpy"]
    torch.set_rng_state(state["torch"])
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))


def stream_seed(seed: int, *stream: int) -> int:
    """Return the seed of one of a run's independent streams of randomness, which one or more numbers name."""
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_all(seed: int) -> None:
    """Seed torch's, numpy's and Python's generators of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
