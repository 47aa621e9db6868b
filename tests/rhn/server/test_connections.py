"""Clients that do not read, send slowly, or open many connections, over real sockets."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gflownet.rhn.server.connections import IDLE_SECONDS, MAX_HEADER
from gflownet.rhn.server.limits import Limits
from gflownet.rhn.server.service import MAX_UNREAD
from gflownet.rhn.text_codec import decode
from tests.rhn.server.clients import NEVER_ENDS, PATIENCE, client_of, offline, wait_until
from tests.rhn.server.in_process import LocalServer, serving

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


LIMITS = Limits(
    max_body=1 << 16,
    max_prompt=64,
    timeout=PATIENCE,
    max_tokens_limit=NEVER_ENDS,
    max_connections=12,
    header_timeout=0.6,
    body_timeout=0.6,
    read_timeout=0.6,
)
ENDLESS = {"model": "tiny", "prompt": "a", "max_tokens": NEVER_ENDS, "stream": True, "logprobs": 5}
PATH = "/v1/completions"


def head(request: str, *headers: str) -> bytes:
    return "\r\n".join([f"{request} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


HEALTH = head("GET /health")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LocalServer]:
    with serving(folder, max_slots=8, limits=LIMITS) as running:
        yield running


def send_until_closed(connection: socket.socket, piece: bytes) -> None:
    deadline = time.monotonic() + PATIENCE
    with suppress(OSError):
        while time.monotonic() < deadline:
            connection.sendall(piece)
            time.sleep(0.05)
    assert time.monotonic() < deadline


def closed(server: LocalServer, reason: str) -> float:
    return server.metrics()[f"gflownet_connections_closed_total {reason}"]


def test_client_that_does_not_read_is_paused_and_dropped(server: LocalServer, folder: Path) -> None:
    before = server.metrics()
    with ExitStack() as stack, client_of(server) as client:
        for _ in range(4):
            silent = stack.enter_context(connected(server.port, receive_buffer=SMALL_BUFFER))
            silent.sendall(post(PATH, ENDLESS))
        answer = client.completions.create(model="tiny", prompt="é", seed=1, max_tokens=300)
        after = wait_until(server, requests_running=0, answers_paused=0)
    assert answer.choices[0].text == decode(offline(folder, "é", 8, seed=1, max_tokens=300).tokens)
    name = "gflownet_connections_closed_total not_reading"
    assert after[name] - before[name] == 4
    name = "gflownet_requests_finished_total cancelled"
    assert after[name] - before.get(name, 0) == 4


def test_paused_answer_takes_no_steps(folder: Path) -> None:
    patient = replace(LIMITS, read_timeout=PATIENCE)
    with serving(folder, max_slots=2, limits=patient) as server:
        with connected(server.port, receive_buffer=SMALL_BUFFER) as silent:
            silent.sendall(post(PATH, ENDLESS))
            num_steps = wait_until(server, answers_paused=1, requests_running=1)["gflownet_steps_total"]
            while (after := server.metrics()["gflownet_steps_total"]) != num_steps:
                num_steps = after  # the step under way
            time.sleep(0.3)  # of some hundred steps
            assert server.metrics()["gflownet_steps_total"] < num_steps + 5
            num_sent = 0
            while num_sent < 300_000:  # it reads again: the answer goes on
                part = silent.recv(1 << 16)
                assert part, f"the server closed the connection after {num_sent} bytes"
                num_sent += len(part)
            assert server.metrics()["gflownet_steps_total"] > num_steps + MAX_UNREAD
        assert wait_until(server, requests_running=0)["gflownet_connections_closed_total not_reading"] == 0


def test_slow_reader_gets_its_whole_answer(server: LocalServer, folder: Path) -> None:
    asked = {"model": "tiny", "prompt": "é", "seed": 2, "max_tokens": 600, "stream": True}
    received = bytearray()
    with connected(server.port, receive_buffer=SMALL_BUFFER) as connection:
        connection.sendall(post(PATH, asked, "Connection: close"))
        start = time.monotonic()
        while part := connection.recv(4096):
            received += part
            time.sleep(0.04)
        assert time.monotonic() - start > 1.2 * LIMITS.read_timeout
    events = [line[6:] for line in received.split(b"\n") if line.startswith(b"data: {")]
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    assert text == decode(offline(folder, "é", 8, seed=2, max_tokens=600).tokens)


def test_unread_whole_answer_is_dropped(server: LocalServer) -> None:
    before = closed(server, "not_reading")
    asked = {"model": "tiny", "prompt": "é", "seed": 2, "max_tokens": 600, "logprobs": 5}
    with connected(server.port, receive_buffer=SMALL_BUFFER) as silent:
        silent.sendall(post(PATH, asked))
        wait_until(server, requests_running=0, connections=2)  # this one and that of the metrics
        wait_until(server, connections=1)
        assert closed(server, "not_reading") == before + 1


@pytest.mark.parametrize("sent", [b"", b"GET /hea", HEALTH[:-2]])
def test_incomplete_header_closes_the_connection(sent: bytes, server: LocalServer) -> None:
    start = time.monotonic()
    with connected(server.port) as connection:
        connection.sendall(sent)
        response = response_of(connection)
    assert LIMITS.header_timeout <= time.monotonic() - start
    assert response.status == (408 if sent else 0)
    if response.status:
        assert response.error["message"] == "header: expected it within 0.6 seconds"


def test_slowly_sent_header_closes_the_connection(server: LocalServer) -> None:
    with connected(server.port) as connection:
        connection.sendall(HEALTH[:9])
        send_until_closed(connection, b"x")


def test_second_request_of_a_connection_has_the_time_limit(server: LocalServer) -> None:
    with connected(server.port) as connection:
        connection.sendall(HEALTH)
        assert response_of(connection).status == 200
        time.sleep(1.5 * LIMITS.header_timeout)  # an idle connection stays open
        connection.sendall(HEALTH + HEALTH[:9])
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in received


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/tokenize"])
def test_incomplete_body_gets_408(path: str, server: LocalServer) -> None:
    with connected(server.port) as connection:
        connection.sendall(post(path, ENDLESS)[:-5])
        response = response_of(connection)
    assert response.status == 408
    assert response.error["message"] == "body: expected it within 0.6 seconds"


def test_slowly_sent_rest_of_a_body_closes_the_connection(server: LocalServer) -> None:
    """A response before the end of a body does not let the client go on for ever."""
    with connected(server.port) as connection:
        connection.sendall(head("POST /nothing", "Content-Length: 100000"))
        send_until_closed(connection, b" ")


def test_connections_over_the_limit_get_503_until_others_are_idle(folder: Path) -> None:
    limits = replace(LIMITS, max_connections=4, header_timeout=PATIENCE)
    with serving(folder, max_slots=2, limits=limits) as server, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connected(server.port))
        with connected(server.port) as connection:
            connection.sendall(HEALTH)
            response = response_of(connection)
        assert response.status == 503
        assert response.error["message"] == "the server has 4 connections"
        assert "retry-after: 1" in response.head
        time.sleep(1.2 * IDLE_SECONDS)
        assert httpx.get(f"{server.url}/health").status_code == 200  # in place of an idle one
        metrics = server.metrics()
        assert metrics["gflownet_connections_closed_total refused"] == 1
        assert metrics["gflownet_connections_closed_total replaced"] >= 1
        assert metrics["gflownet_connections"] <= 4


@pytest.mark.parametrize("part", ["header", "body"])
def test_connection_without_progress_is_replaced(part: str, folder: Path) -> None:
    """Otherwise clients that stop inside of their requests lock out all others until the time limit."""
    request = post(PATH, {"model": "tiny", "prompt": "a", "max_tokens": 1})
    stopped = request[:-5] if part == "body" else request[:20]
    limits = replace(LIMITS, max_connections=4, header_timeout=PATIENCE, body_timeout=PATIENCE)
    with serving(folder, max_slots=2, limits=limits) as server, ExitStack() as stack:
        others = [stack.enter_context(connected(server.port)) for _ in range(4)]
        for other in others:
            other.sendall(stopped)
            time.sleep(0.1)  # the first is the oldest
        start = time.monotonic()
        time.sleep(1.2 * IDLE_SECONDS)
        others[1].sendall(b" ")  # a byte is no progress
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert time.monotonic() - start < PATIENCE / 2
        response = response_of(others[0])
        assert (response.status, "retry-after: 1" in response.head) == (503, True)
        assert response.error["message"] == "the server has 4 connections, and this one made no progress"
        others[3].sendall(request[len(stopped) :])  # the youngest is still open
        assert response_of(others[3]).status == 200


def test_connection_with_the_oldest_progress_is_replaced(folder: Path) -> None:
    request = post(PATH, b'{"model": "tiny", "prompt": "a", "max_tokens": 1}' + b" " * 9000)
    limits = replace(LIMITS, max_connections=2, body_timeout=PATIENCE)
    with serving(folder, max_slots=2, limits=limits) as server, ExitStack() as stack:
        sending, stopped = (stack.enter_context(connected(server.port)) for _ in range(2))
        sending.sendall(request[:2000])
        time.sleep(0.1)
        stopped.sendall(request[:2000])
        time.sleep(1.2 * IDLE_SECONDS)
        sending.sendall(request[2000:4000])
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert response_of(stopped).status == 503
        sending.sendall(request[4000:])
        assert response_of(sending).status == 200


def test_many_half_open_connections_do_not_stop_ordinary_clients(server: LocalServer) -> None:
    with ExitStack() as stack:
        half_open = [stack.enter_context(connected(server.port)) for _ in range(LIMITS.max_connections * 3)]
        deadline = time.monotonic() + PATIENCE
        while httpx.get(f"{server.url}/health").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert all(not read_all(connection) for connection in half_open[:12])


LARGE = "X: " + "x" * 20_000
CHUNKED = head(f"POST {PATH}", "Transfer-Encoding: chunked")
INVALID = {
    "garbage": (b"\x16\x03\x01 hello\r\n\r\n", 400),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "header too large": (head("GET /health", LARGE)[:-4], 431),
    "complete header too large": (head("GET /health", LARGE), 431),
    "many headers too large": (head("GET /health", *["X: y"] * 3_000), 431),
    "complete query too large": (head("GET /v1/models?" + "q" * 70_000), 431),
    "two lengths": (post(PATH, b"{}", "Content-Length: 3"), 400),
    "negative length": (head("POST /", "Content-Length: -1"), 400),
    "unknown transfer encoding": (head("POST /", "Transfer-Encoding: gzip"), 400),
    "two transfer encodings": (head("POST /", "Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n", 400),
    "folded header": (head("GET /health", "X : y"), 400),
    "bad chunk": (CHUNKED + b"xyz\r\n\r\n", 400),
    "chunk too large": (CHUNKED + b"f" * 19 + b"\r\n", 413),
    "chunk too large after its first bytes": (CHUNKED + b"2\r\n{}\r\n" + b"f" * 19 + b"\r\nx", 413),
    "chunk size too long": (CHUNKED + b"f" * 21 + b"\r\n", 400),
    "length too large": (head(f"POST {PATH}", "Content-Length: " + "9" * 19), 413),
    "compressed body": (post(PATH, b"{}", "Content-Encoding: gzip", "Connection: close"), 415),
    "upgrade": (head("GET /v1", "Connection: Upgrade, close", "Upgrade: websocket"), 404),
    "other host in the target": (head("GET http://evil/health", "Connection: close"), 404),
    "trace": (head("TRACE /health", "Connection: close"), 405),
    "http 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 403),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_http_gets_an_error_in_openais_format(name: str, server: LocalServer) -> None:
    sent, status = INVALID[name]
    with connected(server.port) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        response = response_of(connection)
    assert response.status == status, response
    assert response.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["chunk too large", "chunk too large after its first bytes", "length too large"])
def test_too_large_body_is_refused_before_it_comes(name: str, folder: Path) -> None:
    patient = replace(LIMITS, header_timeout=PATIENCE, body_timeout=PATIENCE)
    with serving(folder, max_slots=2, limits=patient) as server, ExitStack() as stack:
        connection = stack.enter_context(connected(server.port))
        start = time.monotonic()
        connection.sendall(INVALID[name][0])
        response = response_of(connection)
    assert response.status == 413
    assert time.monotonic() - start < PATIENCE / 2


def test_header_of_the_largest_size_is_accepted(server: LocalServer) -> None:
    smallest = len(head("GET /health", "Connection: close", "X: "))
    for size, status in ((MAX_HEADER, 200), (MAX_HEADER + 1, 431)):
        with connected(server.port) as connection:
            connection.sendall(head("GET /health", "Connection: close", "X: " + "x" * (size - smallest)))
            assert response_of(connection).status == status


def test_pipelined_requests_are_answered_in_order(server: LocalServer) -> None:
    asked = {"model": "tiny", "prompt": "a", "max_tokens": 3}
    with connected(server.port) as connection:
        connection.sendall(post(PATH, asked) + HEALTH + post(PATH, b"{", "Connection: close"))
        received = read_all(connection)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"200", b"400"]
