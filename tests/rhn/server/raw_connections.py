"""Raw connections to a server: bytes as a test sends them, responses as they arrive."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.rhn.server.clients import PATIENCE

SMALL_BUFFER = 1024  # bytes that the system receives for a client that does not read (Linux doubles it)


@dataclass(frozen=True)
class RawResponse:
    """A response read until the server closed the connection."""

    status: int  # 0: none
    head: str
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@contextmanager
def connected(port: int, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", port))
        yield connection


def post(path: str, body: bytes | dict[str, Any], *headers: str, version: str = "1.1") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def read_all(connection: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection; a reset is an end too."""
    received = bytearray()
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return bytes(received)


def response_of(connection: socket.socket) -> RawResponse:
    """Return the first response of the server; status 0 if it closes the connection without one."""
    received = bytearray()
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            return RawResponse(0, "", bytes(received))
        received += part
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    while len(body) < length:
        body += connection.recv(65536)
    return RawResponse(int(head.split()[1]), head.decode().lower(), body[:length])
