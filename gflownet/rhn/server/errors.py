"""Error responses in OpenAI's format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

RETRY_SECONDS = 1  # of the header Retry-After


class RequestError(Exception):
    """An error response."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: bool = False
    ) -> None:
        """`param` is the invalid field; `retry`: whether the same request may succeed later."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {"Retry-After": str(RETRY_SECONDS)} if retry else {}

    def body(self) -> dict[str, Any]:
        """Return the error in OpenAI's format."""
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        if self.status == HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def bad_request(param: str, message: str) -> RequestError:
    """Return the error for a field."""
    return RequestError(HTTPStatus.BAD_REQUEST, f"{param}: {message}", param=param)


def from_value_error(error: ValueError, fields: Iterable[str]) -> RequestError:
    """Return the error for a ValueError whose message may start with the name of one of `fields`."""
    name = str(error).partition(":")[0]
    return RequestError(HTTPStatus.BAD_REQUEST, str(error), param=name if name in fields else None)


def from_pydantic(error: ValidationError) -> RequestError:
    """Return the first error in one line."""
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    param = str(first["loc"][0]) if first["loc"] else None
    where = f"{param}: " if param else ""
    return RequestError(HTTPStatus.BAD_REQUEST, f"{where}{first['msg']}, got {first['input']!r:.80}", param=param)
