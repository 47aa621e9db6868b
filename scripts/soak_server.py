"""Is anybody lost? Many clients stream from a server in another process; some hang up; it is killed and restarted.

    python scripts/soak_server.py [--quick] [--json FILE]

Every answer is compared with what the same model says offline with the same seed. The model is random: what counts is
not what it says but whose answer it is.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.rhn.bytes_text import decode, encode
from gflownet.rhn.checkpoint import load_byte_decoder, save_language_model
from gflownet.rhn.config import CONFIGS
from gflownet.rhn.network import RHN
from gflownet.rhn.serving.generation import generate_batch
from gflownet.rhn.serving.sampling import SamplingParams
from scripts.bench import Row, equals, figure, finish, parse_arguments, require
from tests.running_server import RunningServer, running_server

if TYPE_CHECKING:
    import openai

NUM_CLIENTS, NUM_CLIENTS_QUICK = 200, 40
NUM_HANGING_UP = 50
MAX_SLOTS = 32
PATIENCE = 600.0  # seconds
NOISE = 0.05  # of the parameters, so that adapters adapt
NEVER_ENDS = 10**8  # tokens


@dataclass(frozen=True)
class Question:
    """What one client asks."""

    prompt: str
    params: SamplingParams

    @classmethod
    def number(cls, i: int) -> Question:
        """Return questions of many lengths, temperatures and kinds."""
        stop = ("e",) if i % 5 == 0 else ()
        params = SamplingParams(
            seed=i, max_tokens=20 + 7 * i % 80, temperature=0.5 + i % 4 / 4, top_k=i % 3 * 40, stop=stop
        )
        return cls(f"def function_{i}(" + "x, " * (i % 20), params)

    def options(self) -> dict:
        """Return the arguments of OpenAI's client."""
        names = ("seed", "max_tokens", "temperature")
        extra = {"top_k": self.params.top_k}
        return {
            **{name: getattr(self.params, name) for name in names},
            "stop": list(self.params.stop) or None,
            "extra_body": extra,
        }


@dataclass(frozen=True)
class Reply:
    """What one client was told."""

    text: str
    finish_reason: str | None
    first_after: float  # seconds


async def ask(client: openai.AsyncOpenAI, question: Question) -> Reply:
    """Stream one answer."""
    began, first, text, reason = time.monotonic(), None, "", None
    stream = await client.completions.create(model="model", prompt=question.prompt, stream=True, **question.options())
    async for part in stream:
        first = time.monotonic() if first is None else first
        text += part.choices[0].text
        reason = part.choices[0].finish_reason
    return Reply(text, reason, (first or began) - began)


async def hang_up(client: openai.AsyncOpenAI, num_parts: int) -> None:
    """Begin an endless answer and leave after some parts of it."""
    stream = await client.completions.create(model="model", prompt="a", max_tokens=NEVER_ENDS, stream=True)
    for _ in range(num_parts):
        await anext(stream)
    await stream.close()


def client_of(server: RunningServer) -> openai.AsyncOpenAI:
    """Return OpenAI's client, which neither tries again nor limits how many connections there are."""
    import openai  # not one of the package's own dependencies

    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


async def ask_all(
    server: RunningServer, questions: Sequence[Question], *, num_hanging_up: int = 0
) -> list[Reply | BaseException]:
    """Return the reply to each question or what failed; all are asked at once while others hang up."""
    async with client_of(server) as client:
        leaving = [asyncio.create_task(hang_up(client, 1 + i % 5)) for i in range(num_hanging_up)]
        replies = await asyncio.gather(*(ask(client, question) for question in questions), return_exceptions=True)
        await asyncio.gather(*leaving)
    return replies


async def ask_and_kill(server: RunningServer, questions: Sequence[Question]) -> list[Reply | BaseException]:
    """Kill the server while it answers; return what was said."""
    async with client_of(server) as client:
        asked = [asyncio.create_task(ask(client, question)) for question in questions]
        await hang_up(client, 3)
        server.stop(signal.SIGKILL)
        return await asyncio.gather(*asked, return_exceptions=True)


