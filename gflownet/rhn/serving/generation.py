"""Generate answers without a server: one as a stream, or many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig
from gflownet.rhn.serving.requests import Request, TokenEvent
from gflownet.rhn.serving.sampling import FinishReason, Sampled, SamplingParams
from gflownet.rhn.text_codec import BYTES, TextCodec

DEFAULT_PARAMS = SamplingParams()


@dataclass(frozen=True)
class Generation:
    """An output."""

    sampled: tuple[Sampled, ...]  # its tokens, with log-probabilities if requested
    finish_reason: FinishReason
    cut: int = 0  # last characters of the last token that a stop string excludes; 0 for bytes
    error: str = ""  # the message if finish_reason is ERROR

    @property
    def tokens(self) -> list[int]:
        """Tokens of the answer, without the prompt."""
        return [sampled.token for sampled in self.sampled]


class Stream:
    """An answer as an iterator over its tokens; each iteration runs the model.

    `finish_reason` is None until the end. To continue after it, start from `state` [layers, 1, width], which is the
    state after the tokens that the model has read, with `unread`, the tokens sampled after them.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: Sequence[int],
        params: SamplingParams = DEFAULT_PARAMS,
        state: Tensor | None = None,
        *,
        codec: TextCodec = BYTES,
    ) -> None:
        """Check the request.

        Args:
            model: the language model.
            prompt: tokens, at least one.
            params: of the answer.
            state: [layers, 1, width] of the tokens before the prompt; None at the beginning.
            codec: finds stop strings.

        Raises:
            ValueError: an empty prompt, a token outside the vocabulary, or a state of another shape.
        """
        self.state = state
        self.finish_reason: FinishReason | None = None
        self.unread: tuple[int, ...] = ()
        self.cut = 0  # as of `Generation`
        self._engine = Engine(model, EngineConfig(SchedulerConfig(max_slots=1), prefix_bytes=0, codec=codec))
        before = None if state is None else state[:, 0]
        self._engine.submit(Request(prompt, params, state=before, keep_state=True))
        self._tokens = self._run()

    def __iter__(self) -> Iterator[Sampled]:
        """Return the iterator over the tokens of the answer; tokens that may begin a stop string are held back.

        Raises:
            ValueError: no token can be sampled: see `SamplingError`.
        """
        return self._tokens

    def _run(self) -> Iterator[Sampled]:
        while self.finish_reason is None:
            for event in self._engine.step():
                if isinstance(event, TokenEvent):
                    yield event.sampled
                    continue
                if event.finish_reason is FinishReason.ERROR:
                    raise ValueError(event.error)
                assert event.state is not None
                self.finish_reason, self.unread, self.cut = event.finish_reason, event.unread, event.cut
                self.state = event.state.unsqueeze(1)


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    params: SamplingParams = DEFAULT_PARAMS,
    *,
    state: Tensor | None = None,
    codec: TextCodec = BYTES,
) -> Generation:
    """Return the answer to a prompt; arguments and errors as in `Stream`."""
    stream = Stream(model, prompt, params, state, codec=codec)
    sampled = tuple(stream)
    assert stream.finish_reason is not None
    return Generation(sampled, stream.finish_reason, stream.cut)


def generate_batch(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    max_slots: int = 32,
    codec: TextCodec = BYTES,
) -> list[Generation]:
    """Return the answers to prompts of any lengths, computed by an `Engine` with `max_slots` slots.

    Logits agree with `generate` and with a server up to rounding. So do greedy tokens unless two tokens are equally
    likely up to rounding, and sampled tokens with a seed unless the random number is within rounding of a boundary
    between two tokens.

    Raises:
        ValueError: unequal numbers of prompts and parameters, an invalid request (`Engine.submit`), or a failed output.
    """
    requests = [Request(prompt, of_answer) for prompt, of_answer in zip(prompts, params, strict=True)]
    engine = Engine(model, EngineConfig(SchedulerConfig(max_slots, len(requests)), codec=codec))
    by_place = dict(answers(engine, requests, max_running=len(requests)))
    for place, answer in by_place.items():
        if answer.finish_reason is FinishReason.ERROR:
            raise ValueError(f"prompt {place}: {answer.error}")
    return [by_place[place] for place in range(len(requests))]


def answers(
    engine: Engine, requests: Iterable[Request], *, max_running: int, is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, Generation]]:
    """Yield the number and the answer of each request when it is finished, until `is_stopped`, asked before each step.

    At most `max_running` requests are submitted at once. Raises as `Engine.submit`.
    """
    waiting, running = enumerate(requests), dict[int, tuple[int, list[Sampled]]]()
    while not is_stopped():
        for place, request in islice(waiting, max_running - len(running)):
            running[engine.submit(request)] = place, []
        if not running:
            return
        for event in engine.step():
            if isinstance(event, TokenEvent):
                running[event.request_id][1].append(event.sampled)
            else:
                place, sampled = running.pop(event.request_id)
                yield place, Generation(tuple(sampled), event.finish_reason, event.cut, event.error)
