"""Global random generators of torch, numpy and Python: their states, and their use by a candidate for a while.

torch has one per device; that of a GPU counts where this process uses it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators in the block and restore them after it."""
    before = _read()
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        _write(before)


def get_random_state() -> dict[str, Any]:
    """Return the states of torch's, numpy's and Python's generator.

    They are tensors and plain containers, as `torch.load(weights_only=True)` reads.
    """
    of_torch, (_, keys, position, has_gauss, cached), (version, words, gauss), of_gpu = _read()
    return {
        "torch": of_torch,
        **({} if of_gpu is None else {"cuda": of_gpu}),
        "python": [version, list(words), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(cached)],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the result of `get_random_state`."""
    version, words, gauss = state["python"]
    keys, position, has_gauss, cached = state["numpy"]
    of_numpy = ("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached)
    _write((state["torch"], of_numpy, (version, tuple(words), gauss), state.get("cuda")))


def candidate_seed(run_seed: int, canonical_hash: str, repeat: int = 0) -> int:
    """Return the seed of a candidate, 31 bits: valid for every generator. Each repeat has another one."""
    text = f"{run_seed}:{canonical_hash}" + (f":{repeat}" if repeat else "")
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _read() -> tuple[Any, ...]:
    of_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), np.random.get_state(legacy=True), random.getstate(), of_gpu


def _write(values: tuple[Any, ...]) -> None:
    torch.set_rng_state(values[0])
    np.random.set_state(values[1])
    random.setstate(values[2])
    if values[3] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(values[3])
