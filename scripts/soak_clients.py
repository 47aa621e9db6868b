"""Clients of scripts/soak_server.py: ordinary ones, and three kinds that a server has to survive."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from gflownet.rhn.serving.sampling import SamplingParams

MODEL = "model"
ENDLESS = 10_000  # tokens of an answer that no client reads to its end
SMALL_BUFFER = 2048  # bytes that the system receives for a client that does not read
TIMEOUT_S = 240.0
_PATH = "/v1/completions"


@dataclass(frozen=True)
class Reply:
    """An ordinary answer."""

    text: str
    finish_reason: str | None
    first_after: float  # seconds to its first byte
    after: float  # seconds to its end


def request_of(number: int, *, shortest: int = 40) -> tuple[str, SamplingParams]:
    """Return prompt and parameters of an ordinary client; answers have `shortest` tokens and up to 79 more."""
    params = SamplingParams(
        seed=number,
        max_tokens=shortest + 7 * number % 80,
        temperature=0.5 + number % 4 / 4,
        top_k=number % 3 * 40,
        stop=("e",) if number % 5 == 0 else (),
    )
    return f"def function_{number}(" + "x, " * (number % 20), params


def post(body: bytes, *headers: str) -> bytes:
    """Return the bytes of a request."""
    lines = [f"POST {_PATH} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def completion(**fields: Any) -> bytes:
    """Return the bytes of a request for a completion."""
    return post(json.dumps({"model": MODEL, "prompt": "a", **fields}).encode())


async def ordinary(port: int, number: int) -> Reply:
    """Read an answer: every second one as a stream."""
    prompt, params = request_of(number)
    names = ("seed", "max_tokens", "temperature", "top_k")
    fields = {name: getattr(params, name) for name in names} | {"stop": list(params.stop), "stream": number % 2 == 0}
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(completion(prompt=prompt, **fields))
        head = await reader.readuntil(b"\r\n\r\n")
        first = await reader.read(1)
        first_after = time.monotonic() - start
        body = (first + await reader.read()) if b" 200 " in head[:16] else b""
    finally:
        writer.close()
    choices = _choices(body, chunked=b"transfer-encoding: chunked" in head.lower())
    text = "".join(choice["text"] for choice in choices)
    return Reply(text, choices[-1]["finish_reason"] if choices else None, first_after, time.monotonic() - start)


def _choices(body: bytes, *, chunked: bool) -> list[dict[str, Any]]:
    """Return the choices of a whole answer or of the events of a stream."""
    if not chunked:
        return json.loads(body)["choices"] if body else []
    content, rest = bytearray(), body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        content += rest[:length]
        rest = rest[length + 2 :]
    events = [line[6:] for line in content.split(b"\n") if line.startswith(b"data: {")]
    return [choice for event in events for choice in json.loads(event)["choices"]]


async def never_reads(port: int, end: asyncio.Event) -> None:
    """Ask for an answer and keep the connection, without reading."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, completion(max_tokens=ENDLESS, stream=True))
        await end.wait()
    finally:
        connection.close()


async def hangs_up(port: int, num_bytes: int) -> None:
    """Close the connection in the middle of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(completion(max_tokens=ENDLESS, stream=True))
    await reader.readexactly(num_bytes)
    writer.transport.abort()


# Bytes of hostile requests; after them the client waits for the server to close the connection.
HOSTILE: tuple[bytes, ...] = (
    b"",
    b"GET /v1/models HTTP/1.1\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000,
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    b"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    post(b"{}")[:-1],
    post(b"[" * 100_000),
    post(b" " * 2_000_000),
    post(b"\xff\xfe{"),
    completion(prompt=["a"] * 50_000),
    completion(prompt="a" * 100_000),
    completion(max_tokens=10**30),
    completion(temperature=1e308, top_k=-5),
    completion(n=128, best_of=128, prompt=["a"] * 100),
    completion(logit_bias={str(i): 1e9 for i in range(5000)}),
    completion(stop=["x" * 100_000]),
    post(b'{"model": "model", "prompt": "a", "temperature": NaN}'),
)


async def hostile(port: int, sent: bytes) -> int:
    """Send a hostile request; return the status of the response, 0 if the server closes the connection without."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        response = await reader.read()
    except ConnectionError:  # closed before it was read
        return 0
    finally:
        writer.close()
    return int(response.split()[1]) if response else 0


@dataclass(frozen=True)
class Crowd:
    """Numbers of clients."""

    ordinary: int
    never_read: int = 0
    hang_up: int = 0
    hostile: int = 0

    @property
    def alone(self) -> Crowd:
        """The ordinary clients alone."""
        return Crowd(self.ordinary)

    @property
    def size(self) -> int:
        """Number of all clients."""
        return self.ordinary + self.never_read + self.hang_up + self.hostile


@dataclass(frozen=True)
class Outcome:
    """What the clients got."""

    replies: Sequence[Reply | BaseException]  # of ordinary clients
    statuses: Sequence[int | BaseException]  # of hostile requests


async def run_crowd(port: int, crowd: Crowd, *, seed: int) -> Outcome:
    """Start all clients at once, in random order; the ordinary ones in the same order in every crowd of a seed."""
    end = asyncio.Event()
    starts: list[tuple[float, str, Callable[[], Coroutine[Any, Any, Any]]]] = []
    for kind, number, client in _clients(port, crowd, end):
        starts.append((Random(f"{seed} {kind} {number}").random(), kind, client))
    starts.sort(key=lambda start: start[0])
    tasks = [(kind, asyncio.create_task(client())) for _, kind, client in starts]
    results: dict[str, list[Any]] = {}
    for kind in ("ordinary", "hang_up", "hostile"):
        own = [asyncio.wait_for(task, TIMEOUT_S) for of, task in tasks if of == kind]
        results[kind] = await asyncio.gather(*own, return_exceptions=True)
    end.set()
    await asyncio.gather(*(task for _, task in tasks), return_exceptions=True)
    numbers = sorted(range(crowd.ordinary), key=lambda number: Random(f"{seed} ordinary {number}").random())
    replies = dict(zip(numbers, results["ordinary"], strict=True))
    return Outcome([replies[number] for number in range(crowd.ordinary)], results["hostile"])


def _clients(
    port: int, crowd: Crowd, end: asyncio.Event
) -> list[tuple[str, int, Callable[[], Coroutine[Any, Any, Any]]]]:
    return [
        *(("ordinary", i, lambda i=i: ordinary(port, i)) for i in range(crowd.ordinary)),
        *(("never_read", i, lambda: never_reads(port, end)) for i in range(crowd.never_read)),
        *(("hang_up", i, lambda i=i: hangs_up(port, 200 + 50 * (i % 20))) for i in range(crowd.hang_up)),
        *(("hostile", i, lambda i=i: hostile(port, HOSTILE[i % len(HOSTILE)])) for i in range(crowd.hostile)),
    ]
