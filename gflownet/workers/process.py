"""State of the current process: worker identity, device, random generators, reuse of freed memory."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import threading
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info as get_loader_worker_info

CPU = torch.device("cpu")

# Parameters of mallopt(3). Setting the first stops the C library from raising the second by itself.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST = 2**31 - 1, 32 << 20


@dataclass(frozen=True)
class WorkerInfo:
    """Identity of a worker process."""

    id: int
    num_workers: int
    seed: int = 0  # of this worker's global generators


_main_device = CPU


def get_worker_info() -> WorkerInfo | None:
    """Return the identity of this `DataLoader` worker; None in the main process."""
    info = get_loader_worker_info()
    return None if info is None else WorkerInfo(info.id, info.num_workers, seed=info.seed)


def get_worker_device() -> torch.device:
    """Return the device for new tensors: the run's device in the main process, the CPU in a worker."""
    return _main_device if get_worker_info() is None else CPU


def set_main_process_device(device: torch.device) -> None:
    """Set the device that `get_worker_device` returns in the main process."""
    global _main_device
    _main_device = device


def get_worker_rng() -> np.random.RandomState:
    """Return numpy's global generator (a `RandomState`) of this process.

    It differs between workers, is seeded with the other global generators before every rollout, and is part of a
    checkpoint: draws from it are as reproducible as draws from `np.random`.
    """
    return np.random.mtrand._rand  # as scikit-learn's check_random_state(None) does


def set_worker_rng_seed(seed: int) -> None:
    """Seed numpy's global generator with the sum of the seed and the worker's id."""
    info = get_worker_info()
    get_worker_rng().seed((seed + (0 if info is None else info.id)) % 2**32)


@unique
class Stream(IntEnum):
    """Random streams of a seed; those of a step, a round or a call follow its number."""

    # Of a run.
    POLICY, TRAJECTORIES, CERTIFICATE, AUXILIARY, MEMORY, RANDOM_NETWORKS, SEARCH, SAMPLER, LATENCY = range(9)
    # Of a training step.
    FRESH, REPLAYED, REPLAY_CHOICE, VALIDATION, GLOBAL, LOCAL_SEARCH, FINISHED, OFFLINE, TAUGHT = range(10, 19)
    # Of a certificate, and of a sampling.
    CONDITIONING, FORWARD, BACKWARD, INTERVALS, RULES, OPTIMUM, WALKS, LOSS = range(20, 28)
    CHOICE, BACKWARD_CONDITIONING = range(28, 30)
    # Of a search.
    RANDOM, POOL, ORDER, BATCH, ACTIONS, POLICY_SAMPLES, TARGET, UPDATES, WEIGHTS, DESCRIPTORS = range(30, 40)
    START, NEIGHBOURS, SAMPLER_POOL, CHECK = range(40, 44)


def stream_seed(seed: int, *stream: int) -> int:
    """Return the seed of one of the independent random streams of a seed: a `Stream`, or integers with one."""
    return int(np.random.SeedSequence(seed, spawn_key=stream).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_all(seed: int) -> None:
    """Seed torch's, numpy's and Python's generators of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def exit_with_parent() -> None:
    """End this process with the one that started it, even while it computes or waits."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), daemon=True).start()


def _exit_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse; call it before the first large allocation.

    Otherwise each freed large tensor is returned to the kernel, and the next one is faulted in page by page: a tenth
    of a training step's time, and far more on machines whose memory is not all backed yet.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
