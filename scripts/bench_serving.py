"""Measure the generation of one answer and the serving of many.

    python scripts/bench_serving.py [--quick] [--json FILE]

One thread, CPU time, float32. The sides of a row take turns in one process in alternating order; figures are medians of
the rounds' ratios. S has hidden 64, intermediate 128, depth 4, rank 4; M 128, 256, 8, 8; D12 64, 128, 12, 4. Decoding
is one token of one sequence: "the document's order" builds each layer's adapters when the token reaches it, as matrices
W + B A ("materialised") or by the expanded formula. Serving counts prompt and
answer tokens per second with a full queue (prompts of 8 to 32 tokens, answers of 16 to 64, greedy); "ideal" is the
model's step alone with every row in use. Submitting a request is not timed: a server does it in another thread.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from gflownet.rhn.decoding import LanguageModel, RHNDecoder
from gflownet.rhn.network import RHN, Stack, layer_by_layer
from gflownet.rhn.serving.cache import CacheManager
from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig
from gflownet.rhn.serving.generation import Stream
from gflownet.rhn.serving.requests import Request
from gflownet.rhn.serving.sampling import SamplingParams
from scripts.bench import Row, at_least, cpu_seconds, figure, finish, interleaved, median_ratio, parse_arguments
from scripts.rhn_sides import CASES, materialised

VOCABULARY = 256
Read = Callable[[Request], Request]


class Loop:
    """An endless sequence of serving steps."""

    def prepare(self) -> None:
        """Do the work that is not timed, because a server does it in other threads; by default none."""

    def step(self) -> int:
        """Do one step and return the number of prompt and answer tokens that it read."""
        raise NotImplementedError


def endless_requests(params: SamplingParams, *, is_even: bool = True) -> Iterator[Request]:
    """Yield prompts of 8 to 32 tokens with answers of 16 to 64.

    Else prompts of 8 tokens with answers of Pareto lengths: exponent 1.5, 8 to 256 tokens.
    """
    rng = random.Random(0)
    while True:
        length = 0 if is_even else min(256, int(8 * rng.paretovariate(1.5)))
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(8, 32) if is_even else 8)]
        length = length or rng.randint(16, 64)
        yield Request(prompt, replace(params, max_tokens=length, seed=rng.getrandbits(32)))


class Ideal(Loop):
    """The model's step alone, with every row in use."""

    def __init__(self, model: LanguageModel, rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._model, (layers, width) = model, model.state_shape
        self._tokens = torch.randint(VOCABULARY, (rows,), generator=generator)
        self._state = torch.randn(layers, rows, width, generator=generator)

    def step(self) -> int:
        """Read the same tokens again."""
        self._model.step(self._tokens, self._state, None)
        return len(self._tokens)


class Continuous(Loop):
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


class Sequential(Loop):
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


SIZES = ("S", "M", "D12")  # of scripts/rhn_sides.py
SLOTS = (8, 32, 128)
LEAST_GAIN = 1.2
GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)


def main() -> int:
    """Run the benchmark and return the exit status."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    networks = {name: CASES[name].network() for name in SIZES}
    rows = []
    for name in ("S",) if options.quick else SIZES:
        rows += decoding_rows(name, networks[name], rounds=10 if options.quick else 60)
    rounds = 8 if options.quick else 40
    for slots in SLOTS:
        rows += serving_rows("M", networks["M"], slots, rounds=rounds)
    if not options.quick:
        for slots in SLOTS:
            rows += serving_rows("S", networks["S"], slots, rounds=rounds, has_goals=False)
    rows.append(sequential_row("M", networks["M"], rounds=max(4, rounds // 4)))
    rows.append(static_row("S", networks["S"], num_batches=2 if options.quick else 8))
    return finish(rows, json_path=options.json)


def decoding_rows(name: str, network: RHN, *, rounds: int) -> list[Row]:
    """Return the speed of decoders on one token of one sequence over the speed in the document's order."""
    config = network.config
    token, state = torch.tensor([65]), torch.randn(config.depth, 1, config.hidden_size)
    decoder = RHNDecoder(network)

    def in_order(stack: Stack) -> Callable[[], object]:
        return torch.inference_mode()(lambda: network(token.unsqueeze(1), state, stack=stack))

    calls = {"materialised": in_order(materialised), "formula": in_order(layer_by_layer)}
    calls["decoder"] = partial(decoder.step, token, state, None)
    seconds = interleaved({side: partial(cpu_seconds, call, 10) for side, call in calls.items()}, rounds=rounds)
    rows = [figure(f"{name}: decoding", 1e3 * median(seconds["decoder"]), "ms per token")]
    for order in ("formula", "materialised"):
        text = f"{name}: decoding, times the document's order ({order})"
        rows.append(at_least(text, median_ratio(seconds[order], seconds["decoder"]), "x", LEAST_GAIN))
    return rows


