"""Truncated backpropagation in chunks, compared with the oracle."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.network import Stack, backward_in_chunks
from gflownet.rhn.wavefront import along_wavefront, in_groups
from tests.oracles import rhn as oracle
from tests.rhn.random_networks import Case, random_case


def _expected(case: Case, targets: Tensor, chunk: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return loss, last state and gradients."""
    config, parameters = case.network.config, dict(case.network.named_parameters())
    state, loss = case.state, torch.zeros((), dtype=torch.float64)
    for first in range(0, case.tokens.shape[1], chunk):
        part = slice(first, first + chunk)
        logits, last = oracle.forward(
            parameters, case.tokens[:, part], depth=config.depth, epsilon=config.epsilon, state=state, norm=config.norm
        )
        loss = loss + F.cross_entropy(logits.flatten(0, 1), targets[:, part].flatten(), reduction="sum")
        state = last.detach()
    assert state is not None
    loss = loss / targets.numel()
    gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return loss.detach(), state, list(gradients)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("stack", [along_wavefront, partial(in_groups, layers=2)], ids=["one group", "groups of 2"])
def test_backward_in_chunks_equals_oracle(seed: int, stack: Stack) -> None:
    case = random_case(100 + seed)
    chunk = 1 + seed % 4
    targets = case.tokens.flip(1)
    loss, state, gradients = _expected(case, targets, chunk)
    got, last = backward_in_chunks(case.network, case.tokens, targets, chunk=chunk, state=case.state, stack=stack)
    torch.testing.assert_close((got, last), (loss, state), rtol=1e-10, atol=1e-10)
    for parameter, gradient in zip(case.network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-8)


def test_invalid_chunk_raises() -> None:
    case = random_case(0)
    with pytest.raises(ValueError, match="targets: expected the shape"):
        backward_in_chunks(case.network, case.tokens, case.tokens[:, :0], chunk=1)
    with pytest.raises(ValueError, match="chunk: expected at least 1 token, got 0"):
        backward_in_chunks(case.network, case.tokens, case.tokens, chunk=0)
