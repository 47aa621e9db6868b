"""Connections of the server: a limit on their number, and time limits for clients that do not send or do not read.

uvicorn's protocol waits without limit for a header, for the rest of a body after its response, and for a client to read
its response. Here one timer checks all connections several times per second.
"""

from __future__ import annotations

import fcntl
import json
import math
import resource
import socket
import sys
import termios
from asyncio import Transport
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from gflownet.errors import UserError
from gflownet.rhn.server.errors import RequestError
from gflownet.rhn.server.limits import Limits

MAX_HEADER = 16 * 1024  # bytes
WRITE_BUFFER = 16 * 1024  # bytes of a response in this process, before its answer is paused
SEND_BUFFER = 16 * 1024  # bytes of a response in the system (Linux doubles it); inherited from the listening socket
LINGER_SECONDS = 2.0  # to read the rest of a refused request; a connection closed before loses its response
IDLE_SECONDS = 1.0  # after which a connection without a whole request may be closed for a new one
PROGRESS = 1024  # bytes of a body that count as progress: a byte now and then must not hold a connection
MAX_REFUSED = 64  # connections over the limit that get status 503; beyond, they are closed without
CHECKS_PER_LIMIT = 8  # of the shortest time limit
BACKLOG = 1024  # connections waiting to be accepted
KEEP_ALIVE_SECONDS = 30  # for an idle connection
SEND_SECONDS = 5  # to send responses in progress at shutdown
OTHER_FILES = 64  # open files of the process besides connections


class LimitedParser(h11.Connection):
    """Parser of a server that refuses long headers and large chunks.

    h11 itself limits only a header that is not complete yet, and waits for a chunk of any size.
    """

    def __init__(self, max_chunk: int) -> None:
        """`max_chunk` is in bytes."""
        super().__init__(h11.SERVER, MAX_HEADER)
        self._max_chunk = max_chunk

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: invalid HTTP, or a part over its limit; with a status as hint.
        """
        num_before = self._num_unread() if self.their_state is h11.IDLE else 0  # counting copies
        event = super().next_event()
        if isinstance(event, h11.Request) and (size := num_before - self._num_unread()) > MAX_HEADER:
            message = f"header: expected at most {MAX_HEADER} bytes, got {size}"
            raise h11.RemoteProtocolError(message, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        # The size of a chunk is known to the reader only; it makes no event before the first byte of the chunk.
        if getattr(self._reader, "_bytes_in_chunk", 0) > self._max_chunk:
            message = f"body: expected chunks of at most {self._max_chunk} bytes, got a larger one"
            raise h11.RemoteProtocolError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return event

    def _num_unread(self) -> int:
        return len(self.trailing_data[0])


class Ending(Enum):
    """Reason to close a connection."""

    HEADER_TIMEOUT = "header_timeout"
    BODY_TIMEOUT = "body_timeout"
    NOT_READING = "not_reading"  # the client does not read its response
    REPLACED = "replaced"  # a connection without a whole request, closed for a new one
    REFUSED = "refused"  # over the limit


class _Phase(Enum):
    """Request of a connection."""

    HEADER = auto()  # not complete
    BODY = auto()  # not complete
    REST = auto()  # of the body, after the response
    KEEP_ALIVE = auto()  # between requests; uvicorn closes the connection after a time
    OTHER = auto()  # complete; the response is not


@dataclass
class Connections:
    """The open connections. Used by the thread of the event loop only."""

    limits: Limits = field(default_factory=Limits)
    open: set[GuardedProtocol] = field(default_factory=set)
    refused: set[GuardedProtocol] = field(default_factory=set)  # open until they have their response
    endings: Counter[Ending] = field(default_factory=Counter)
    _is_checking: bool = False

    def protocol(self, **options: Any) -> GuardedProtocol:
        """Return the protocol of a new connection, from uvicorn's arguments."""
        return GuardedProtocol(connections=self, **options)

    def add(self, connection: GuardedProtocol) -> bool:
        """Add a connection, if need be in place of the one without progress for the longest time; False if full."""
        now = connection.loop.time()
        if not self._is_checking:
            self._is_checking = True
            self._check_later(connection)
        if len(self.open) >= self.limits.max_connections:
            idle = [other for other in self.open if other.idle_seconds(now) >= IDLE_SECONDS]
            if not idle:
                self.refused.add(connection)
                self.endings[Ending.REFUSED] += 1
                return False
            max(idle, key=lambda other: other.idle_seconds(now)).end(Ending.REPLACED)
        self.open.add(connection)
        return True

    def discard(self, connection: GuardedProtocol) -> None:
        """Remove a closed connection."""
        self.open.discard(connection)
        self.refused.discard(connection)

    def _check_later(self, connection: GuardedProtocol) -> None:
        limits = self.limits
        shortest = min(limits.header_timeout, limits.body_timeout, limits.read_timeout, LINGER_SECONDS)
        connection.loop.call_later(shortest / CHECKS_PER_LIMIT, self._check, connection)

    def _check(self, last: GuardedProtocol) -> None:
        """Close connections over their time limits; without connections, stop until the next one."""
        now = last.loop.time()
        connections = [*self.open, *self.refused]
        for connection in connections:
            connection.check(now)
        self._is_checking = bool(connections)
        if connections:
            self._check_later(connections[0])


