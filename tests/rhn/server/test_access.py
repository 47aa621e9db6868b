"""Allowed requests: host names, API keys, and origins of web pages."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gflownet.rhn.server.app import Access
from gflownet.rhn.server.service import Service
from tests.rhn.server.in_process import PATH, URL, check_answer, talk

ASKED: dict[str, Any] = {"model": "m", "prompt": "a", "max_tokens": 1}
ACCESS = Access(("Models.example", "192.0.2.7", "2001:db8::1"), origins=("https://app.example",))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("[::1]:8000", 200),
        ("models.example:80", 200),
        ("192.0.2.7", 200),
        ("[2001:db8::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
    ],
)
def test_other_host_gives_403_except_for_health(host: str, status: int) -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        client.headers["Host"] = host
        response = await client.post(PATH, json=ASKED)
        assert response.status_code == status
        check_answer(response, host)
        for path in ("/metrics", "/v1/models"):
            assert (await client.get(path)).status_code == status
        assert (await client.head("/health")).status_code == (await client.get("/health")).status_code == 200
        probe = client.build_request("GET", "/health")  # of HTTP/1.0
        del probe.headers["Host"]
        assert (await client.send(probe)).status_code == 200

    talk(conversation, ACCESS)


def test_pages_of_other_origins_can_neither_send_json_nor_read() -> None:
    async def conversation(client: httpx.AsyncClient, service: Service) -> None:
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        for origin, status in (("https://app.example", 200), ("https://evil.example", 400), (URL, 400)):
            allowed = origin if status == 200 else None
            preflight = await client.options(PATH, headers={"Origin": origin, **asked})
            assert preflight.status_code == status
            for response in (preflight, await client.get("/v1/models", headers={"Origin": origin})):
                assert response.headers.get("access-control-allow-origin") == allowed
        # The types that a browser sends without a preflight, and none.
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None):
            client.headers.pop("Content-Type", None)
            headers = {} if kind is None else {"Content-Type": kind}
            assert (
                await client.post(PATH, content=httpx.Request("POST", URL, json=ASKED).content, headers=headers)
            ).status_code == 400

    talk(conversation, ACCESS)


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

    talk(conversation, Access(keys=("other", "secret"), origins=("https://app.example",)))
