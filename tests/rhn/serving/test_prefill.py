"""Long prompts read in chunks: the schedule, and answers equal to those of one token per step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.decoding import LanguageModel, RHNDecoder
from gflownet.rhn.network import RecurrentStack
from gflownet.rhn.serving import prefill
from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig
from gflownet.rhn.serving.prefill import Prefill, PrefillConfig
from gflownet.rhn.serving.requests import ActiveRequest, Answer, Event, Request
from gflownet.rhn.serving.sampling import FinishReason, SamplingParams
from gflownet.rhn.text_codec import BYTES
from tests.oracles.serving import slow_answer
from tests.rhn.random_networks import random_network
from tests.rhn.serving.engines import CONFIG, Clock, assert_close, drain, ends_of, sampled_of

LONG = 200
ROUNDING = 1e-6  # of 40 tokens in float64, through networks that amplify it


def active(num_tokens: int, *, state: bool = False) -> ActiveRequest:
    params = SamplingParams(max_tokens=LONG)
    request = Request([1] * num_tokens, params, state=torch.zeros(3, 8) if state else None)
    return ActiveRequest(0, request, Answer(params, BYTES), 0.0)


def answering() -> ActiveRequest:
    request = active(1)
    request.num_read = 1
    return request


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read prompts of a few tokens in chunks."""
    monkeypatch.setattr(prefill, "SHORT_PROMPT", 3)
    monkeypatch.setattr(prefill, "MIN_CHUNK", 2)


def test_chunk_takes_equal_parts_of_several_prompts_in_turn() -> None:
    requests = [active(5 * LONG) for _ in range(5)]
    scheduled = Prefill(PrefillConfig(tokens=8, prompts=2), interval=64)
    for _ in range(200):
        _, chunk = scheduled.plan(requests)
        assert chunk is not None
        for request in chunk.requests:
            request.num_read += chunk.num_tokens
        # The first chunk of a sequence shares no call with a later one, so that some are two chunks ahead.
        assert max(one.num_read for one in requests) - min(one.num_read for one in requests) <= 16
    assert sum(one.num_read for one in requests) >= 1.9 * 200 * 8
    mixed = [active(LONG), active(LONG, state=True), active(LONG)]
    _, chunk = scheduled.plan(mixed)
    assert chunk is not None
    assert chunk.requests == [mixed[0], mixed[2]]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.6])
def test_chunks_take_their_share_of_the_time(share: float) -> None:
    chance, scheduled = random.Random(0), Prefill(PrefillConfig(share=share), interval=64)
    row, seconds, longest = answering(), {"chunk": 0.0, "step": 0.0}, 0.0
    for _ in range(3000):
        rows, chunk = scheduled.plan([row, active(LONG)])
        assert rows == [row]
        chunk_seconds, step_seconds = chance.uniform(5, 15) * (chunk is not None), chance.uniform(0.5, 2)
        seconds["chunk"], seconds["step"] = seconds["chunk"] + chunk_seconds, seconds["step"] + step_seconds
        scheduled.ran(chunk_seconds=chunk_seconds, step_seconds=step_seconds, had_rows=True)
        longest = max(longest, chunk_seconds)
        assert seconds["chunk"] <= share * (seconds["chunk"] + seconds["step"]) + longest
    assert seconds["chunk"] / sum(seconds.values()) == pytest.approx(share, rel=0.15)


def test_invalid_prefill_configs_raise() -> None:
    for values, message in (
        ({"tokens": 0}, "tokens: expected at least 1, got 0"),
        ({"prompts": 0}, "prompts: expected at least 1, got 0"),
        ({"share": 1.0}, "share: expected a number > 0 and < 1, got 1.0"),
    ):
        with pytest.raises(ValueError, match=message):
            PrefillConfig(**values)  # type: ignore[arg-type]


