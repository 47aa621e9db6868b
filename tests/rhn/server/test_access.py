"""Host and Origin headers: names of the server pass, other pages do not."""

from __future__ import annotations

import pytest

from gflownet.rhn.server.access import Origins
from gflownet.rhn.server.errors import RequestError

ORIGINS = Origins(frozenset({"Models.example", "192.0.2.7", "2001:db8::1"}), frozenset({"https://App.example:8443"}))


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", None),
        ("LOCALHOST", None),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("models.example", "https://models.example"),
        ("models.example:80", None),
        ("192.0.2.7:8000", None),
        ("[2001:db8::1]:8000", None),
        ("localhost:8000", "https://app.example:8443"),
    ],
)
def test_allowed_headers_pass(host: str, origin: str | None) -> None:
    ORIGINS.check(host, origin)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (None, None),
        ("", None),
        ("evil.example:8000", None),
        ("localhost.evil.example", None),
        ("localhost@evil.example", None),
        ("evil.example@localhost", None),
        ("localhost:x", None),
        ("localhost/evil.example", None),
        ("127.0.0.1.evil.example:8000", None),
        ("2001:db8::1", None),
        ("localhost:8000", "http://evil.example"),
        ("localhost:8000", "http://localhost:3000"),
        ("localhost:8000", "https://app.example"),
        ("localhost:8000", "null"),
        ("localhost:8000", ""),
        ("localhost:8000", "http://[::1"),
    ],
)
def test_other_headers_raise(host: str | None, origin: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        ORIGINS.check(host, origin)
    assert caught.value.status == 403


@pytest.mark.parametrize("host", ["http://a.example", "a.example:80", "a/b", "", "a@b"])
def test_invalid_host_name_raises(host: str) -> None:
    with pytest.raises(ValueError, match="expected a host name or address without port, got "):
        Origins(frozenset({host}))


@pytest.mark.parametrize("origin", ["a.example", "https://a.example/", "https://", "*", "https://a@b", "http://a:x"])
def test_invalid_origin_raises(origin: str) -> None:
    with pytest.raises(ValueError, match=r"expected an origin like https://example\.com, got "):
        Origins(allowed_origins=frozenset({origin}))
