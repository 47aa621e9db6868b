"""The sides of bench_serving.py: continuous batching and other ways to serve requests, one timed step at a time."""

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
Read = Callable[[Request], Request]


class Loop(Protocol):
    """An endless sequence of serving steps."""

    def prepare(self) -> None:
        """Do the work that is not timed, because a server does it in other threads."""

    def step(self) -> int:
        """Do one step and return the number of prompt and answer tokens that it read."""
        ...


def even_requests(params: SamplingParams) -> Iterator[Request]:
    """Yield prompts of 8 to 32 tokens with answers of 16 to 64."""
    rng = random.Random(0)
    while True:
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(8, 32))]
        yield Request(prompt, replace(params, max_tokens=rng.randint(16, 64), seed=rng.getrandbits(32)))


def heavy_tailed_requests(params: SamplingParams) -> Iterator[Request]:
    """Yield prompts of 8 tokens with answers of Pareto lengths: exponent 1.5, 8 to 256 tokens."""
    rng = random.Random(0)
    while True:
        length = min(256, int(8 * rng.paretovariate(1.5)))
        prompt = [rng.randrange(VOCABULARY) for _ in range(8)]
        yield Request(prompt, replace(params, max_tokens=length, seed=rng.getrandbits(32)))


class Ideal:
    """The model's step alone, with every row in use."""

    def __init__(self, model: LanguageModel, rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._model, (layers, width) = model, model.state_shape
        self._tokens = torch.randint(VOCABULARY, (rows,), generator=generator)
        self._state = torch.randn(layers, rows, width, generator=generator)

    def prepare(self) -> None:
        """Do nothing."""

    def step(self) -> int:
        """Read the same tokens again."""
        self._model.step(self._tokens, self._state, None)
        return len(self._tokens)


class Continuous:
    """An engine whose queue is never empty; `before` is applied to each submitted request, inside the timed step."""

    def __init__(
        self,
        model: LanguageModel,
        slots: int,
        requests: Iterator[Request],
        *,
        cache: Callable[[LanguageModel, int], CacheManager] = CacheManager,
        before: Read | None = None,
    ) -> None:
        limits = SchedulerConfig(slots, max_queue=10**6)
        self.engine = Engine(model, EngineConfig(limits))
        self.engine._cache = cache(model, slots)
        self.slots, self._requests, self._before = slots, requests, before
        self._num_prefilled = 0

    def prepare(self) -> None:
        """Fill the queue."""
        if self._before is None:
            self.fill(self.slots)

    def fill(self, num_waiting: int) -> None:
        """Submit requests until the queue has this length."""
        while self.engine.metrics().num_waiting < num_waiting:
            request = next(self._requests)
            if self._before is not None:
                self._num_prefilled += len(request.prompt) - 1
                request = self._before(request)
            self.engine.submit(request)

    def step(self) -> int:
        """Do one step of the engine."""
        self._num_prefilled = 0
        if self._before is not None:
            self.fill(self.slots - self.engine.metrics().num_running)
        tally = self.engine._tally  # `metrics` would add its own time
        before = tally.num_rows + tally.num_chunk_tokens
        self.engine.step()
        return tally.num_rows + tally.num_chunk_tokens - before + self._num_prefilled


class Static(Continuous):
    """Batches of requests that start together; the next batch starts when the last request has ended."""

    num_batches = 0

    def prepare(self) -> None:
        """Start a batch if the last one has ended."""
        if not self.engine.has_work:
            self.num_batches += 1
            self.fill(self.slots)


class DictionaryCache(CacheManager):
    """A dictionary with one list of layer states per request, stacked and split in every step."""

    def __init__(self, model: LanguageModel, num_slots: int) -> None:
        super().__init__(model, num_slots)
        self._by_request: dict[int, list[Tensor]] = {}

    def allocate(self, request_id: int, state: Tensor | None = None) -> int:
        """Store the state of each layer."""
        slot = super().allocate(request_id, state)
        self._by_request[request_id] = list(super().export_state(request_id).unbind(0))
        return slot

    def free(self, request_id: int) -> None:
        """Delete the states."""
        super().free(request_id)
        del self._by_request[request_id]

    def export_state(self, request_id: int) -> Tensor:
        """Stack the states of one request."""
        return torch.stack(self._by_request[request_id])

    def get_caches(self, request_ids: Sequence[int]) -> Tensor:
        """Stack the states of several requests, layer by layer."""
        caches = [self._by_request[request_id] for request_id in request_ids]
        return torch.stack([torch.stack(of_layer) for of_layer in zip(*caches, strict=True)])

    def update_caches(self, request_ids: Sequence[int], new_caches: Tensor) -> None:
        """Split the states by request and layer."""
        for row, request_id in enumerate(request_ids):
            self._by_request[request_id] = [of_layer[row] for of_layer in new_caches]


def separate_prefill(model: RHNDecoder) -> Read:
    """Return a function that reads all but the last token of one prompt along the wavefront."""

    def read(request: Request) -> Request:
        *head, last = request.prompt
        _, state = model.prefill(torch.tensor([head]), None)
        return replace(request, prompt=[last], state=state[:, 0])

    return read


class Sequential:
    """One request after the other; a step is one whole answer."""

    def __init__(self, model: LanguageModel, requests: Iterator[Request]) -> None:
        self._model, self._requests = model, requests

    def prepare(self) -> None:
        """Take the next request."""
        self._request = next(self._requests)

    def step(self) -> int:
        """Generate its answer."""
        tokens = list(Stream(self._model, self._request.prompt, self._request.params))
        return len(self._request.prompt) + len(tokens)
