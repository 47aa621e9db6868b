"""The figures of a server as Prometheus reads them; names and units are Prometheus' own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from gflownet.rhn.serving.engine import Engine
from gflownet.rhn.serving.stopping import FinishReason


class ServingCollector(Collector):
    """Collect the figures of the engine at every scrape."""

    def __init__(self, engine: Engine, responses: Mapping[int, int]) -> None:
        """`responses` are the numbers of responses by their status, now and later."""
        self._engine, self._responses = engine, responses

    def collect(self) -> Iterator[Metric]:
        """Yield every figure."""
        now = self._engine.metrics()
        sums = now.sums
        yield _gauge("requests_waiting", "Prompts in the queue", now.num_waiting)
        yield _gauge("requests_running", "Prompts that hold a slot", now.num_running)
        finished = CounterMetricFamily(
            "gflownet_requests_finished", "Prompts by the reason of their end", labels=["reason"]
        )
        for reason in FinishReason:
            finished.add_metric([reason], sums.finished[reason])
        yield finished
        responses = CounterMetricFamily("gflownet_http_responses", "Responses by status", labels=["status"])
        for status, count in sorted(self._responses.items()):
            responses.add_metric([str(status)], count)
        yield responses
        yield _counter("steps", "Steps of the engine", sums.num_steps)
        yield _counter("step_rows", "Tokens read, of prompts and answers", sums.num_rows)
        yield _counter("step_seconds", "Time in steps", sums.step_seconds)
        yield _counter("tokens", "Tokens of answers", sums.num_tokens)
        yield _summary("queue_seconds", "From arrival to a slot", sums.num_admitted, sums.waited_seconds)
        yield _summary(
            "first_token_seconds", "From arrival to the first token", sums.num_first_tokens, sums.first_token_seconds
        )
        yield _summary(
            "next_token_seconds", "Between tokens of one answer", sums.num_later_tokens, sums.later_token_seconds
        )
        yield _counter("prefix_hits", "Prompts that began from a kept state", sums.prefix_hits)
        yield _counter("prefix_misses", "Prompts that did not", sums.prefix_misses)
        yield _counter("prefix_tokens", "Tokens of prompts that were not read again", sums.prefix_tokens)
        yield _counter("prefix_evictions", "Kept states that were given up", now.prefix_evicted)
        yield _gauge("prefix_states", "States that are kept", now.prefix_entries)
        yield _gauge("prefix_bytes", "Their size", now.prefix_bytes)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gflownet_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"gflownet_{name}", text, value=value)


def _summary(name: str, text: str, count: int, total: float) -> Metric:
    return SummaryMetricFamily(f"gflownet_{name}", text, count_value=count, sum_value=total)
