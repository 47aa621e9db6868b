"""Refuse requests without one of the server's API keys."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gflownet.rhn.server.errors import RequestError

_OPEN_PATHS = frozenset({"/health"})  # for supervisors, which have no key


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

    def check(self, authorization: str | None) -> None:
        """Raise RequestError for a header Authorization without a key of the server; None is a missing header."""
        if not self.keys:
            return
        scheme, _, key = (authorization or "").partition(" ")
        # Every key is compared, each in constant time.
        matches = [hmac.compare_digest(key.strip().encode(errors="replace"), valid.encode()) for valid in self.keys]
        if scheme.lower() != "bearer" or not any(matches):
            message = "Authorization: expected 'Bearer' and a key of this server (option --api-key)"
            raise RequestError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key")


class ApiKeyCheck:
    """ASGI middleware: status 401 for requests without a key."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        """Wrap an application."""
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for one request, or refuse the request."""
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            try:
                self._keys.check(Headers(scope=scope).get("authorization"))
            except RequestError as error:
                response = JSONResponse(error.body(), error.status, headers={"WWW-Authenticate": "Bearer"})
                return await response(scope, receive, send)
        return await self._app(scope, receive, send)
