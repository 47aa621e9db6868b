"""Every value of /metrics against the engine's sums, after requests on an engine with a counting clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gflownet.rhn.server.app import Metrics
from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig
from gflownet.rhn.serving.prefill import PrefillConfig
from gflownet.rhn.serving.requests import EngineMetrics, FinishEvent, Request
from gflownet.rhn.serving.sampling import FinishReason, SamplingParams
from tests.rhn.random_networks import random_network
from tests.rhn.server.clients import CONFIG, NEVER_ENDS

STATE_BYTES = 128

FROM_ENGINE: dict[str, Callable[[EngineMetrics], float]] = {
    "requests_waiting": lambda now: now.num_waiting,
    "requests_running": lambda now: now.num_running,
    "prefix_bytes": lambda now: now.prefix_bytes,
    "steps_total": lambda now: now.sums.num_steps,
    "step_rows_total": lambda now: now.sums.num_rows,
    "tokens_total": lambda now: now.sums.num_tokens,
    "prefix_hits_total": lambda now: now.sums.prefix_hits,
    "prefix_misses_total": lambda now: now.sums.prefix_misses,
    "queue_seconds_count": lambda now: now.sums.num_admitted,
    "queue_seconds_sum": lambda now: now.sums.waited_seconds,
    "first_token_seconds_count": lambda now: now.sums.num_first_tokens,
    "first_token_seconds_sum": lambda now: now.sums.first_token_seconds,
    "next_token_seconds_count": lambda now: now.sums.num_later_tokens,
    "next_token_seconds_sum": lambda now: now.sums.later_token_seconds,
}

# Of the requests in `engine_after_requests`, without the model.
COUNTS = {
    "requests_finished_total length": 22,
    "requests_finished_total cancelled": 1,
    "requests_waiting": 4,
    "requests_running": 3,
    "queue_seconds_count": 26,
    "first_token_seconds_count": 23,
    "prefix_misses_total": 20,
    "prefix_hits_total": 6,
    "prefix_bytes": 12 * STATE_BYTES,
}


def engine_after_requests() -> Engine:
    """Return an engine that has answered prompts, cancelled one, and has others, so that no two figures are equal."""
    ticks = count()
    config = EngineConfig(SchedulerConfig(max_slots=3), prefix_bytes=12 * STATE_BYTES, prefill=PrefillConfig(tokens=16))
    engine = Engine(random_network(CONFIG, 0).decoder(), config, clock=lambda: 0.25 * next(ticks) ** 1.5)

    def submit(prompt: list[int], max_tokens: int) -> int:
        return engine.submit(Request(prompt, SamplingParams(max_tokens=max_tokens, seed=0)))

    def run(num_ended: int) -> None:
        while num_ended:
            num_ended -= sum(isinstance(event, FinishEvent) for event in engine.step())

    cancelled = submit([1], NEVER_ENDS)
    for token in range(16):
        submit([token] * 40, max_tokens=3)
    run(num_ended=16)
    engine.cancel(cancelled)
    run(num_ended=1)
    for _ in range(6):
        submit([15] * 40 + [9], max_tokens=2)  # from a cached state
    run(num_ended=6)
    for _ in range(7):
        submit([2], NEVER_ENDS)
    engine.step()
    return engine


def test_every_value_is_that_of_its_source() -> None:
    engine = engine_after_requests()
    registry = CollectorRegistry()
    registry.register(Metrics(engine))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {
        " ".join([sample.name.removeprefix("gflownet_"), *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }
    now = engine.metrics()
    expected = {name: read(now) for name, read in FROM_ENGINE.items()}
    expected |= {f"requests_finished_total {reason}": now.sums.finished[reason] for reason in FinishReason}
    assert samples == pytest.approx(expected)
    assert {name: samples[name] for name in COUNTS} == COUNTS
    values = [value for value in samples.values() if value]
    assert len(set(values)) == len(values)  # so that none can stand for another
