"""Generate answers without a server: one as a stream, or many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.engine import Engine, EngineConfig
from gflownet.rhn.serving.requests import FinishEvent, Request, TokenEvent
from gflownet.rhn.serving.sampler import Sampler
from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingError, SamplingParams
from gflownet.rhn.serving.scheduler import SchedulerConfig
from gflownet.rhn.serving.stopping import new_answer
from gflownet.rhn.text_codec import BYTES

DEFAULT_PARAMS = SamplingParams()


@dataclass(frozen=True)
class Generation:
    """An output."""

    sampled: tuple[Sampled, ...]  # its tokens, with log-probabilities if requested
    finish_reason: FinishReason

    @property
    def tokens(self) -> list[int]:
        """Tokens of the answer, without the prompt."""
        return [sampled.token for sampled in self.sampled]


@dataclass
class Stream:
    """An answer as an iterator over its tokens; each iteration runs the model.

    `finish_reason` is None until the end. To continue, start from `state` [layers, 1, width], which is the state after
    the tokens that the model has read, with `unread`, the tokens sampled after them.
    """

    model: LanguageModel
    prompt: Sequence[int]
    params: SamplingParams = DEFAULT_PARAMS
    state: Tensor | None = None  # of the tokens before the prompt
    finish_reason: FinishReason | None = field(default=None, init=False)
    unread: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        """Check the request.

        Raises:
            ValueError: an empty prompt, a token outside the vocabulary, or a state of another shape.
        """
        before = None if self.state is None else self.state[:, 0]
        Request(self.prompt, self.params, state=before).check(self.model)
        self._tokens = self._run()

    def __iter__(self) -> Iterator[Sampled]:
        """Return the iterator over the tokens of the answer; tokens that may begin a stop string are held back.

        Raises:
            ValueError: no token can be sampled: see `SamplingError`.
        """
        return self._tokens

    def _run(self) -> Iterator[Sampled]:
        model, device = self.model, self.model.device
        sampler = Sampler(1, model.vocabulary_size, device)
        sampler.place(0, self.params, self.prompt)
        output = new_answer(self.params, BYTES)
        logits, self.state = model.prefill(torch.tensor([list(self.prompt)], device=device), self.state)
        while self.finish_reason is None:
            (sampled,) = sampler.sample([0], logits, [True])
            if isinstance(sampled, SamplingError):
                raise ValueError(str(sampled))
            assert sampled is not None
            self.unread = (sampled.token,)
            num_shown = output.num_shown
            self.finish_reason = output.add(sampled)
            yield from output.sampled[num_shown : output.num_shown]
            if self.finish_reason is None:
                logits, self.state = model.step(torch.tensor([sampled.token], device=device), self.state, None)


def generate(
    model: LanguageModel, prompt: Sequence[int], params: SamplingParams = DEFAULT_PARAMS, *, state: Tensor | None = None
) -> Generation:
    """Return the answer to a prompt: one prefill, then one step of one row per token.

    Args:
        model: the language model.
        prompt: tokens, at least one.
        params: of the output.
        state: [layers, 1, width] of the tokens before the prompt; None at the beginning.

    Raises:
        ValueError: as in `Stream`.
    """
    stream = Stream(model, prompt, params, state)
    sampled = tuple(stream)
    assert stream.finish_reason is not None
    return Generation(sampled, stream.finish_reason)


def generate_batch(
    model: LanguageModel, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, max_slots: int = 32
) -> list[Generation]:
    """Return the answers to prompts of any lengths, computed by an `Engine` with `max_slots` slots.

    Logits agree with `generate` and with a server up to rounding. So do greedy tokens unless two tokens are equally
    likely up to rounding, and sampled tokens with a seed unless the random number is within rounding of a boundary
    between two tokens.

    Args:
        model: the language model.
        prompts: tokens, at least one each.
        params: of each output.
        max_slots: rows of a step.

    Raises:
        ValueError: unequal numbers of prompts and parameters, an invalid request (`Engine.submit`), or a failed output.
    """
    requests = [Request(prompt, of_answer) for prompt, of_answer in zip(prompts, params, strict=True)]
    num_tokens = sum(len(request.prompt) + request.params.max_tokens for request in requests)
    scheduler = SchedulerConfig(max_slots, len(requests), max_waiting=float("inf"), token_budget=max(1, num_tokens))
    engine = Engine(model, EngineConfig(scheduler))
    ids = [engine.submit(request) for request in requests]
    sampled: dict[int, list[Sampled]] = {request_id: [] for request_id in ids}
    reasons: dict[int, FinishReason] = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenEvent):
                sampled[event.request_id].append(event.sampled)
            elif isinstance(event, FinishEvent):
                if event.finish_reason is FinishReason.ERROR:
                    raise ValueError(f"prompt {ids.index(event.request_id)}: {event.error}")
                reasons[event.request_id] = event.finish_reason
    return [Generation(tuple(sampled[request_id]), reasons[request_id]) for request_id in ids]
