"""Metrics, the description of the routes, other paths, and failures, in process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from torch import Tensor

from gflownet.rhn.server.service import Service
from gflownet.rhn.serving import sampler as sampler_module
from gflownet.rhn.serving.sampler import RepetitionPenaltyLogitsProcessor
from tests.rhn.server.in_process import PATH, URL, talk

ASKED: dict[str, Any] = {"model": "m", "prompt": "a", "max_tokens": 1}


def test_description_of_the_routes_has_every_reference() -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        description = (await client.get("/openapi.json")).json()
        assert {"/v1/completions", "/v1/chat/completions", "/metrics"} <= set(description["paths"])
        schemas = description["components"]["schemas"]
        for reference in references(description):
            assert reference.removeprefix("#/components/schemas/") in schemas

    talk(conversation)


def references(node: Any) -> list[str]:
    """Return every $ref of a JSON value."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    own = [node["$ref"]] if isinstance(node, dict) and "$ref" in node else []
    return own + [reference for child in children for reference in references(child)]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "PROPFIND"])
def test_other_methods_and_paths_get_4xx(method: str) -> None:
    paths = ["/", "/v1", "/%00", "/metrics/", "/" + "a" * 5000]
    paths += [f"/v1/{path}" for path in ("embeddings", "completions/", "models/gpt", "models/x/y", "models/%ff")]

    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        for path in paths:
            response = await client.request(method, f"{URL}{path}")
            assert response.status_code in (404, 405), path
            if method != "HEAD":
                assert response.json()["error"]["type"] == "invalid_request_error"

    talk(conversation)


@pytest.mark.parametrize("stream", [False, True])
def test_failing_row_does_not_disturb_other_streams(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raises(RepetitionPenaltyLogitsProcessor):
        def __init__(self, penalty: Tensor) -> None:
            if (penalty == 3).any():
                raise IndexError("token 256")
            super().__init__(penalty)

    monkeypatch.setattr(sampler_module, "RepetitionPenaltyLogitsProcessor", Raises)

    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        ask = {"model": "m", "prompt": "ab", "max_tokens": 40, "temperature": 0}
        others = [asyncio.create_task(client.post(PATH, json={**ask, "repetition_penalty": 1.5})) for _ in range(3)]
        failed = await client.post(PATH, json={**ask, "repetition_penalty": 3, "stream": stream})
        error = json.loads(failed.text.removeprefix("data: "))["error"]
        assert (failed.status_code, error["type"]) == (200 if stream else 500, "server_error")
        assert error["message"] == "sampling failed: IndexError: token 256"
        answers = [(await other).json() for other in others]
        assert {answer["usage"]["completion_tokens"] for answer in answers} == {40}
        assert (await client.post(PATH, json=ask)).status_code == 200

    assert not talk(conversation).failed


def test_internal_error_has_openais_format_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("defect")

    monkeypatch.setattr(Service, "check_model", fail)

    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        client._transport.raise_app_exceptions = False  # type: ignore[attr-defined]
        response = await client.post(PATH, json={"model": "m", "prompt": "a"})
        assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
        assert "defect" not in response.text
        (entry,) = [entry for entry in caplog.records if entry.name.endswith("server.requests")]
        assert entry.exc_info is not None
        assert isinstance(entry.exc_info[1], KeyError)

    talk(conversation)
