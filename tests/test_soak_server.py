"""Many clients stream from a server process while others disconnect; the server is killed and restarted.

Every answer is compared with offline generation by the same random model and seed.
`GFLOWNET_SOAK_CLIENTS=200 pytest -m slow -s tests/test_soak_server.py` runs with 200 clients and prints the rates.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from gflownet.rhn.checkpoint import load_text_model
from gflownet.rhn.serving.generation import generate_batch
from gflownet.rhn.text_codec import decode, encode
from scripts.soak_clients import request_of
from scripts.soak_server import save_random_model
from tests.running_server import RunningServer, running_server

NUM_CLIENTS = int(os.environ.get("GFLOWNET_SOAK_CLIENTS", "40"))
short_request = partial(request_of, shortest=20)
NUM_DISCONNECTING = 50
NUM_CUT_OFF = 20  # streams that are open when the server is killed
MAX_SLOTS = 32
TIMEOUT_S = 600.0
ENDLESS = 10**8  # tokens


@dataclass(frozen=True)
class Reply:
    text: str
    finish_reason: str | None
    first_token_after: float  # seconds


def generate_offline(folder: Path) -> list[tuple[str, str]]:
    """Return text and finish reason of every answer, generated without a server."""
    prompts, params = zip(*map(short_request, range(NUM_CLIENTS)), strict=True)
    results = generate_batch(load_text_model(folder).model, list(map(encode, prompts)), params, max_slots=MAX_SLOTS)
    return [(decode(result.tokens), str(result.finish_reason)) for result in results]


def client_of(server: RunningServer) -> Any:
    openai = pytest.importorskip("openai")
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)


async def stream_answer(client: Any, number: int) -> Reply:
    prompt, params = short_request(number)
    start, first, text, reason = time.monotonic(), None, "", None
    stream = await client.completions.create(
        model="model",
        prompt=prompt,
        stream=True,
        seed=params.seed,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        stop=list(params.stop) or None,
        extra_body={"top_k": params.top_k},
    )
    async for chunk in stream:
        first = first or time.monotonic()
        text += chunk.choices[0].text
        reason = chunk.choices[0].finish_reason
    return Reply(text, reason, (first or start) - start)


async def disconnect_early(client: Any, num_chunks: int) -> None:
    """Start an endless answer and close the connection after some chunks."""
    stream = await client.completions.create(model="model", prompt="a", max_tokens=ENDLESS, stream=True)
    for _ in range(num_chunks):
        await anext(stream)
    await stream.close()


async def stream_all(server: RunningServer, num: int, *, num_disconnecting: int = 0) -> list[Reply | BaseException]:
    """Return the reply or the error of each request; all are sent at once."""
    async with client_of(server) as client:
        leaving = [asyncio.create_task(disconnect_early(client, 1 + i % 5)) for i in range(num_disconnecting)]
        replies = await asyncio.gather(*(stream_answer(client, i) for i in range(num)), return_exceptions=True)
        await asyncio.gather(*leaving)
    return replies


async def stream_and_kill(server: RunningServer, num: int) -> list[Reply | BaseException]:
    """Kill the server while it answers; return the replies and errors."""
    async with client_of(server) as client:
        tasks = [asyncio.create_task(stream_answer(client, i)) for i in range(num)]
        await disconnect_early(client, 3)
        server.stop(signal.SIGKILL)
        return await asyncio.gather(*tasks, return_exceptions=True)


def texts_of(replies: Sequence[Reply | BaseException]) -> list[tuple[str, str | None] | None]:
    """Return text and finish reason of every complete reply, None for the others."""
    return [(r.text, r.finish_reason) if isinstance(r, Reply) and r.finish_reason else None for r in replies]


def num_occupied(server: RunningServer) -> float:
    """Return the occupied slots and queue places, waiting up to 60 s for the server to notice disconnections."""
    deadline = time.monotonic() + 60
    while True:
        metrics = server.metrics()
        occupied = metrics["gflownet_requests_running"] + metrics["gflownet_requests_waiting"]
        if not occupied or time.monotonic() > deadline:
            return occupied


@pytest.mark.slow
def test_server_soak(tmp_path):
    for module in ("openai", "prometheus_client", "fastapi", "uvicorn"):
        pytest.importorskip(module)
    folder = tmp_path / "model"
    save_random_model(folder)
    expected = generate_offline(folder)
    with running_server(folder, max_slots=MAX_SLOTS, max_tokens_limit=ENDLESS) as server:
        start = time.monotonic()
        replies = asyncio.run(stream_all(server, NUM_CLIENTS, num_disconnecting=NUM_DISCONNECTING))
        seconds = time.monotonic() - start
        assert num_occupied(server) == 0
        metrics = server.metrics()
        cut_off = asyncio.run(stream_and_kill(server, NUM_CUT_OFF))
        with running_server(folder, port=server.port, max_slots=MAX_SLOTS, max_tokens_limit=ENDLESS) as restarted:
            after = asyncio.run(stream_all(restarted, NUM_CUT_OFF))
            assert restarted.stop() == 0
    assert texts_of(replies) == expected
    assert texts_of(after) == expected[:NUM_CUT_OFF]
    assert metrics["gflownet_requests_finished_total cancelled"] == NUM_DISCONNECTING
    first = median(reply.first_token_after for reply in replies if isinstance(reply, Reply))
    rows = metrics["gflownet_step_rows_total"] / metrics["gflownet_steps_total"]
    print(
        f"{NUM_CLIENTS} clients in {seconds:.1f} s, {metrics['gflownet_tokens_total'] / seconds:.0f} tokens/s, median "
        f"time to the first token {first:.2f} s, {rows:.1f} rows per step, {texts_of(cut_off).count(None)} cut off"
    )
