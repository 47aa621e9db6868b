"""Compiled steps equal eager ones, and are padded to a power of two rows."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import RHNDecoder
from tests.rhn.random_networks import random_network

CONFIG = RHNConfig(vocabulary_size=5, hidden_size=8, intermediate_size=8, depth=1, rank=1, bottleneck=7)


def test_compiled_steps_equal_eager_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the C++ compiler, which takes half a minute: scripts/bench_serving.py runs it.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    network = random_network(CONFIG, 0)
    plain, compiled = RHNDecoder(network), RHNDecoder(network, compiled=True)
    torch.manual_seed(0)
    tokens, states = torch.randint(5, (4,)), torch.randn(1, 4, 8, dtype=torch.float64)
    starts = torch.tensor([True, False, False, True])
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (4, 3):
            wanted = plain.step(tokens[:rows], states[:, :rows], starts[:rows])
            got = compiled.step(tokens[:rows], states[:, :rows], starts[:rows])
            for one, other in zip(got, wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
