"""Allowed requests: refuse other Host headers, and requests without an API key.

A page open on the machine could reach a server on 127.0.0.1 through a name that resolves to it (DNS rebinding: Host is
this name). Other pages cannot send JSON, nor read an answer, unless CORS allows their origin.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gflownet.rhn.server.errors import RequestError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


@dataclass(frozen=True)
class Access:
    """Host names and keys of allowed requests."""

    hosts: Sequence[str] = ()  # besides the loopback names; without port
    keys: Sequence[str] = ()  # without any, requests need none
    origins: Sequence[str] = ()  # of pages that get CORS headers

    def check(self, request: Request, bearer: _Bearer) -> None:
        """Raise RequestError for another host name, or without a key of the server; a dependency of routes."""
        host = request.url.hostname or ""
        if host not in (*LOOPBACK, *map(str.lower, self.hosts)):
            message = f"Host: expected a name of this server (option --allow-host), got {host!r:.80}"
            raise RequestError(HTTPStatus.FORBIDDEN, message)
        # Each key is compared in constant time.
        key = (bearer.credentials if bearer else "").encode(errors="replace")
        if self.keys and not any(hmac.compare_digest(key, valid.encode()) for valid in self.keys):
            message = "Authorization: expected 'Bearer' and a key of this server (option --api-key)"
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key", headers=headers)
