"""A small engine for tests, and the content of its events by request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import LanguageModel, RHNDecoder
from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig
from gflownet.rhn.serving.requests import Event, FinishEvent, TokenEvent
from gflownet.rhn.serving.sampling import Sampled
from tests.rhn.random_networks import random_network

CONFIG = RHNConfig(vocabulary_size=9, hidden_size=8, intermediate_size=12, depth=3, rank=2, bottleneck=3)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def engine_of(
    *, model: LanguageModel | None = None, prefix_bytes: int = 0, clock: Clock | None = None, **limits: float
) -> Engine:
    """Return an engine of a model of 9 tokens in float64 that caches every 4 tokens of a prompt."""
    model = model or RHNDecoder(random_network(CONFIG, 0))
    config = EngineConfig(SchedulerConfig(**limits), prefix_bytes, prefix_interval=4)  # type: ignore[arg-type]
    return Engine(model, config, clock=clock or Clock())


def drain(engine: Engine) -> list[Event]:
    events = []
    while engine.has_work:
        events += engine.step()
    return events


def tokens_of(events: Sequence[Event]) -> dict[int, list[int]]:
    tokens = defaultdict(list)
    for event in events:
        if isinstance(event, TokenEvent):
            tokens[event.request_id].append(event.sampled.token)
    return dict(tokens)


def sampled_of(events: Sequence[Event], request_id: int | None = None) -> list[Sampled]:
    """Return the tokens of the answers, of one request or of all."""
    return [
        event.sampled for event in events if isinstance(event, TokenEvent) and request_id in (None, event.request_id)
    ]


def ends_of(events: Sequence[Event]) -> dict[int, FinishEvent]:
    return {event.request_id: event for event in events if isinstance(event, FinishEvent)}


def assert_close(sampled: Sequence[Sampled], expected: Sequence[Sampled], *, tolerance: float = 1e-9) -> None:
    """Compare tokens, and in float64 their log-probabilities up to rounding."""
    for one, other in zip(sampled, expected, strict=True):
        assert one.token == other.token
        assert one.log_probability == pytest.approx(other.log_probability, abs=tolerance)
        assert [token for token, _ in one.likeliest] == [token for token, _ in other.likeliest]
        assert [p for _, p in one.likeliest] == pytest.approx([p for _, p in other.likeliest], abs=tolerance)
