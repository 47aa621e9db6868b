"""Log-probabilities of tokens under the model, before any processing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gflownet.rhn.serving.sampling import Sampled


def with_log_probabilities(tokens: Sequence[int], logits: Tensor, counts: Sequence[int | None]) -> list[Sampled]:
    """Return tokens with their log-probabilities.

    Args:
        tokens: N.
        logits: [N, V], each row of the token before.
        counts: N numbers of likeliest tokens to report; None: the token without log-probabilities.
    """
    log_probabilities = logits.double().log_softmax(-1)
    largest = min(max((count for count in counts if count is not None), default=0), logits.shape[-1])
    values, indices = (each.tolist() for each in log_probabilities.topk(largest))
    own = log_probabilities.gather(-1, torch.tensor(tokens, device=logits.device).unsqueeze(-1)).squeeze(-1).tolist()
    return [
        Sampled(token)
        if count is None
        else Sampled(token, own[row], tuple(zip(indices[row][:count], values[row][:count], strict=True)))
        for row, (token, count) in enumerate(zip(tokens, counts, strict=True))
    ]
