"""Read prompts and answers: chunks of long prompts between the steps of all requests, for a bounded share of the time.

A chunk takes tokens of several prompts at once, because the model reads many rows for little more than the price of
one. A short prompt, and the end of a long one, takes one token per step with the other requests: such a row adds less
than a chunk of a few tokens.

R is the number of requests, V of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.cache import CacheManager
from gflownet.rhn.serving.requests import ActiveRequest

SHORT_PROMPT = 32  # tokens that are read one per step, while other requests answer
MIN_CHUNK = 8  # tokens of the shortest chunk worth a call, while no request answers


@dataclass(frozen=True)
class PrefillConfig:
    """Size of chunks and their share of the time.

    Raises:
        ValueError: a value out of its bounds.
    """

    tokens: int = 64  # maximum number of tokens of each prompt in a chunk
    prompts: int = 8  # maximum number of prompts in a chunk
    share: float = 0.25  # of the time, while other requests take steps; they keep the rest of their rate

    def __post_init__(self) -> None:
        for name in ("tokens", "prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.share < 1:
            raise ValueError(f"share: expected a number > 0 and < 1, got {self.share}")


@dataclass(frozen=True)
class Chunk:
    """The next tokens of some prompts."""

    requests: Sequence[ActiveRequest]
    num_tokens: int  # of each; the last token of a prompt is never one of them


class Prefill:
    """Decide which requests read a chunk, and when. Not thread-safe."""

    def __init__(self, config: PrefillConfig, *, interval: int) -> None:
        """Chunks end where a multiple of `interval` tokens of a prompt is read."""
        self._config, self._interval = config, interval
        self._debt = 0.0  # seconds of steps until the next chunk
        self._turns = count(1)

    def plan(self, active: Sequence[ActiveRequest]) -> tuple[list[ActiveRequest], Chunk | None]:
        """Return the requests that take one token in this step, and the chunk to read before it, if any."""
        answers = any(request.num_unread <= 1 for request in active)
        longest_row = SHORT_PROMPT if answers else MIN_CHUNK
        rows, prompts = [], []
        for request in active:
            (prompts if request.num_unread > longest_row else rows).append(request)
        if not prompts or (rows and self._debt > 0):
            return rows, None
        return rows, self._chunk(sorted(prompts, key=lambda request: request.turn))

    def _chunk(self, prompts: Sequence[ActiveRequest]) -> Chunk:
        """Return the chunk of the prompt that waited longest, and of prompts with an equal one; set their turns."""
        kinds = [self._kind(request) for request in prompts]
        alike = [request for request, kind in zip(prompts, kinds, strict=True) if kind == kinds[0]]
        requests = alike[: self._config.prompts]
        for request in requests:
            request.turn = next(self._turns)
        return Chunk(requests, kinds[0][0])

    def _kind(self, request: ActiveRequest) -> tuple[int, bool]:
        """Return number of tokens, and whether they start the sequence."""
        border = (request.num_read // self._interval + 1) * self._interval
        num_tokens = min(border - request.num_read, request.num_unread - 1, self._config.tokens)
        return num_tokens, request.starts

    def ran(self, *, chunk_seconds: float, step_seconds: float, had_rows: bool) -> None:
        """Account for the time of a step: a chunk is paid for by the following steps."""
        share = self._config.share
        paid = step_seconds * share / (1 - share)
        self._debt = max(0.0, self._debt + chunk_seconds - paid) if had_rows else 0.0


def read_tokens(requests: Sequence[ActiveRequest], cache: CacheManager, model: LanguageModel) -> Tensor:
    """Read the next token of each request and return the logits [R, V] of the token after it.

    Each of the requests, at least one, has a slot in the cache; their states are replaced, `num_read` is advanced.
    """
    device = model.device
    tokens = [request.tokens[request.num_read] for request in requests]
    starts = [request.starts for request in requests]
    request_ids = [request.request_id for request in requests]
    # Through numpy: torch reads a list at a fifth of the speed.
    logits, new_state = model.step(
        torch.from_numpy(np.array(tokens)).to(device),
        cache.get_caches(request_ids),
        torch.from_numpy(np.array(starts)).to(device) if any(starts) else None,
    )
    cache.update_caches(request_ids, new_state)
    for request in requests:
        request.num_read += 1
    return logits


def read_chunk(chunk: Chunk, cache: CacheManager, model: LanguageModel) -> None:
    """Read a chunk; the states of its requests in the cache are replaced, `num_read` is advanced."""
    requests = chunk.requests
    request_ids = [request.request_id for request in requests]
    parts = [request.tokens[request.num_read : request.num_read + chunk.num_tokens] for request in requests]
    tokens = torch.from_numpy(np.array(parts)).to(model.device)
    _, new_state = model.prefill(tokens, None if requests[0].starts else cache.get_caches(request_ids))
    cache.update_caches(request_ids, new_state)
    for request in requests:
        request.num_read += chunk.num_tokens