def token_rate(loop: Loop, num_steps: int) -> float:
    """Return the tokens per CPU second of some steps."""
    seconds, num_tokens = 0.0, 0
    for _ in range(num_steps):
        loop.prepare()
        start = time.process_time()
        num_tokens += loop.step()
        seconds += time.process_time() - start
    return num_tokens / seconds


def serving_rows(name: str, network: RHN, slots: int, *, rounds: int, has_goals: bool = True) -> list[Row]:
    """Return the rate of serving as a share of the ideal rate and over other ways to serve."""
    model = RHNDecoder(network)
    loops: dict[str, Loop] = {
        "ideal": Ideal(model, slots),
        "slots": Continuous(model, slots, endless_requests(GREEDY)),
        "dictionary": Continuous(model, slots, endless_requests(GREEDY), cache=DictionaryCache),
        "sampled": Continuous(model, slots, endless_requests(SAMPLED)),
        "separate prefill": Continuous(model, slots, endless_requests(GREEDY), before=separate_prefill(model)),
    }
    timed = {side: partial(token_rate, loop, 4) for side, loop in loops.items()}
    token_rates = interleaved(timed, rounds=rounds, warm_up=2)
    share, gain = (median_ratio(token_rates["slots"], token_rates[side]) for side in ("ideal", "dictionary"))
    at, least_share, least_gain = f"{name}, {slots} slots", *((0.9, 1.1) if has_goals else (None, None))
    return [
        figure(f"{at}: serving", median(token_rates["slots"]), "tokens/s"),
        at_least(f"{at}: share of the ideal rate", share, "", least_share),
        at_least(f"{at}: times a dictionary cache", gain, "x", least_gain),
        *(
            figure(f"{at}: share of the ideal, {label}", median_ratio(token_rates[side], token_rates["ideal"]))
            for side, label in (("sampled", "top-k and top-p"), ("separate prefill", "separate prefill"))
        ),
    ]


def sequential_row(name: str, network: RHN, *, rounds: int) -> Row:
    """Return the rate of 32 slots over the rate of sequential answers."""
    model = RHNDecoder(network)
    continuous = Continuous(model, 32, endless_requests(GREEDY))
    loops = {"continuous": continuous, "sequential": Sequential(model, endless_requests(GREEDY))}
    timed = {side: partial(token_rate, loop, 3) for side, loop in loops.items()}
    rates = interleaved(timed, rounds=rounds, warm_up=2)
    return at_least(f"{name}, 32 slots: times sequential", median_ratio(*rates.values()), "x", 5)


def static_row(name: str, network: RHN, *, num_batches: int) -> Row:
    """Return the rate of 32 slots over the rate of static batches, over all tokens and seconds."""
    model = RHNDecoder(network)
    static = Static(model, 32, endless_requests(GREEDY, is_even=False))
    loops: dict[str, Loop] = {
        "static": static,
        "continuous": Continuous(model, 32, endless_requests(GREEDY, is_even=False)),
    }
    seconds, num_tokens = dict.fromkeys(loops, 0.0), dict.fromkeys(loops, 0)
    while True:
        for side, loop in loops.items():
            loop.prepare()
            if static.num_batches > num_batches:
                rate = {key: num_tokens[key] / seconds[key] for key in loops}
                gain = rate["continuous"] / rate["static"]
                return at_least(f"{name}, 32 slots, heavy-tailed: times static", gain, "x", 1.4)
            begin = time.process_time()
            num_tokens[side] += loop.step()
            seconds[side] += time.process_time() - begin


if __name__ == "__main__":
    sys.exit(main())