def model_of(name: str) -> LanguageModel:
    if name == "rhn":
        return RHNDecoder(random_network(CONFIG, 0))
    torch.manual_seed(0)
    layers = tuple(StackLayer(cell=cell) for cell in ("gru", "rhn", "lstm"))
    network = RecurrentStack(StackConfig(layers, width=8, vocabulary_size=9, bottleneck=3)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return network.decoder()


class Ticking(Clock):
    """A clock on which every call takes some time."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def __call__(self) -> float:
        self.now += self._chance.random()
        return self.now


@dataclass
class Client:
    """Submits and cancels random requests; records what the engine returns."""

    chance: random.Random
    engine: Engine
    requests: dict[int, Request] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)

    def act(self, prefix: list[int]) -> None:
        chance, engine = self.chance, self.engine
        action = chance.random()
        if action < 0.25:
            prompt = prefix[: chance.randint(0, 20)] + [chance.randrange(9) for _ in range(chance.randint(1, 15))]
            params = SamplingParams(
                chance.choice([0.0, 2.0]),
                max_tokens=chance.randint(0, 6),
                logprobs=2,
                stop_token_ids=(chance.randrange(9),),
                seed=chance.randrange(99),
            )
            request = Request(prompt, params, keep_state=True)
            self.requests[engine.submit(request)] = request
        elif action < 0.3 and self.requests:
            request_id = chance.choice(list(self.requests))
            if engine.cancel(request_id):
                self.cancelled.add(request_id)
        else:
            self.events += engine.step()

    def finish(self) -> None:
        self.events += drain(self.engine)


def configs(chance: random.Random) -> Iterator[EngineConfig]:
    """Yield engines with and without chunks and prefixes."""
    for prefix_bytes in (0, 10**6):
        chunks = PrefillConfig(chance.randint(3, 20), chance.randint(1, 4), chance.choice([0.1, 0.5]))
        scheduler = SchedulerConfig(chance.randint(1, 5))
        yield EngineConfig(scheduler, prefix_bytes, chance.choice([4, 7, 16]), chunks)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("name", ["rhn", "stack"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_mix_of_requests_equals_one_token_per_step(seed: int, name: str) -> None:
    chance, model = random.Random(seed), model_of(name)
    num_cached = num_in_chunks = 0
    for config in configs(chance):
        prefix = [chance.randrange(9) for _ in range(20)]
        client = Client(chance, Engine(model, config, clock=Ticking(chance)))
        for _ in range(80):
            client.act(prefix)
        client.finish()
        ends = ends_of(client.events)
        assert sorted(ends) == sorted(client.requests)
        for request_id, request in client.requests.items():
            end, wanted = ends[request_id], slow_answer(model, request)
            sampled = sampled_of(client.events, request_id)
            num_cached += end.num_cached_tokens
            if end.finish_reason is FinishReason.CANCELLED:
                assert request_id in client.cancelled
                assert_close(sampled, wanted.sampled[: len(sampled)], tolerance=ROUNDING)
                continue
            assert end.finish_reason is wanted.finish_reason
            assert_close(sampled, wanted.sampled, tolerance=ROUNDING)
            assert end.state is not None
            torch.testing.assert_close(end.state, wanted.state, rtol=ROUNDING, atol=ROUNDING)
        num_in_chunks += client.engine.metrics().sums.num_chunk_tokens
    assert num_cached > 30
    assert num_in_chunks > 80


@pytest.mark.usefixtures("_short")
def test_prefixes_of_chunks_are_cached_at_every_interval() -> None:
    chance, prompt = random.Random(0), [random.Random(1).randrange(9) for _ in range(45)]
    config = EngineConfig(SchedulerConfig(2), prefix_interval=8, prefill=PrefillConfig(tokens=20))
    engine = Engine(model_of("rhn"), config)
    engine.submit(Request(prompt, SamplingParams(max_tokens=0)))
    drain(engine)
    for length in chance.sample(range(1, 46), 20):
        other = [*prompt[:length], (prompt[length % 45] + 1) % 9, 3]
        request_id = engine.submit(Request(other, SamplingParams(max_tokens=0)))
        num_cached = ends_of(drain(engine))[request_id].num_cached_tokens
        assert num_cached == (45 if length == 45 else length - length % 8)


@pytest.mark.usefixtures("_short")
def test_request_cancelled_in_its_prompt() -> None:
    engine = Engine(model_of("rhn"), EngineConfig(SchedulerConfig(2), prefix_interval=8), clock=Clock())
    ids = [engine.submit(Request([1] * 60, SamplingParams(max_tokens=1))) for _ in range(3)]
    assert engine.step() == []
    num_read = engine.metrics().sums.num_chunk_tokens
    engine.cancel(ids[0])
    events = engine.step()
    assert ends_of(events)[ids[0]].finish_reason is FinishReason.CANCELLED
    assert (engine.metrics().num_running, engine.metrics().num_waiting) == (2, 0)  # the third one has the free slot
    assert engine.metrics().sums.num_chunk_tokens > num_read
    assert {end.finish_reason for end in ends_of(drain(engine)).values()} == {FinishReason.LENGTH}
