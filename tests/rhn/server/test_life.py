"""A server under load and at shutdown: full queues, disconnected clients, time limits, signals."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gflownet.rhn.checkpoint import load_text_model
from gflownet.rhn.server.limits import ServerLimits
from gflownet.rhn.serving.generation import generate_batch
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.text_codec import decode, encode
from tests.rhn.server import clients
from tests.rhn.server.clients import NEVER_ENDS, PATIENCE, client_of, offline, wait_until
from tests.rhn.server.in_process import LocalServer, converse, serving


def endless(client: clients.openai.OpenAI) -> Any:
    """Return a stream that runs until it is closed."""
    return client.completions.create(model="tiny", prompt="a", max_tokens=NEVER_ENDS, stream=True)


def test_full_queue_gives_429_until_a_client_disconnects(folder: Path) -> None:
    said = []

    def talk(server: LocalServer) -> None:
        with client_of(server) as client:
            running = endless(client)
            next(running)
            waiting = endless(client)
            wait_until(server, requests_running=1, requests_waiting=1)
            with pytest.raises(clients.openai.RateLimitError) as caught:
                client.completions.create(model="tiny", prompt="a")
            assert caught.value.response.headers["retry-after"] == "1"
            assert caught.value.type == "rate_limit_error"
            waiting.close()  # out of the queue, though it never had a slot
            wait_until(server, requests_running=1, requests_waiting=0)
            with pytest.raises(clients.openai.BadRequestError):
                client.completions.create(model="tiny", prompt=["a", "b"])
            waiting = endless(client)
            wait_until(server, requests_running=1, requests_waiting=1)
            running.close()  # out of its slot, which the other one gets
            next(waiting)
            waiting.close()
            wait_until(server, requests_running=0, requests_waiting=0)
            said.append(client.completions.create(model="tiny", prompt="é", seed=3).choices[0].text)

    assert converse(folder, talk, max_slots=1, max_queue=1) == 0
    assert said == [decode(offline(folder, "é", 1, seed=3, max_tokens=16).tokens)]


def test_client_disconnect_frees_its_slot(folder: Path) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": NEVER_ENDS})
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"

    def talk(server: LocalServer) -> None:
        with closing(socket.create_connection(("127.0.0.1", server.port))) as connection:
            connection.sendall((head + body).encode())
            wait_until(server, requests_running=1)
        after = wait_until(server, requests_running=0)
        assert after["gflownet_requests_finished_total cancelled"] == 1

    assert converse(folder, talk, max_slots=1) == 0


def test_answer_over_the_time_limit_is_ended(folder: Path) -> None:
    limits = ServerLimits(timeout=0.3, max_tokens_limit=NEVER_ENDS)
    with serving(folder, limits=limits) as server, client_of(server) as client:
        with pytest.raises(clients.openai.InternalServerError) as caught:
            client.completions.create(model="tiny", prompt="a", max_tokens=NEVER_ENDS)
        assert caught.value.status_code == 504
        with pytest.raises(clients.openai.APIError, match="the answer took longer than the server allows"):
            list(endless(client))
        wait_until(server, requests_running=0)


def test_signal_finishes_running_requests_and_refuses_new_connections(folder: Path) -> None:
    said = []

    def talk(server: LocalServer) -> None:
        with client_of(server) as client:
            stream = client.completions.create(model="tiny", prompt="é", seed=1, max_tokens=400, stream=True)
            server.signal(signal.SIGTERM)
            wait_for_refusal(server)
            said.append("".join(part.choices[0].text for part in stream))

    assert converse(folder, talk, max_slots=3) == 0
    assert said == [decode(offline(folder, "é", 3, seed=1, max_tokens=400).tokens)]


def wait_for_refusal(server: LocalServer) -> None:
    """Connect until the server refuses it."""
    with suppress(httpx.ConnectError):
        while httpx.get(f"{server.url}/health").status_code == 200:
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_end_of_grace_period_cuts_streams_off(number: signal.Signals, folder: Path) -> None:
    def talk(server: LocalServer) -> None:
        with client_of(server) as client:
            stream = endless(client)
            next(stream)
            server.signal(number)
            with pytest.raises(clients.openai.APIConnectionError):
                list(stream)

    assert converse(folder, talk, grace=0) == 0


def test_too_many_connections_get_503(folder: Path) -> None:
    with (
        serving(folder, limits=ServerLimits(max_connections=2)) as server,
        httpx.Client() as one,
        httpx.Client() as two,
    ):
        assert one.get(f"{server.url}/health").status_code == 200
        assert two.get(f"{server.url}/health").status_code == 503
        one.close()
        wait_until(server, requests_running=0)


def test_concurrent_answers_equal_offline_generation(folder: Path) -> None:
    params = [SamplingParams(seed=i, max_tokens=10 + i, temperature=0.5 + i / 40) for i in range(8)]
    prompts = [f"prompt {i} " * (1 + i % 3) for i in range(8)]
    said: list[str] = []

    async def ask(client: clients.openai.AsyncOpenAI, prompt: str, of_answer: SamplingParams) -> str:
        options = {name: getattr(of_answer, name) for name in ("seed", "max_tokens", "temperature")}
        stream = await client.completions.create(model="tiny", prompt=prompt, stream=True, **options)
        return "".join([part.choices[0].text async for part in stream])

    async def ask_all(url: str) -> list[str]:
        async with clients.openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE) as client:
            return await asyncio.gather(*(ask(client, *one) for one in zip(prompts, params, strict=True)))

    def talk(server: LocalServer) -> None:
        said.extend(asyncio.run(ask_all(f"{server.url}/v1")))

    assert converse(folder, talk, max_slots=3) == 0
    expected = generate_batch(load_text_model(folder).model, list(map(encode, prompts)), params, max_slots=3)
    assert said == [decode(answer.tokens) for answer in expected]
