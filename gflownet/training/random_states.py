"""Global random generators of torch, numpy and Python: their states, and their use by a candidate for a while.

torch has one per device; that of a GPU counts where this process uses it.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_lock = threading.RLock()
# The thread that has seeded the generators for a candidate, and the states of the run meanwhile.
_borrower: int | None = None
_states_of_run: tuple[Any, ...] | None = None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators in the block and restore them after it.

    Meanwhile other threads read and set the states of the run, see `get_random_state`. A block of another thread must
    not start before this one ends; blocks of one thread may be nested.
    """
    global _borrower, _states_of_run
    with _lock:
        is_outermost, before = _borrower is None, _read()
        if is_outermost:
            _borrower, _states_of_run = threading.get_ident(), before
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
    try:
        yield
    finally:
        with _lock:
            if is_outermost:
                before = _states_of_run or before
                _borrower = _states_of_run = None
            _write(before)


def get_random_state() -> dict[str, Any]:
    """Return the states of torch's, numpy's and Python's generator; in other threads than a candidate's, the run's.

    They are tensors and plain containers, as `torch.load(weights_only=True)` reads.
    """
    with _lock:
        of_torch, (_, keys, position, has_gauss, cached), (version, words, gauss), of_gpu = _lent() or _read()
    return {
        "torch": of_torch,
        **({} if of_gpu is None else {"cuda": of_gpu}),
        "python": [version, list(words), gauss],
        "numpy": [torch.from_numpy(np.asarray(keys).astype(np.int64)), int(position), int(has_gauss), float(cached)],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the result of `get_random_state`."""
    global _states_of_run
    version, words, gauss = state["python"]
    keys, position, has_gauss, cached = state["numpy"]
    of_numpy = ("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached)
    values = (state["torch"], of_numpy, (version, tuple(words), gauss), state.get("cuda"))
    with _lock:
        if _lent():
            _states_of_run = values
        else:
            _write(values)


def candidate_seed(run_seed: int, canonical_hash: str, repeat: int = 0) -> int:
    """Return the seed of a candidate, 31 bits: valid for every generator. Each repeat has another one."""
    text = f"{run_seed}:{canonical_hash}" + (f":{repeat}" if repeat else "")
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _lent() -> tuple[Any, ...] | None:
    """Return the states of the run in other threads than that of a candidate; None without a candidate."""
    return _states_of_run if _borrower != threading.get_ident() else None


def _read() -> tuple[Any, ...]:
    of_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), np.random.get_state(legacy=True), random.getstate(), of_gpu


def _write(values: tuple[Any, ...]) -> None:
    torch.set_rng_state(values[0])
    np.random.set_state(values[1])
    random.setstate(values[2])
    if values[3] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(values[3])
