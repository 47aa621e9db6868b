"""Allowed requests: refuse other Host and Origin headers, and requests without an API key.

Any page open on the machine could use a server on 127.0.0.1: directly (Origin is the page), or through a name that
resolves to 127.0.0.1 (DNS rebinding: Host is this name). Starlette's TrustedHostMiddleware knows no Origin, and its
error names no option.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gflownet.rhn.server.errors import RequestError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_OPEN_PATHS = frozenset({"/health"})  # for supervisors, which have no key


@dataclass(frozen=True)
class Origins:
    """Allowed Host and Origin headers.

    Raises:
        ValueError: an invalid host name or address, or an origin other than scheme://host or scheme://host:port.
    """

    allowed_hosts: frozenset[str] = frozenset()  # besides the loopback names; without port
    allowed_origins: frozenset[str] = frozenset()  # besides the server itself

    def __post_init__(self) -> None:
        """Check and normalise every name."""
        for host in self.allowed_hosts:
            if not host or (host_name(host) != host.lower() and not _is_ipv6(host)):
                raise ValueError(f"expected a host name or address without port, got {host!r}")
        for origin in self.allowed_origins:
            scheme, _, host = origin.partition("://")
            if not scheme.isalpha() or not host_name(host):
                raise ValueError(f"expected an origin like https://example.com, got {origin!r}")
        object.__setattr__(self, "allowed_hosts", frozenset(host.lower() for host in self.allowed_hosts) | LOOPBACK)
        object.__setattr__(self, "allowed_origins", frozenset(origin.lower() for origin in self.allowed_origins))

    def check(self, host: str | None, origin: str | None) -> None:
        """Raise RequestError for headers of another page; None is a missing header."""
        if host is None or host_name(host) not in self.allowed_hosts:
            message = f"Host: expected a name of this server (option --allow-host), got {host!r:.80}"
            raise RequestError(HTTPStatus.FORBIDDEN, message)
        if origin is None or origin.lower() in self.allowed_origins:
            return
        if origin.partition("://")[2].lower() != host.lower():
            message = f"Origin: expected this server or a page named by --allow-origin, got {origin!r:.80}"
            raise RequestError(HTTPStatus.FORBIDDEN, message)


@dataclass(frozen=True)
class ApiKeys:
    """Keys that a request may have; without any, every request is allowed.

    Raises:
        ValueError: a key that is no word of printable ASCII characters.
    """

    keys: Sequence[str] = ()

    def __post_init__(self) -> None:
        for key in self.keys:
            if not (key and key.isascii() and key.isprintable() and " " not in key):
                raise ValueError("expected a key of printable ASCII characters without spaces")

    def check(self, path: str, authorization: str | None) -> None:
        """Raise RequestError for a header Authorization without a key of the server; None is a missing header."""
        if not self.keys or path in _OPEN_PATHS:
            return
        scheme, _, key = (authorization or "").partition(" ")
        # Every key is compared, each in constant time.
        matches = [hmac.compare_digest(key.strip().encode(errors="replace"), valid.encode()) for valid in self.keys]
        if scheme.lower() != "bearer" or not any(matches):
            message = "Authorization: expected 'Bearer' and a key of this server (option --api-key)"
            error = RequestError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key")
            error.headers["WWW-Authenticate"] = "Bearer"
            raise error


@dataclass(frozen=True)
class Access:
    """Requests that are allowed."""

    origins: Origins = field(default_factory=Origins)  # Host and Origin headers
    keys: ApiKeys = field(default_factory=ApiKeys)


class HeaderCheck:
    """ASGI middleware: an error response for requests that a check refuses by path and headers."""

    def __init__(self, app: ASGIApp, *, check: Callable[[str, Headers], None]) -> None:
        """Wrap an application; `check` raises RequestError."""
        self._app, self._check = app, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for one request, or refuse the request."""
        if scope["type"] in ("http", "websocket"):
            try:
                self._check(scope["path"], Headers(scope=scope))
            except RequestError as error:
                return await JSONResponse(error.body(), error.status, headers=error.headers)(scope, receive, send)
        return await self._app(scope, receive, send)


def host_name(host: str) -> str:
    """Return the name or address in a Host header, lower case, without port and brackets; "" if invalid."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        return ""
    is_plain = parts.netloc == host and "@" not in host
    return (parts.hostname or "").lower() if is_plain else ""


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False