def num_lost(replies: Sequence[Reply | BaseException]) -> int:
    """Return how many questions have no whole answer."""
    return sum(not isinstance(reply, Reply) or reply.finish_reason is None for reply in replies)


def num_different(replies: Sequence[Reply | BaseException], expected: Sequence[tuple[str, str]]) -> int:
    """Return how many answers are not those that are expected."""
    pairs = zip(replies, expected, strict=True)
    return sum(not isinstance(reply, Reply) or (reply.text, reply.finish_reason) != wanted for reply, wanted in pairs)


def save_random_model(folder: Path) -> None:
    """Save a small model whose adapters are not those of the beginning."""
    torch.manual_seed(0)
    network = RHN(CONFIGS["small"])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += NOISE * torch.randn_like(parameter)
    save_language_model(folder, network.double())  # so that rounding moves no draw across a boundary


def offline(folder: Path, questions: Sequence[Question]) -> list[tuple[str, str]]:
    """Return text and finish reason of each answer without a server."""
    prompts = [encode(question.prompt) for question in questions]
    params = [question.params for question in questions]
    answers = generate_batch(load_byte_decoder(folder), prompts, params, max_slots=MAX_SLOTS)
    return [(decode(answer.tokens), str(answer.finish_reason)) for answer in answers]


def held(server: RunningServer) -> float:
    """Return the slots and places in the queue that are taken when all clients are gone, after a while to notice."""
    deadline = time.monotonic() + 10
    while True:
        found = server.metrics()
        taken = found["gflownet_requests_running"] + found["gflownet_requests_waiting"]
        if not taken or time.monotonic() > deadline:
            return taken


def soak(folder: Path, num_clients: int) -> list[Row]:
    """Return the figures of one run."""
    questions = [Question.number(i) for i in range(num_clients)]
    expected = offline(folder, questions)
    with running_server(folder, max_slots=MAX_SLOTS) as server:
        began = time.monotonic()
        replies = asyncio.run(ask_all(server, questions, num_hanging_up=NUM_HANGING_UP))
        seconds = time.monotonic() - began
        still_held, found = held(server), server.metrics()
        killed = asyncio.run(ask_and_kill(server, questions[:20]))
        with running_server(folder, port=server.port, max_slots=MAX_SLOTS) as again:
            after = asyncio.run(ask_all(again, questions[:20]))
            status = again.stop()
    lost, different = num_lost(replies), num_different(replies, expected)
    cancelled = found["gflownet_requests_finished_total cancelled"]
    wrong = num_different(after, expected[:20])
    firsts = [reply.first_after for reply in replies if isinstance(reply, Reply)]
    return [
        figure("streaming clients at once", num_clients),
        equals("answers lost", lost, 0),
        equals("answers that differ from offline", different, 0),
        equals("clients that hung up, cancelled", cancelled, NUM_HANGING_UP),
        equals("slots and queue places held afterwards", still_held, 0),
        figure("cut off by SIGKILL", num_lost(killed), "of 20"),
        equals("after the restart, answers that differ", wrong, 0, "of 20"),
        equals("exit status after SIGTERM", status, 0),
        figure("time for all", seconds, "s"),
        figure("tokens of answers", found["gflownet_tokens_total"] / seconds, "/s"),
        figure("median time to the first token", median(firsts), "s"),
        figure("mean rows of a step", found["gflownet_step_rows_total"] / found["gflownet_steps_total"]),
    ]


def main() -> int:
    """Run it and print the figures."""
    arguments = parse_arguments(__doc__)
    require("openai", "prometheus_client", "fastapi", "uvicorn", extra="test")
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(Path(folder) / "model")
        rows = soak(Path(folder) / "model", NUM_CLIENTS_QUICK if arguments.quick else NUM_CLIENTS)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
