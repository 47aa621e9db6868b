"""Metrics of a server for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gflownet.rhn.server.connections import Connections, Ending
from gflownet.rhn.serving.engine import Engine
from gflownet.rhn.serving.sampling import FinishReason


@dataclass
class ResponseTally:
    """Sums since the start, and the present number of paused answers."""

    by_status: Counter[int] = field(default_factory=Counter)  # responses
    num_pauses: int = 0  # of answers of clients that did not read
    num_paused: int = 0  # answers


class Metrics(Collector):
    """Metrics of the engine, its answers and the connections, with Prometheus' names and units."""

    def __init__(self, engine: Engine, responses: ResponseTally, connections: Connections) -> None:
        """Read them at every scrape."""
        self._engine, self._responses, self._connections = engine, responses, connections
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return the present metrics and their content type: OpenMetrics if the header Accept names it."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        now = self._engine.metrics()
        sums = now.sums
        finished = CounterMetricFamily("gflownet_requests_finished", "Finished prompts by reason", labels=["reason"])
        for reason in FinishReason:
            finished.add_metric([reason], sums.finished[reason])
        yield finished
        yield from self._http_metrics()
        for name, text, value in (
            ("requests_waiting", "Prompts in the queue", now.num_waiting),
            ("requests_running", "Prompts that hold a slot", now.num_running),
            ("prefix_states", "Cached states", now.prefix_entries),
            ("prefix_bytes", "Size of the cached states", now.prefix_bytes),
        ):
            yield GaugeMetricFamily(f"gflownet_{name}", text, value=value)
        for name, text, value in (
            ("steps", "Steps of the engine", sums.num_steps),
            ("step_rows", "Tokens read in steps, of prompts and answers", sums.num_rows),
            ("step_seconds", "Time in steps", sums.step_seconds),
            ("chunk_tokens", "Tokens of prompts read in chunks", sums.num_chunk_tokens),
            ("chunk_seconds", "Time in chunks", sums.chunk_seconds),
            ("tokens", "Tokens of answers", sums.num_tokens),
            ("prefix_hits", "Prompts that started from a cached state", sums.prefix_hits),
            ("prefix_misses", "Prompts that did not", sums.prefix_misses),
            ("prefix_tokens", "Tokens of prompts skipped by cached states", sums.prefix_tokens),
            ("prefix_evictions", "Evicted cached states", now.prefix_evicted),
        ):
            yield CounterMetricFamily(f"gflownet_{name}", text, value=value)
        for name, text, number, seconds in (
            ("queue", "From arrival to a slot", sums.num_admitted, sums.waited_seconds),
            ("first_token", "From arrival to the first token", sums.num_first_tokens, sums.first_token_seconds),
            ("next_token", "Between tokens of one answer", sums.num_later_tokens, sums.later_token_seconds),
        ):
            yield SummaryMetricFamily(f"gflownet_{name}_seconds", text, count_value=number, sum_value=seconds)

    def _http_metrics(self) -> Iterator[Metric]:
        """Yield the metrics of responses and connections."""
        responses = CounterMetricFamily("gflownet_http_responses", "Responses by status", labels=["status"])
        for status, count in sorted(self._responses.by_status.items()):
            responses.add_metric([str(status)], count)
        yield responses
        endings = self._connections.endings
        closed = CounterMetricFamily("gflownet_connections_closed", "Connections closed by a limit", labels=["reason"])
        for ending in Ending:
            closed.add_metric([ending.value], endings[ending])
        yield closed
        yield GaugeMetricFamily("gflownet_connections", "Open connections", value=len(self._connections.open))
        paused = self._responses.num_paused
        yield GaugeMetricFamily("gflownet_answers_paused", "Answers whose clients do not read", value=paused)
        yield CounterMetricFamily(
            "gflownet_answer_pauses", "Pauses of answers whose clients did not read", value=self._responses.num_pauses
        )
