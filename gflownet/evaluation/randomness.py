"""Seeds and random states of single candidates."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gflownet.random_states import seeded as seeded


def candidate_seed(run_seed: int, canonical_hash: str, repeat: int = 0) -> int:
    """Return the seed of a candidate, 31 bits: valid for every generator. Each repeat has another one."""
    text = f"{run_seed}:{canonical_hash}" + (f":{repeat}" if repeat else "")
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


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
