"""A server in this process: the command runs in the main thread, its clients in another."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import httpx

from gflownet.rhn.checkpoint import load_text_model
from gflownet.rhn.server.__main__ import listen, main, uvicorn_server
from gflownet.rhn.server.app import Access, create_app
from gflownet.rhn.server.limits import ServerLimits
from gflownet.rhn.server.service import Service
from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig
from tests.rhn.random_networks import random_network
from tests.rhn.server.clients import CONFIG, NEVER_ENDS, PATIENCE
from tests.running_server import metrics_of, serving_at


@dataclass
class LocalServer:
    """Where a server of this process listens."""

    url: str  # without /v1
    is_stopping: bool = False

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def metrics(self) -> dict[str, float]:
        return metrics_of(self.url)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process while the server handles it."""
        self.is_stopping = True
        os.kill(os.getpid(), number)


class _Lines(io.StringIO):
    """Standard output of the command, whose lines another thread waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self.lines.put(text)
        return len(text)


URL = "http://127.0.0.1:8000"
PATH = "/v1/completions"


Conversation = Callable[[httpx.AsyncClient, Service], Awaitable[None]]


def talk(conversation: Conversation, access: Access | None = None) -> Service:
    """Run a conversation with an application in this process, without a socket, and stop it."""

    async def run() -> Service:
        scheduler = SchedulerConfig(max_slots=8, max_queue=64)
        engine = Engine(random_network(CONFIG, 0).decoder(), EngineConfig(scheduler))
        service = Service(engine, "m", on_failure=lambda: None)
        limits = ServerLimits(max_body=1 << 16, max_prompt=2048, max_queue=4, timeout=PATIENCE)
        app = create_app(service, limits, on_start=lambda: None, access=access)
        transport = httpx.ASGITransport(app)  # an exception in the application is raised here
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=URL) as client:
            client.headers["Content-Type"] = "application/json"
            await conversation(client, service)
        return service

    return asyncio.run(run())


def check_answer(response: httpx.Response, body: object) -> None:
    """Check that a response is an answer, a stream, or an error 4xx in OpenAI's form."""
    if response.status_code == 200:
        if response.headers["content-type"].startswith("text/event-stream"):
            assert response.text.endswith("data: [DONE]\n\n"), body
        else:
            assert response.json()["choices"], body
        return
    assert 400 <= response.status_code < 500, body
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, body
    assert "\n" not in error["message"], body


@contextmanager
def serving(folder: Path, *, limits: ServerLimits, access: Access | None = None) -> Iterator[LocalServer]:
    """Serve a model in another thread; without the command, whose signals are for the main thread."""
    url: queue.Queue[str] = queue.Queue()
    model, codec = load_text_model(folder)
    engine = Engine(model, EngineConfig(SchedulerConfig(limits.max_slots), codec=codec))
    service = Service(engine, folder.name, on_failure=lambda: None, codec=codec)
    with closing(listen("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        app = create_app(service, limits, on_start=lambda: url.put(f"http://127.0.0.1:{port}"), access=access)
        server = uvicorn_server(app, limits)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield LocalServer(url.get(timeout=PATIENCE))
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
    assert not service.failed


def converse(folder: Path, talk: Callable[[LocalServer], None], **options: object) -> int:
    """Run the command of the server and a conversation with it; return the exit status.

    Args:
        folder: of the model.
        talk: called in another thread once the server listens; the server is stopped when it returns.
        options: of the command line, by name.
    """
    options = {"max_tokens_limit": NEVER_ENDS, **options}
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    output = _Lines()

    def run_talk() -> None:
        server = LocalServer(serving_at(output.lines.get(timeout=PATIENCE))[1])
        try:
            talk(server)
        finally:
            if not server.is_stopping:
                server.signal(signal.SIGTERM)

    # The command replaces signal handlers and leaves the defaults behind; the default of SIGTERM ends the process.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(1) as pool, redirect_stdout(output):
            talking = pool.submit(run_talk)
            status = main([str(folder), "--port", "0", *flags])
            talking.result(PATIENCE)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status
