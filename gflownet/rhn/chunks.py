"""Truncated backpropagation through time: a long sequence in chunks, the state carried over, the gradient not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.network import RHN, WAVEFRONT, Stack


def backward_in_chunks(
    network: RHN,
    tokens: Tensor,
    targets: Tensor,
    *,
    chunk: int,
    state: Tensor | None = None,
    stack: Stack = WAVEFRONT,
) -> tuple[Tensor, Tensor]:
    """Add the gradient of the mean cross-entropy to the parameters' `grad`; memory is that of one chunk.

    The gradient is truncated between chunks (Williams and Peng 1990); with one chunk it is the whole one.

    Args:
        network: to differentiate.
        tokens: [R, T].
        targets: [R, T], the token after each.
        chunk: tokens that one backward pass spans.
        state: [depth, R, H] of the tokens before; None at the beginning.
        stack: how the layers are run.

    Returns:
        the loss, in nats per token, and the state [depth, R, H] to go on from, both detached.

    Raises:
        ValueError: targets of another shape than tokens, or a chunk without a token.
    """
    if targets.shape != tokens.shape:
        raise ValueError(f"targets: expected the shape {tuple(tokens.shape)} of tokens, got {tuple(targets.shape)}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 token, got {chunk}")
    total = torch.zeros((), dtype=network.embedding.weight.dtype, device=tokens.device)
    for inputs, answers in zip(tokens.split(chunk, 1), targets.split(chunk, 1), strict=True):
        logits, last = network(inputs, state, stack=stack)
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum") / tokens.numel()
        loss.backward()
        total, state = total + loss.detach(), last.detach()
    assert state is not None
    return total, state
