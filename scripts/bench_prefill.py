"""Measure the reading of a long prompt while other requests answer.

    python scripts/bench_prefill.py [--quick] [--json FILE]

One thread, CPU time, float32. Two engines generate the same streams without an end and take turns; one of them reads a
prompt of 10,000 bytes, from its submission to its first token. The cost of the prompt is its CPU time minus the time of
as many steps of the other engine; the rate that the streams keep is the ratio. Each round also reads as many bytes
offline, with one call of `prefill` along the wavefront; figures are medians of the rounds. "One per step" reads 1,000
bytes as before chunks, one token with every step. M has hidden 128, intermediate 256, depth 8, rank 8; "gru" has two
GRU layers of width 128. --quick: 16 streams, and 1,000 bytes at M.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.rhn.config import StackConfig, StackLayer
from gflownet.rhn.decoding import LanguageModel
from gflownet.rhn.network import RecurrentNetwork, RecurrentStack
from gflownet.rhn.serving import prefill
from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig
from gflownet.rhn.serving.requests import FinishEvent, Request
from gflownet.rhn.serving.sampling import SamplingParams
from scripts.bench import Row, at_least, at_most, cpu_seconds, figure, finish, parse_arguments
from scripts.rhn_sides import CASES

MOST_COST, LEAST_RATE = 1.5, 0.7
STREAMS = (8, 16)
STEPS_PER_TURN, STEPS_ALONE, ROUNDS = 20, 8, 3
ENDLESS = SamplingParams(temperature=0, max_tokens=10**9)
NUM_TOKENS, QUICK_TOKENS, ROW_TOKENS = 10_000, 1_000, 1_000


@dataclass(frozen=True)
class Reading:
    """One prompt read under load."""

    seconds: float  # of CPU time from its submission to its first token
    alone: float  # CPU seconds of as many steps without it

    @property
    def cost(self) -> float:
        """CPU seconds of the prompt alone."""
        return self.seconds - self.alone

    @property
    def rate(self) -> float:
        """Share of their rate that the streams keep."""
        return self.alone / self.seconds


class Load:
    """Two engines that generate the same endless streams; one of them reads prompts. Their clock is the CPU time."""

    def __init__(self, model: LanguageModel, num_streams: int) -> None:
        scheduler = SchedulerConfig(num_streams + 1)
        config = EngineConfig(scheduler, prefix_bytes=2**20)
        self._engine, self._alone = (Engine(model, config, clock=time.process_time) for _ in range(2))
        for engine in (self._engine, self._alone):
            for token in range(num_streams):
                engine.submit(Request([token], ENDLESS))
            _ = [engine.step() for _ in range(STEPS_PER_TURN)]
        self._num_prompts = 0

    def read(self, num_tokens: int) -> Reading:
        """Read a new prompt."""
        generator = torch.Generator().manual_seed(self._num_prompts)
        self._num_prompts += 1  # never a cached one
        prompt = torch.randint(256, (num_tokens,), generator=generator).tolist()
        self._engine.submit(Request(prompt, SamplingParams(temperature=0, max_tokens=1)))
        seconds, alone, is_read = 0.0, 0.0, False
        while not is_read:
            start, num_steps = time.process_time(), 0
            while not is_read and num_steps < STEPS_PER_TURN:
                is_read = any(isinstance(event, FinishEvent) for event in self._engine.step())
                num_steps += 1
            seconds += time.process_time() - start
            alone += num_steps * cpu_seconds(self._alone.step, STEPS_ALONE)
        return Reading(seconds, alone)


def main() -> int:
    """Run the benchmark and return the exit status."""
    options = parse_arguments(__doc__)
    torch.set_num_threads(1)
    gru = StackConfig((StackLayer("gru"), StackLayer("gru")), width=128)
    networks: Mapping[str, RecurrentNetwork] = {"M": CASES["M"].network(), "gru": RecurrentStack(gru)}
    rows = []
    for name, network in networks.items():
        quick = options.quick and name == "M"
        for num_streams in STREAMS[options.quick :]:
            num_tokens = QUICK_TOKENS if quick else NUM_TOKENS
            rows += prompt_rows(name, network.decoder(), num_streams, num_tokens=num_tokens)
    return finish(rows, json_path=options.json)


def prompt_rows(name: str, model: LanguageModel, num_streams: int, *, num_tokens: int) -> list[Row]:
    """Return cost and rate of a prompt read in chunks, over the offline wavefront and over one token per step."""
    load, tokens = Load(model, num_streams), torch.randint(256, (1, num_tokens))
    model.prefill(tokens[:, :100], None)
    readings, offline = [], []
    for _ in range(ROUNDS):
        readings.append(load.read(num_tokens))
        offline.append(cpu_seconds(lambda: model.prefill(tokens, None)))
    chunks = load.read(ROW_TOKENS)
    short, prefill.SHORT_PROMPT = prefill.SHORT_PROMPT, num_tokens
    by_row = load.read(ROW_TOKENS)
    prefill.SHORT_PROMPT = short
    at = f"{name}, {num_streams} streams, {num_tokens:,} bytes"
    cost = median(reading.cost / seconds for reading, seconds in zip(readings, offline, strict=True))
    return [
        at_most(f"{at}: times the wavefront's CPU time", cost, "x", MOST_COST),
        at_least(f"{at}: rate kept by the streams", median(reading.rate for reading in readings), "", LEAST_RATE),
        figure(f"{at}: to the first token", median(reading.seconds for reading in readings), "s"),
        figure(f"{at}: wavefront offline", median(offline), "s"),
        figure(f"{at}: time to the first token of one per step, over chunks", by_row.seconds / chunks.seconds, "x"),
        figure(f"{at}: CPU time of one per step, over chunks", by_row.cost / chunks.cost, "x"),
    ]


if __name__ == "__main__":
    sys.exit(main())
