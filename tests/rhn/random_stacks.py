"""Seeded random stacks of recurrent layers in float64, with adapters that do something."""

from __future__ import annotations

import random

import torch

from gflownet.rhn.stack_config import CELLS, PROJECTIONS, REPEAT, StackConfig, StackLayer
from gflownet.rhn.stack_model import RecurrentStack


def random_layer(chance: random.Random, *, may_repeat: bool) -> StackLayer:
    """Return a layer of random options."""
    return StackLayer(
        cell=chance.choice((*CELLS, "rhn", REPEAT) if may_repeat else CELLS),
        rank=chance.randint(1, 2),
        projections=tuple(name for name in PROJECTIONS if chance.random() < 0.6),
        beta=chance.random() < 0.5,
        ratio=chance.choice((0.5, 2.0)),
    )


def random_stack(seed: int) -> RecurrentStack:
    """Return a stack of one to six random layers whose weights are far from where they start."""
    chance = random.Random(seed)
    config = StackConfig(
        tuple(random_layer(chance, may_repeat=place > 0) for place in range(chance.randint(1, 6))),
        width=chance.randint(2, 5),
        vocabulary_size=chance.randint(2, 7),
        bottleneck=chance.randint(1, 3),
        epsilon=1e-3,
    )
    generator = torch.Generator().manual_seed(seed)
    model = RecurrentStack(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = 1.0 if name == "embedding" else 0.4 * max(parameter.shape[-1], 1) ** -0.5
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std
            parameter.copy_(noise + (1 if name.endswith("norm.weight") else 0))
    return model
