"""Loss of a language model on a held-out text that it reads in long streams, as in generation.

R is the number of streams, T of tokens of one forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.evaluation.language_batches import rows_at

_MAX_STREAMS = 64
# Shorter streams would be dominated by their beginnings, where little is known.
_MIN_STREAM_TOKENS = 512
_PASS_TOKENS = 128


@torch.no_grad()
def streamed_loss(
    model: nn.Module, text: Tensor, *, num_tokens: int, is_stopped: Callable[[], bool] = lambda: False
) -> float:
    """Return the mean cross-entropy in nats per token over evenly spaced streams, through which the state passes.

    Args:
        model: maps tokens [R, T] and a state to logits and a state.
        text: [N] tokens, at least two.
        num_tokens: predicted tokens, rounded down to equal streams, at most N - 1.
        is_stopped: asked before each pass; a stopped computation returns nan.
    """
    device = next(model.parameters()).device
    total = min(num_tokens, len(text) - 1)
    num_streams = max(1, min(_MAX_STREAMS, total // _MIN_STREAM_TOKENS))
    length = total // num_streams
    starts = torch.linspace(0, len(text) - 1 - length, num_streams, dtype=torch.float64).long()
    was_training = model.training
    model.eval()
    state, loss = None, 0.0
    for first in range(0, length, _PASS_TOKENS):
        if is_stopped():
            loss = math.nan
            break
        rows = rows_at(text, starts + first, min(_PASS_TOKENS, length - first)).to(device)
        logits, state = model(rows[:, :-1]) if state is None else model(rows[:, :-1], state)
        loss += float(F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum").double())
    model.train(was_training)
    return loss / (num_streams * length)


def bits_per_byte_of(loss: float, *, num_tokens: int, num_bytes: int) -> float:
    """Return bits per byte for a mean loss in nats per token on a text of so many tokens and bytes."""
    return loss * num_tokens / num_bytes / math.log(2)
