"""Worker id, device and random generator of the present process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import get_worker_info as get_loader_worker_info

CPU = torch.device("cpu")


@dataclass(frozen=True)
class WorkerInfo:
    """Identity of a worker process."""

    id: int
    num_workers: int
    generation: int = 0  # how often it was restarted
    num_taken: int = 0  # messages that its predecessors have given: a restarted worker goes on from there
    seed: int = 0  # of this worker's global generators


_info: WorkerInfo | None = None
_main_device = CPU


def get_worker_info() -> WorkerInfo | None:
    """Return the identity of this worker, also in a plain `DataLoader`; None in the main process."""
    if _info is not None:
        return _info
    info = get_loader_worker_info()
    return None if info is None else WorkerInfo(info.id, info.num_workers, seed=info.seed)


def set_worker_info(info: WorkerInfo) -> None:
    """Make this process a worker."""
    global _info
    _info = info


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
    checkpoint: draws from it are reproducible as draws from `np.random` are.
    """
    return np.random.mtrand._rand  # as scikit-learn's check_random_state(None) does


def set_worker_rng_seed(seed: int) -> None:
    """Seed numpy's global generator with the sum of the seed and the worker's id."""
    info = get_worker_info()
    get_worker_rng().seed((seed + (0 if info is None else info.id)) % 2**32)
