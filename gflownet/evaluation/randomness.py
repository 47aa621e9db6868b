"""Seeds and random states of single candidates."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def candidate_seed(run_seed: int, canonical_hash: str, repeat: int = 0) -> int:
    """Return the seed of a candidate, 31 bits: valid for every generator. Each repeat has another one."""
    text = f"{run_seed}:{canonical_hash}" + (f":{repeat}" if repeat else "")
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch (CPU), numpy and Python in the block and restore them after it."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def global_states() -> dict[str, Any]:
    """Return the states of the global generators of `seeded` as tensors and plain containers."""
    name, key, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "numpy": (str(name), torch.from_numpy(np.asarray(key).astype(np.int64)), *rest),
        "python": random.getstate(),
    }


def set_global_states(states: Mapping[str, Any]) -> None:
    """Set the global generators to the result of `global_states`."""
    name, key, *rest = states["numpy"]
    torch.set_rng_state(states["torch"])
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
