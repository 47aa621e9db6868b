"""Continuous batching: what comes and goes beside a request changes nothing for it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.engine import Engine, EngineConfig
from gflownet.rhn.requests import Event, FinishEvent, Request, TokenEvent
from gflownet.rhn.sampling import SamplingParams
from gflownet.rhn.scheduler import SchedulerConfig
from gflownet.rhn.stopping import FinishReason
from tests.rhn.random_networks import random_network

CONFIG = RHNConfig(vocabulary_size=9, hidden_size=8, intermediate_size=12, depth=3, rank=2, bottleneck=3)


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def engine_of(*, prefix_bytes: int = 0, clock: Clock | None = None, **limits: float) -> Engine:
    decoder = RHNDecoder(random_network(CONFIG, 0))
    config = EngineConfig(SchedulerConfig(**limits), prefix_bytes, prefix_interval=4)  # type: ignore[arg-type]
    return Engine(decoder, config, clock=clock or Clock())


def tokens_of(events: Sequence[Event]) -> dict[int, list[int]]:
    found = defaultdict(list)
    for event in events:
        if isinstance(event, TokenEvent):
            found[event.request_id].append(event.sampled.token)
    return dict(found)


def ends_of(events: Sequence[Event]) -> dict[int, FinishEvent]:
    return {event.request_id: event for event in events if isinstance(event, FinishEvent)}


def drain(engine: Engine) -> list[Event]:
    events = []
    while engine.has_work:
        events += engine.step()
    return events


def test_requests_that_come_and_go_are_answered_as_if_alone() -> None:
    chance = random.Random(0)
    requests = [
        Request(
            [chance.randrange(9) for _ in range(chance.randint(1, 9))],
            SamplingParams(max_tokens=chance.randint(1, 12), seed=seed, temperature=chance.choice([0, 0.7, 2])),
        )
        for seed in range(30)
    ]
    alone = []
    for request in requests:
        engine = engine_of(max_slots=4)
        request_id = engine.submit(request)
        alone.append(tokens_of(drain(engine))[request_id])
    for prefix_bytes in (0, 10_000):
        engine = engine_of(max_slots=4, prefix_bytes=prefix_bytes)
        events, ids = [], []
        for request in requests:
            ids.append(engine.submit(request))
            for _ in range(chance.randint(0, 4)):
                events += engine.step()
        events += drain(engine)
        assert [tokens_of(events)[request_id] for request_id in ids] == alone
        reasons = [ends_of(events)[request_id].finish_reason for request_id in ids]
        assert reasons == [FinishReason.LENGTH] * 30


def test_a_cancelled_request_frees_its_slot_within_one_step() -> None:
    engine = engine_of(max_slots=1)
    running, queued = (engine.submit(Request([1], SamplingParams(max_tokens=100))) for _ in range(2))
    engine.step()
    assert engine.cancel(running)
    assert not engine.cancel(running)
    events = engine.step()
    assert ends_of(events)[running].finish_reason is FinishReason.CANCELLED
    assert tokens_of(events).keys() == {queued}
    waiting = engine.submit(Request([1]))
    assert engine.cancel(waiting)
    assert engine.cancel(queued)
    events = drain(engine)
    assert {key: end.finish_reason for key, end in ends_of(events).items()} == {
        waiting: FinishReason.CANCELLED,
        queued: FinishReason.CANCELLED,
    }
    assert not tokens_of(events)
    assert engine.metrics().num_running == engine.metrics().num_waiting == 0
    assert not engine.cancel(12345)
