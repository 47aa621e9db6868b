"""Hostile requests in process: each gets a 4xx or a valid answer, and a stream at the same time is not disturbed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from torch import Tensor

from gflownet.rhn.server.access import Access, ApiKeys, Origins
from gflownet.rhn.server.app import create_app
from gflownet.rhn.server.limits import Limits
from gflownet.rhn.server.requests import CompletionRequest, Submission
from gflownet.rhn.server.service import Service
from gflownet.rhn.serving import sampler as sampler_module
from gflownet.rhn.serving.engine import Engine, EngineConfig
from gflownet.rhn.serving.generation import generate
from gflownet.rhn.serving.logits_processors import RepetitionPenaltyLogitsProcessor
from gflownet.rhn.serving.sampling import SamplingParams
from gflownet.rhn.serving.scheduler import SchedulerConfig
from tests.rhn.random_networks import random_network
from tests.rhn.server.clients import CONFIG, NEVER_ENDS, PATIENCE

URL = "http://127.0.0.1:8000"
PATH = "/v1/completions"
GREEDY: dict[str, Any] = {"temperature": 0}

# JSON texts, as json.dumps would not write all of them.
VALUES = (
    *("null", "true", "0", "-1", "1", "3", "0.5", "1e-308", "5e-324", "1e308", "1e999", "-1e999", "NaN", "Infinity"),
    *(
        "-Infinity",
        "-0.0",
        str(2**31),
        str(2**63),
        str(2**64),
        str(2**64 - 1),
        str(-(2**63) - 1),
        f"-{'1' * 4000}",
        f"0.{'1' * 5000}",
        "1" * 400,
        "1" * 5000,
    ),
    *('""', '"a"', '"\\ud83d"', '"\\u0000"', '"\ufeff"', f'"{"a" * 3000}"', '"é🙂"', "\xff"),
    *("[]", "[[]]", '[""]', "[null]", "[1, 2]", "[[1], [2]]", '["a", 1]', "[256]", "[-1]", "[1e400]", '["\\ud800"]'),
    *("{}", '{"a": 1}', '{"1": 1e308}', '{"1": NaN}', '{"-1": 1}', f'{{"{"1" * 5000}": 1}}', '{"٣": 1}', '{"256": 1}'),
    *('{"include_usage": true}', "[" * 300 + "]" * 300, "[" * 5000, '{"a":' * 5000, "[1," * 200 + "1" + "]" * 200),
)
FIELDS = (*CompletionRequest.model_fields, "beam_width", "\x00", "stream_options")


def hostile_bodies(num_values: int) -> list[bytes]:
    """Return every field with some of the values; tests/test_fuzz.py changes several fields at once."""
    chance = random.Random(0)
    return [text_of({field: value}) for field in FIELDS for value in chance.sample(VALUES, num_values)]


def text_of(fields: dict[str, str]) -> bytes:
    whole = {"model": '"m"', "prompt": '"a"', "max_tokens": "2", **fields}
    pairs = ", ".join(f"{json.dumps(field)}: {value}" for field, value in whole.items())
    return f"{{{pairs}}}".encode(errors="surrogatepass")


def talk(
    conversation: Callable[[httpx.AsyncClient, Service], Awaitable[None]],
    origins: Origins | None = None,
    keys: ApiKeys | None = None,
) -> Service:
    """Run a conversation with an application in this process, and stop it."""

    async def run() -> Service:
        scheduler = SchedulerConfig(max_slots=8, max_queue=64, token_budget=4 * NEVER_ENDS)
        engine = Engine(random_network(CONFIG, 0).decoder(), EngineConfig(scheduler))
        service = Service(engine, "m", on_failure=lambda: None)
        limits = Limits(max_body=1 << 16, max_prompt=2048, max_queue=4, timeout=PATIENCE)
        app = create_app(service, limits, on_start=lambda: None, access=Access(origins or Origins(), keys or ApiKeys()))
        transport = httpx.ASGITransport(app)  # an exception in the application is raised here
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=URL) as client:
            await conversation(client, service)
        return service

    return asyncio.run(run())


def check_answer(response: httpx.Response, body: object) -> None:
    """Check that a response is an answer, a stream, or an error 4xx in OpenAI's form."""
    if response.status_code == 200:
        if response.headers["content-type"].startswith("text/event-stream"):
            assert response.text.endswith("data: [DONE]\n\n"), body
        else:
            assert response.json()["choices"], body
        return
    assert 400 <= response.status_code < 500, body
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, body
    assert error["param"] is None or len(error["param"]) <= 5000, body
    assert "\n" not in error["message"], body


