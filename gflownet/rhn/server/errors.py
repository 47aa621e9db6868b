"""Error responses in OpenAI's format."""

from __future__ import annotations

import logging
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

_log = logging.getLogger(__name__)


class RequestError(HTTPException):
    """An error response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """`param` is the invalid field."""
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        kind = "invalid_request_error" if self.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        if self.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}


def bad_request(param: str, message: str) -> RequestError:
    """Return the error for a field."""
    return RequestError(HTTPStatus.BAD_REQUEST, f"{param}: {message}", param=param)


def from_value_error(error: ValueError, fields: Collection[str]) -> RequestError:
    """Return the error for a ValueError whose message may start with the name of one of `fields`."""
    name = str(error).partition(":")[0]
    return RequestError(HTTPStatus.BAD_REQUEST, str(error), param=name if name in fields else None)


def _as_request_error(request: Request, error: Exception) -> RequestError:
    """Return the response to any error: those of the framework are unknown paths, methods and invalid bodies."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        return RequestError(error.status_code, message, headers=dict(error.headers or {}))
    if not isinstance(error, RequestValidationError):
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return RequestError(HTTPStatus.INTERNAL_SERVER_ERROR, f"the server failed: {type(error).__name__}")
    first = error.errors()[0]
    param = next((part for part in first["loc"][1:] if isinstance(part, str)), None)
    where = f"{param}: " if param else "body: "
    return RequestError(HTTPStatus.BAD_REQUEST, f"{where}{first['msg']}, got {first['input']!r:.80}", param=param)


async def error_response(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an error; log an unexpected one."""
    known = _as_request_error(request, error)
    return JSONResponse(known.body(), known.status_code, headers=known.headers)
