"""Metrics of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from gflownet.rhn.serving.engine import Engine
from gflownet.rhn.serving.sampling import FinishReason


class Metrics(Collector):
    """Metrics of an engine, with Prometheus' names and units."""

    def __init__(self, engine: Engine) -> None:
        """Read them at every scrape."""
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        now = self._engine.metrics()
        sums = now.sums
        finished = CounterMetricFamily("gflownet_requests_finished", "Finished prompts by reason", labels=["reason"])
        for reason in FinishReason:
            finished.add_metric([reason], sums.finished[reason])
        yield finished
        yield GaugeMetricFamily("gflownet_requests_waiting", "Prompts in the queue", value=now.num_waiting)
        yield GaugeMetricFamily("gflownet_requests_running", "Prompts that hold a slot", value=now.num_running)
        yield GaugeMetricFamily("gflownet_prefix_bytes", "Size of the cached states of prompts", value=now.prefix_bytes)
        for name, text, value in (
            ("steps", "Steps of the engine", sums.num_steps),
            ("step_rows", "Tokens read in steps, of prompts and answers", sums.num_rows),
            ("tokens", "Tokens of answers", sums.num_tokens),
            ("prefix_hits", "Prompts that started from a cached state", sums.prefix_hits),
            ("prefix_misses", "Prompts that did not", sums.prefix_misses),
        ):
            yield CounterMetricFamily(f"gflownet_{name}", text, value=value)
        for name, text, number, seconds in (
            ("queue", "From arrival to a slot", sums.num_admitted, sums.waited_seconds),
            ("first_token", "From arrival to the first token", sums.num_first_tokens, sums.first_token_seconds),
            ("next_token", "Between tokens of one answer", sums.num_later_tokens, sums.later_token_seconds),
        ):
            yield SummaryMetricFamily(f"gflownet_{name}_seconds", text, count_value=number, sum_value=seconds)
