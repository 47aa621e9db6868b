"""Read tokens of requests with the model: one of each, or a chunk of prompts.

R is the number of requests, V of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.cache import CacheManager
from gflownet.rhn.serving.logprobs import with_log_probabilities
from gflownet.rhn.serving.prefill import Chunk
from gflownet.rhn.serving.requests import ActiveRequest
from gflownet.rhn.serving.sampling import Sampled

# Next tokens of prompts whose log-probabilities are requested, by request id.
PromptScores = Mapping[int, Sequence[Sampled]]


def read_tokens(requests: Sequence[ActiveRequest], cache: CacheManager, model: LanguageModel) -> Tensor:
    """Read the next token of each request and return the logits [R, V] of the token after it.

    Args:
        requests: at least one, each with a slot in the cache; `num_read` is advanced by one.
        cache: holds their states, which are replaced.
        model: the language model.
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


def scores_after_tokens(requests: Sequence[ActiveRequest], logits: Tensor) -> PromptScores:
    """Return the next token of each prompt that is scored; logits [R, V]."""
    rows = [row for row, request in enumerate(requests) if request.scores_prompt and request.num_unread > 0]
    if not rows:
        return {}
    scored = [requests[row] for row in rows]
    tokens = [request.tokens[request.num_read] for request in scored]
    sampled = with_log_probabilities(tokens, logits[rows], [one.request.params.prompt_logprobs for one in scored])
    return {request.request_id: [token] for request, token in zip(scored, sampled, strict=True)}


def read_chunk(chunk: Chunk, cache: CacheManager, model: LanguageModel) -> PromptScores:
    """Read a chunk and return the tokens after each of its tokens, if they are scored.

    Args:
        chunk: of requests with slots in the cache; `num_read` is advanced.
        cache: holds their states, which are replaced.
        model: the language model.
    """
    requests = chunk.requests
    request_ids = [request.request_id for request in requests]
    parts = [request.tokens[request.num_read : request.num_read + chunk.num_tokens] for request in requests]
    tokens = torch.from_numpy(np.array(parts)).to(model.device)
    state = None if requests[0].starts else cache.get_caches(request_ids)
    scores_prompt = requests[0].scores_prompt
    logits, new_state = (model.read if scores_prompt else model.prefill)(tokens, state)
    cache.update_caches(request_ids, new_state)
    scores = {}
    for row, request in enumerate(requests):
        request.num_read += chunk.num_tokens
        if scores_prompt:
            after = request.tokens[request.num_read - chunk.num_tokens + 1 : request.num_read + 1]
            counts = [request.request.params.prompt_logprobs] * len(after)
            scores[request.request_id] = with_log_probabilities(after, logits[row], counts)
    return scores
