"""Seeded random stacks of recurrent layers in float64 with non-zero adapters."""

from __future__ import annotations

import random

from gflownet.rhn.config import CELLS, GATED_CELLS, PROJECTIONS, REPEAT, StackConfig, StackLayer
from gflownet.rhn.stack_model import RecurrentStack
from tests.rhn.random_networks import scattered


def random_layer(chance: random.Random, *, may_repeat: bool) -> StackLayer:
    """Return a layer of random options."""
    cell = chance.choice((*CELLS, "rhn", REPEAT) if may_repeat else CELLS)
    is_gated = cell in GATED_CELLS
    return StackLayer(
        cell=cell,
        rank=chance.randint(1, 2),
        projections=tuple(name for name in PROJECTIONS if chance.random() < 0.6),
        beta=chance.random() < 0.5,
        ratio=chance.choice((0.5, 2.0)),
        residual=not is_gated or chance.random() < 0.6,
        units=chance.choice((None, 1, 3, 7)) if is_gated else None,
    )


def random_stack(seed: int) -> RecurrentStack:
    """Return a stack of one to six random layers with random weights."""
    chance = random.Random(seed)
    config = StackConfig(
        tuple(random_layer(chance, may_repeat=place > 0) for place in range(chance.randint(1, 6))),
        width=chance.randint(2, 5),
        vocabulary_size=chance.randint(2, 7),
        bottleneck=chance.randint(1, 3),
        epsilon=1e-3,
    )
    return scattered(RecurrentStack(config), seed)
