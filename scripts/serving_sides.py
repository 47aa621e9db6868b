"""The ways to serve requests that continuous batching is measured beside, each a few steps at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel, RHNDecoder
from gflownet.rhn.serving.cache import CacheManager
from gflownet.rhn.serving.engine import Engine, EngineConfig
from gflownet.rhn.serving.generation import Stream
from gflownet.rhn.serving.requests import Request
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.serving.scheduler import SchedulerConfig

VOCABULARY = 256


class Loop(Protocol):
    """Serves requests without end."""

    def prepare(self) -> None:
        """Do what is not timed: in a server it happens in other threads."""
        ...

    def step(self) -> int:
        """Do one step; return how many tokens of prompts and answers were read for it."""
        ...


def even_requests(params: SamplingParams) -> Iterator[Request]:
    """Yield prompts of 8 to 32 tokens, each for an answer of 16 to 64."""
    chance = random.Random(0)
    while True:
        prompt = [chance.randrange(VOCABULARY) for _ in range(chance.randint(8, 32))]
        yield Request(prompt, replace(params, max_tokens=chance.randint(16, 64), seed=chance.getrandbits(32)))


def heavy_tailed_requests(params: SamplingParams) -> Iterator[Request]:
    """Yield prompts of 8 tokens, for answers of Pareto lengths: exponent 1.5, at least 8, at most 256."""
    chance = random.Random(0)
    while True:
        length = min(256, int(8 * chance.paretovariate(1.5)))
        prompt = [chance.randrange(VOCABULARY) for _ in range(8)]
        yield Request(prompt, replace(params, max_tokens=length, seed=chance.getrandbits(32)))


class Ideal:
    """The model alone, every row in use."""

    def __init__(self, model: LanguageModel, rows: int) -> None:
        """Take any tokens and states."""
        generator = torch.Generator().manual_seed(0)
        self._model, (layers, width) = model, model.state_shape
        self._tokens = torch.randint(VOCABULARY, (rows,), generator=generator)
        self._state = torch.randn(layers, rows, width, generator=generator)

    def prepare(self) -> None:
        """Nothing waits."""

    def step(self) -> int:
        """Read the same tokens again."""
        self._model.step(self._tokens, self._state, None)
        return len(self._tokens)


class Continuous:
    """An engine whose queue is never empty."""

    def __init__(
        self,
        model: LanguageModel,
        slots: int,
        requests: Iterator[Request],
        *,
        cache: Callable[[LanguageModel, int], CacheManager] = CacheManager,
        before: Callable[[Request], Request] | None = None,
    ) -> None:
        """Start idle; `before` is done to a request when it is submitted, and timed."""
        limits = SchedulerConfig(slots, max_queue=10**6, max_waiting=float("inf"), token_budget=10**12)
        self.engine = Engine(model, EngineConfig(limits))
        self.engine._cache = cache(model, slots)
        self._slots, self._requests, self._before = slots, requests, before
        self._extra = 0

    def prepare(self) -> None:
        """Fill the queue."""
        if self._before is None:
            self._fill(self._slots)

    def _fill(self, most: int) -> None:
        while self.engine.metrics().num_waiting < most:
            request = next(self._requests)
            if self._before is not None:
                self._extra += len(request.prompt) - 1
                request = self._before(request)
            self.engine.submit(request)

    def step(self) -> int:
        """Do one step of the engine."""
        self._extra = 0
        if self._before is not None:
            self._fill(self._slots - self.engine.metrics().num_running)
        before = self.engine._tally.num_rows  # `metrics` takes time, and nobody asks for them at every step
        self.engine.step()
        return self.engine._tally.num_rows - before + self._extra


class DictionaryCache(CacheManager):
    """The seed's cache: a list of states per request in a dictionary, stacked and taken apart in every step."""

    def __init__(self, model: LanguageModel, num_slots: int) -> None:
        """Start empty; slots are only numbers."""
        super().__init__(model, num_slots)
        self._by_request: dict[int, list[Tensor]] = {}

    def allocate(self, request_id: int, state: Tensor | None = None) -> int:
        """Keep the state of each layer."""
        slot = super().allocate(request_id, state)
        self._by_request[request_id] = list(super().export_state(request_id).unbind(0))
        return slot

    def free(self, request_id: int) -> None:
        """Drop the states."""
        super().free(request_id)
        del self._by_request[request_id]

    def export_state(self, request_id: int) -> Tensor:
        """Stack the states of one request."""
        return torch.stack(self._by_request[request_id])

    def get_caches(self, request_ids: Sequence[int]) -> Tensor:
        """Stack the states of requests, layer by layer."""
        caches = [self._by_request[request_id] for request_id in request_ids]
        return torch.stack([torch.stack(of_layer) for of_layer in zip(*caches, strict=True)])

    def update_caches(self, request_ids: Sequence[int], new_caches: Tensor) -> None:
        """Take the states apart."""
        for row, request_id in enumerate(request_ids):
            self._by_request[request_id] = [of_layer[row] for of_layer in new_caches]


class Static:
    """Batches of requests that start together; the next begins when the last of them is done."""

    def __init__(self, model: LanguageModel, slots: int, requests: Iterator[Request]) -> None:
        """Start idle."""
        limits = SchedulerConfig(slots, max_queue=slots, max_waiting=float("inf"), token_budget=10**12)
        self._engine = Engine(model, EngineConfig(limits, prefix_bytes=0))
        self._slots, self._requests = slots, requests
        self.num_batches = 0

    def prepare(self) -> None:
        """Begin a batch."""
        if not self._engine.has_work:
            self.num_batches += 1
            for _ in range(self._slots):
                self._engine.submit(next(self._requests))

    def step(self) -> int:
        """Read a token of each row that is not done; those that are done are left out."""
        before = self._engine._tally.num_rows
        self._engine.step()
        return self._engine._tally.num_rows - before


def prefilled(model: RHNDecoder) -> Callable[[Request], Request]:
    """Return what reads all but the last token of a prompt along the wavefront, by itself."""

    def read(request: Request) -> Request:
        *head, last = request.prompt
        _, state = model.prefill(torch.tensor([head]), None)
        return replace(request, prompt=[last], state=state[:, 0])

    return read


class Sequential:
    """One request after the other, as `generate` answers it."""

    def __init__(self, model: LanguageModel, requests: Iterator[Request]) -> None:
        """Start idle."""
        self._model, self._requests = model, requests

    def prepare(self) -> None:
        """Take the next request."""
        self._request = next(self._requests)

    def step(self) -> int:
        """Answer it."""
        tokens = list(Stream(self._model, self._request.prompt, self._request.params))
        return len(self._request.prompt) + len(tokens)
