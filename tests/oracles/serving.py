"""One answer without an engine: the model reads one token per step, prompt and answer alike."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.requests import Answer, Request
from gflownet.rhn.serving.sampler import TokenSampler
from gflownet.rhn.serving.sampling import FinishReason, Sampled
from gflownet.rhn.text_codec import BYTES


@dataclass(frozen=True)
class SlowAnswer:
    """What an engine should return for a request."""

    sampled: list[Sampled]
    finish_reason: FinishReason
    state: Tensor  # [layers, width]


def slow_answer(model: LanguageModel, request: Request) -> SlowAnswer:
    params, (layers, width) = request.params, model.state_shape
    sampler, answer = TokenSampler(1, model.vocabulary_size, model.device), Answer(params, BYTES)
    sampler.place(0, params, request.prompt)
    starts, state = request.state is None, torch.zeros(layers, 1, width, dtype=model.dtype)
    if request.state is not None:
        state = request.state.unsqueeze(1)
    logits = torch.zeros(0)
    for number, token in enumerate(request.prompt, 1):
        logits, state = model.step(torch.tensor([token]), state, torch.tensor([starts and number == 1]))
    reason = FinishReason.LENGTH if params.max_tokens == 0 else None
    while reason is None:
        (sampled,) = sampler.sample([0], logits, [True])
        assert isinstance(sampled, Sampled)
        reason = answer.add(sampled)
        if reason is None:
            logits, state = model.step(torch.tensor([sampled.token]), state, None)
    return SlowAnswer(answer.sampled[: answer.num_shown], reason, state[:, 0])
