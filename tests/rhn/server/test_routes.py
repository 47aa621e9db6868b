"""API keys, metrics, tokens, and the description of the routes, in process."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from gflownet.rhn.server.access import ApiKeys, Origins
from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.server.service import Service
from tests.rhn.server.test_hostile import PATH, URL, talk

ASKED: dict[str, Any] = {"model": "m", "prompt": "a", "max_tokens": 1}


def test_requests_without_a_key_get_401() -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        for authorization, status in (
            (None, 401),
            ("Bearer wrong", 401),
            ("Bearer", 401),
            ("Basic secret", 401),
            ("Bearer sécret".encode("latin-1"), 401),
            ("Bearer secret", 200),
            ("bearer other", 200),
        ):
            headers: Any = {} if authorization is None else {"Authorization": authorization}
            for response in (
                await client.post(PATH, json=ASKED, headers=headers),
                await client.get("/metrics", headers=headers),
                await client.get("/v1/models", headers=headers),
            ):
                assert response.status_code == status, authorization
                if status == 401:
                    assert response.json()["error"]["code"] == "invalid_api_key"
                    assert response.headers["www-authenticate"] == "Bearer"
            assert (await client.get("/health", headers=headers)).status_code == 200
        # A browser asks for permission without the key.
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        assert (await client.options(PATH, headers=asked)).status_code == 200

    origins = Origins(allowed_origins=frozenset({"https://app.example"}))
    talk(conversation, origins, ApiKeys(("other", "secret")))


@pytest.mark.parametrize("key", ["", "a b", "é", "a\n"])
def test_invalid_key_raises(key: str) -> None:
    with pytest.raises(ValueError, match="expected a key of printable ASCII characters"):
        ApiKeys((key,))


def test_every_key_is_compared() -> None:
    ApiKeys().check("/v1/models", None)
    with pytest.raises(RequestError):
        ApiKeys(("a",)).check("/v1/models", "Bearer \udcff")
    ApiKeys(("a",)).check("/health", None)


def test_metrics_are_valid_in_both_formats() -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        await client.post(PATH, json=ASKED)
        for accept, parse in (
            ("text/plain", parse_prometheus),
            ("application/openmetrics-text; version=1.0.0", parse_openmetrics),
        ):
            response = await client.get("/metrics", headers={"Accept": accept})
            assert response.headers["content-type"].startswith(accept.partition(";")[0])
            families = {family.name: family for family in parse(response.text)}
            assert all(family.documentation for family in families.values())
            samples = {sample.name: sample.value for family in families.values() for sample in family.samples}
            assert samples["gflownet_tokens_total"] == 1
            assert {"gflownet_connections", "gflownet_answers_paused", "gflownet_answer_pauses_total"} <= set(samples)

    talk(conversation)


def test_tokens_of_texts() -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        tokens = (await client.post("/tokenize", json={"prompt": "aé", "add_special_tokens": False})).json()
        assert tokens == {"count": 3, "max_model_len": 2048, "tokens": [97, 195, 169]}
        text = (await client.post("/detokenize", json={"model": "m", "tokens": tokens["tokens"]})).json()
        assert text == {"prompt": "aé"}
        information = (await client.get("/tokenizer_info")).json()
        assert (information["bos_token"], information["eos_token"]) == ("\n", None)
        for path, fields, status in (
            ("/tokenize", {"prompt": 3}, 400),
            ("/tokenize", {"prompt": "\\ud800", "model": "other"}, 404),
            ("/detokenize", {"tokens": [256]}, 400),
            ("/detokenize", {"tokens": [-1]}, 400),
        ):
            response = await client.post(path, json=fields)
            assert response.status_code == status
            assert response.json()["error"]["type"] == "invalid_request_error"

    talk(conversation)


def test_description_of_the_routes_has_every_reference() -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        description = (await client.get("/openapi.json")).json()
        assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/metrics"} <= set(description["paths"])
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
