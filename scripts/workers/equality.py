"""Are the rollouts of one worker those that the main process makes?"""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from gflownet.data.config import ReplayConfig, WorkersConfig
from gflownet.data.source import Rollout
from scripts.bench import Row
from scripts.workers.parts import BATCH_SIZE, BUFFERS, POLICIES, TRANSPORTS, made_parts

DATALOADER = WorkersConfig(backend="dataloader")
WAYS = {**dict.fromkeys(TRANSPORTS, WorkersConfig()), f"{BUFFERS} with a DataLoader": DATALOADER}
REPLAY = ReplayConfig(warmup=BATCH_SIZE, num_from_replay=16)


def measure(*, num_rollouts: int) -> list[Row]:
    """Return which share of the rollouts is the same, bit for bit, by each transport and backend."""
    rows = []
    for name, policy in POLICIES.items():
        with made_parts(policy, replay=REPLAY) as parts:
            expected = list(islice(parts.here(), num_rollouts))
        for transport, config in WAYS.items():
            with (
                made_parts(policy, replay=REPLAY) as parts,
                closing(parts.of_workers(transport.split()[0], num_workers=1, config=config)) as stream,
            ):
                same = sum(is_same(ours, next(stream)) for ours in expected) / num_rollouts
            rows.append(Row(f"{name}, {transport}: rollouts of one worker as made here", same, "", "= 1", same == 1))
    return rows


def is_same(ours: Rollout, theirs: Rollout) -> bool:
    """Return whether two rollouts have the same scores and, bit for bit, the same trajectories."""
    scores = [[evaluation.score for evaluation in rollout.evaluations] for rollout in (ours, theirs)]
    pairs = zip(_tensors(ours.trajectories), _tensors(theirs.trajectories), strict=True)
    return scores[0] == scores[1] and all(_is_same_tensor(a, b) for a, b in pairs)


def _is_same_tensor(ours: Tensor | None, theirs: Tensor | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def _tensors(value: Any) -> list[Tensor | None]:
    if is_dataclass(value):
        return [tensor for field in fields(value) for tensor in _tensors(getattr(value, field.name))]
    return [value]
