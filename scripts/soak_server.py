"""Measure a server under many clients of which some do not read, hang up, or send hostile requests.

    python scripts/soak_server.py [--clients N] [--quick] [--json FILE]

Of 1,000 clients, all at once, 700 are ordinary, 100 never read their answer, 100 hang up in the middle of one, and 100
send hostile requests. The ordinary ones alone are the other side; the sides take turns. The wait is the time from the
connection to the end of an answer, through a queue for 32 slots. Every ordinary answer is compared with offline
generation of the same seed. Memory is the server's resident memory after a crowd. The server is another process, with a
random model of the size small in float64.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import torch

from gflownet.rhn.checkpoint import load_text_model, save_language_model
from gflownet.rhn.config import CONFIGS
from gflownet.rhn.network import RHN
from gflownet.rhn.serving.generation import generate_batch
from gflownet.rhn.text_codec import decode, encode
from scripts.bench import Row, at_most, figure, finish, parse_arguments
from scripts.soak_clients import ENDLESS, MODEL, Crowd, Outcome, Reply, request_of, run_crowd
from tests.running_server import RunningServer, running_server

MAX_SLOTS = 32
NOISE = 0.05  # standard deviation added to the parameters: adapters of a new network are zero
SETTLE_S = 30.0  # until the server has freed every slot
LIMITS = {"read_timeout": 2, "header_timeout": 5, "body_timeout": 5, "max_tokens_limit": ENDLESS, "max_queue": 2000}
OPENAI_ERRORS = range(400, 500)


@dataclass(frozen=True)
class Run:
    """A crowd's outcome and the server after it."""

    outcome: Outcome
    memory: float  # bytes
    num_occupied: float  # slots and places in the queue

    @property
    def waits(self) -> list[float]:
        """Seconds of every complete ordinary answer."""
        return [reply.after for reply in self.outcome.replies if isinstance(reply, Reply)]


def main() -> int:
    """Run the crowds and return the exit status."""
    options = parse_arguments(__doc__, numbers={"clients": "number of clients (default 1000, quick: 100)"})
    torch.set_num_threads(1)
    size = options.clients or (100 if options.quick else 1000)
    crowd = Crowd(size - 3 * (size // 10), size // 10, size // 10, size // 10)
    with tempfile.TemporaryDirectory() as folder:
        rows = soak(Path(folder) / MODEL, crowd, rounds=1 if options.quick else 2)
    return finish(rows, json_path=options.json)


def soak(folder: Path, crowd: Crowd, *, rounds: int) -> list[Row]:
    """Return the rows of a new server under a crowd, and under its ordinary clients alone."""
    save_random_model(folder)
    expected = generate_offline(folder, crowd.ordinary)
    runs: dict[str, list[Run]] = {"alone": [], "crowd": []}
    with running_server(folder, max_slots=MAX_SLOTS, **LIMITS) as server:
        run_once(server, Crowd(min(50, crowd.ordinary)), seed=-1)  # warm-up
        for seed in range(rounds):
            for side, clients in (("alone", crowd.alone), ("crowd", crowd)):
                runs[side].append(run_once(server, clients, seed=seed))
        metrics = server.metrics()
    return rows_of(crowd, expected, runs["alone"], runs["crowd"], metrics)


def save_random_model(folder: Path) -> None:
    """Save a small model with active adapters, in float64 so that rounding changes no sampled token."""
    torch.manual_seed(0)
    network = RHN(CONFIGS["small"])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += NOISE * torch.randn_like(parameter)
    save_language_model(folder, network.double())


def generate_offline(folder: Path, num: int) -> list[tuple[str, str]]:
    """Return text and finish reason of every ordinary answer, generated without a server."""
    prompts, params = zip(*map(request_of, range(num)), strict=True)
    results = generate_batch(load_text_model(folder).model, list(map(encode, prompts)), params, max_slots=MAX_SLOTS)
    return [(decode(result.tokens), str(result.finish_reason)) for result in results]


def run_once(server: RunningServer, crowd: Crowd, *, seed: int) -> Run:
    """Let a crowd talk to a server, and wait until the server has freed its slots."""
    outcome = asyncio.run(run_crowd(server.port, crowd, seed=seed))
    deadline = time.monotonic() + SETTLE_S
    while True:
        metrics = server.metrics()
        num_occupied = metrics["gflownet_requests_running"] + metrics["gflownet_requests_waiting"]
        if not num_occupied or time.monotonic() > deadline:
            return Run(outcome, psutil.Process(server.process.pid).memory_info().rss, num_occupied)


def num_wrong(run: Run, expected: Sequence[tuple[str, str]]) -> int:
    """Return the number of ordinary answers that are missing, or differ from offline generation."""
    texts = [(r.text, r.finish_reason) if isinstance(r, Reply) else None for r in run.outcome.replies]
    return sum(text != wanted for text, wanted in zip(texts, expected, strict=True))


def rows_of(
    crowd: Crowd,
    expected: Sequence[tuple[str, str]],
    alone: Sequence[Run],
    crowded: Sequence[Run],
    metrics: dict[str, float],
) -> list[Row]:
    """Return the rows of all runs."""
    statuses = [status for run in crowded for status in run.outcome.statuses]
    unexpected = [status for status in statuses if status != 0 and status not in OPENAI_ERRORS]
    longest = [fmean(max(run.waits, default=0.0) for run in side) for side in (alone, crowded)]
    middle = [fmean(median(run.waits or [0.0]) for run in side) for side in (alone, crowded)]
    memory = [side.memory for side in ((alone[0], crowded[0]) if len(crowded) == 1 else (crowded[0], crowded[-1]))]
    wrong = sum(num_wrong(run, expected) for run in (*alone, *crowded))
    closed = "gflownet_connections_closed_total"
    return [
        figure("clients", crowd.size),
        figure("longest wait of an ordinary request, alone", longest[0], "s"),
        figure("longest wait of an ordinary request, in the crowd", longest[1], "s"),
        at_most("longest wait, in the crowd over alone", longest[1] / longest[0], "x", 2.0),
        at_most("median wait, in the crowd over alone", middle[1] / middle[0], "x", 2.0),
        at_most("ordinary answers lost or different from offline generation", wrong, "", 0),
        at_most("hostile requests with another response than 4xx", len(unexpected), "", 0),
        at_most("slots and queue places held after a crowd", sum(run.num_occupied for run in crowded), "", 0),
        at_most("memory after the last crowd over the first", memory[1] / memory[0], "x", 1.1),
        figure("memory after the last crowd", memory[1] / 2**20, "MiB"),
        figure("connections closed: not reading", metrics[f"{closed} not_reading"]),
        figure("connections closed: no header in time", metrics[f"{closed} header_timeout"]),
        figure("pauses of answers", metrics["gflownet_answer_pauses_total"]),
    ]


if __name__ == "__main__":
    sys.exit(main())