class GuardedProtocol(H11Protocol):
    """HTTP connection with limits; errors of HTTP itself get responses in OpenAI's format."""

    def __init__(self, *, connections: Connections, **options: Any) -> None:
        """`options`: see uvicorn's protocol."""
        super().__init__(**options)
        self._connections, self._limits = connections, connections.limits
        self.conn = LimitedParser(self._limits.max_body)
        self._phase, self._since = _Phase.HEADER, self.loop.time()  # of the request, and its start
        self._num_received, self._received = 0, 0.0  # bytes since the last progress of a body, and its time
        self._num_unread, self._progress = 0, 0.0  # bytes to write, and when they last became fewer
        self._is_refused = False

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Count the connection; over the limit, wait for a request to refuse it."""
        self._is_refused = not self._connections.add(self)
        if not self._is_refused:
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=WRITE_BUFFER)
            return
        self.transport = transport
        if len(self._connections.refused) > MAX_REFUSED:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection as closed."""
        self._connections.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self._is_refused:
            message = f"the server has {self._limits.max_connections} connections"
            return self._refuse(RequestError(HTTPStatus.SERVICE_UNAVAILABLE, message, retry=True))
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._num_received += len(data)
        if self._num_received >= PROGRESS:
            self._num_received, self._received = 0, self.loop.time()
        self._enter_phase()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._enter_phase()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP request."""
        error = sys.exc_info()[1]  # the method is called while uvicorn handles it
        status = getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST)
        status = status if status < HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST
        self._refuse(RequestError(status, f"invalid HTTP request: {error}"))

    def idle_seconds(self, now: float) -> float:
        """Return the time without progress of a request that is not complete; -1 if it is complete."""
        if self._phase is _Phase.OTHER:
            return -1.0
        # A header is short: bytes of it are no progress.
        return now - (max(self._since, self._received) if self._phase is _Phase.BODY else self._since)

    def check(self, now: float) -> None:
        """Close the connection if it is over a time limit."""
        waited = now - self._since
        if self._is_refused:
            if waited >= IDLE_SECONDS:
                self.transport.abort()
        elif self._is_stalled(now):
            self.end(Ending.NOT_READING)
        elif waited >= self._phase_seconds():
            self.end(Ending.HEADER_TIMEOUT if self._phase is _Phase.HEADER else Ending.BODY_TIMEOUT)

    def _phase_seconds(self) -> float:
        """Return the time limit of the present phase of the request."""
        if self._phase is _Phase.HEADER:
            return self._limits.header_timeout
        if self._phase is _Phase.BODY:  # the application responds before
            return self._limits.body_timeout + LINGER_SECONDS
        return LINGER_SECONDS if self._phase is _Phase.REST else math.inf

    def end(self, reason: Ending) -> None:
        """Close the connection; a client that has sent a part of a request gets status 408 or 503."""
        self._connections.endings[reason] += 1
        has_part = self._phase is _Phase.BODY or bool(self.conn.trailing_data[0])
        # A client that does not read would keep a connection that waits until its response is sent.
        is_free = not self.transport.is_closing() and not self.transport.get_write_buffer_size()
        if has_part and is_free and reason is Ending.HEADER_TIMEOUT:
            message = f"header: expected it within {self._limits.header_timeout:g} seconds"
            self._refuse(RequestError(HTTPStatus.REQUEST_TIMEOUT, message))
        elif has_part and is_free and reason is Ending.REPLACED:
            message = f"the server has {self._limits.max_connections} connections, and this one made no progress"
            self._refuse(RequestError(HTTPStatus.SERVICE_UNAVAILABLE, message, retry=True))
        else:
            self.transport.abort()
        self._connections.discard(self)

    def _is_stalled(self, now: float) -> bool:
        """Return whether the client has not read for the time limit, while nothing is added to its response."""
        num_buffered = self.transport.get_write_buffer_size()
        # Counts the bytes that the client's system has not received: it is exact also for a client that reads slowly.
        num_unread = num_buffered + (num_queued_bytes(self.transport.get_extra_info("socket")) if num_buffered else 0)
        is_whole = self.cycle is None or self.cycle.response_complete or self.transport.is_closing()
        is_less = not self._num_unread or num_unread < self._num_unread  # at the last look nothing waited, or more
        if not num_unread or is_less or not (self.flow.write_paused or is_whole):
            self._progress = now
        self._num_unread = num_unread
        return now - self._progress >= self._limits.read_timeout

    def _enter_phase(self) -> None:
        phase = self._present_phase()
        if phase is not self._phase:
            self._phase, self._since = phase, self.loop.time()

    def _present_phase(self) -> _Phase:
        if self.conn.their_state is h11.IDLE:
            has_part = self.timeout_keep_alive_task is None or self.conn.trailing_data[0]
            return _Phase.HEADER if has_part else _Phase.KEEP_ALIVE
        if self.conn.their_state is h11.SEND_BODY:
            return _Phase.REST if self.conn.our_state is h11.DONE else _Phase.BODY
        return _Phase.OTHER

    def _refuse(self, error: RequestError) -> None:
        """Send an error, unless a response has started, and close the connection."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            return self.transport.abort()
        body = json.dumps(error.body()).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **error.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{lines}\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


def num_queued_bytes(connection: Any) -> int:
    """Return the bytes sent on a socket that the other side has not received; 0 if the system does not count them."""
    try:
        return int.from_bytes(fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        UserError: the address is not available.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise UserError(f"--host, --port: cannot listen on {host}:{port} ({error})") from None
    # A client that does not read is noticed when its buffers are full. The system would let them grow to megabytes.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    return listening


def uvicorn_server(app: FastAPI, connections: Connections) -> uvicorn.Server:
    """Return the server of an application."""
    config = uvicorn.Config(
        app,
        http=cast(Any, connections.protocol),
        ws="none",
        log_level="error",  # not a line for each invalid request
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SEND_SECONDS,
    )
    return uvicorn.Server(config)


def allow_open_files(max_connections: int) -> None:
    """Raise the process's limit of open files for the connections.

    Raises:
        UserError: the system's limit is lower.
    """
    needed = max_connections + MAX_REFUSED + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise UserError(f"--max-connections: expected at most {soft - MAX_REFUSED - OTHER_FILES} with ulimit -n {soft}")