def post_hostile(num_values: int) -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        innocent = service.submit(Submission([[97, 98]], SamplingParams(max_tokens=NEVER_ENDS, **GREEDY)))
        statuses = set()
        for body in hostile_bodies(num_values):
            response = await client.post(PATH, content=body)
            check_answer(response, body)
            statuses.add(response.status_code)
        assert {200, 400, 404} <= statuses
        assert not service.failed
        tokens = []
        async for pieces in innocent.pieces(asyncio.get_running_loop().time() + PATIENCE):
            tokens += [sampled.token for piece in pieces for sampled in piece.tokens]
            if len(tokens) > 300:
                innocent.close()
                break
        model = random_network(CONFIG, 0).decoder()
        expected = generate(model, [97, 98], SamplingParams(max_tokens=300, **GREEDY)).tokens
        assert tokens[:300] == expected

    talk(conversation)


def test_hostile_requests_get_4xx_and_disturb_no_stream() -> None:
    post_hostile(num_values=12)


@pytest.mark.slow
def test_all_hostile_requests_get_4xx_and_disturb_no_stream() -> None:
    post_hostile(len(VALUES))


@pytest.mark.parametrize("stream", [False, True])
def test_failing_row_does_not_disturb_other_streams(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raises(RepetitionPenaltyLogitsProcessor):
        def __init__(self, penalty: Tensor) -> None:
            if (penalty == 3).any():
                raise IndexError("token 256")
            super().__init__(penalty)

    monkeypatch.setattr(sampler_module, "RepetitionPenaltyLogitsProcessor", Raises)

    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        ask = {"model": "m", "prompt": "ab", "max_tokens": 40, **GREEDY}
        others = [asyncio.create_task(client.post(PATH, json={**ask, "repetition_penalty": 1.5})) for _ in range(3)]
        failed = await client.post(PATH, json={**ask, "repetition_penalty": 3, "stream": stream})
        error = json.loads(failed.text.removeprefix("data: "))["error"]
        assert (failed.status_code, error["type"]) == (200 if stream else 500, "server_error")
        assert error["message"] == "sampling failed: IndexError: token 256"
        answers = [(await other).json() for other in others]
        assert {answer["usage"]["completion_tokens"] for answer in answers} == {40}
        assert (await client.post(PATH, json=ask)).status_code == 200

    assert not talk(conversation).failed


def test_other_host_or_origin_gives_403_on_every_path() -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        ask: dict[str, Any] = {"model": "m", "prompt": "a", "max_tokens": 1}
        for headers, status in (
            ({}, 200),
            ({"Origin": URL}, 200),
            ({"Origin": "https://app.example"}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Host": "evil.example"}, 403),
            ({"Host": "models.example:80"}, 200),
        ):
            response = await client.post(PATH, json=ask, headers=headers)
            assert response.status_code == status, headers
            check_answer(response, headers)
            for path in ("/metrics", "/health", "/v1/models"):
                assert (await client.get(path, headers=headers)).status_code == status
        assert b'gflownet_http_responses_total{status="403"} 12.0' in service.metrics.text()[0]
        # A browser sends this before a page of a named origin may post JSON.
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        for origin, status in (("https://app.example", 200), ("https://evil.example", 403)):
            preflight = await client.options(PATH, headers={"Origin": origin, **asked})
            allowed = preflight.headers.get("access-control-allow-origin")
            assert (preflight.status_code, allowed) == (status, origin if status == 200 else None)

    talk(conversation, Origins(frozenset({"models.example"}), frozenset({"https://app.example"})))


def test_internal_error_has_openais_format(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("defect")

    monkeypatch.setattr(Service, "check_model", fail)

    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        client._transport.raise_app_exceptions = False  # type: ignore[attr-defined]
        response = await client.post(PATH, json={"model": "m", "prompt": "a"})
        assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
        assert "defect" not in response.text

    talk(conversation)
