"""The command line of python -m gflownet.rhn.server."""

from __future__ import annotations

import argparse
import asyncio
import math
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any

from gflownet.errors import CommandLine, UserError, error_line

if TYPE_CHECKING:
    import uvicorn

    from gflownet.rhn.server.service import Service

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
BACKLOG = 1024  # connections that wait to be accepted
KEEP_ALIVE_SECONDS = 30  # of a connection without a request
SEND_SECONDS = 5  # at the end, for responses in progress

# name: type, default, help; every number is at least 1, but port
OPTIONS: dict[str, tuple[type, Any, str]] = {
    "host": (
        str,
        "127.0.0.1",
        "address to listen on; 0.0.0.0: every one, then name the server by --allow-host; no key is needed",
    ),
    "port": (int, 8000, "0: one that is free"),
    "max_slots": (int, 32, "prompts answered at a time"),
    "max_queue": (int, 256, "prompts that may wait; beyond, 429"),
    "max_prompt": (int, 16384, "tokens (bytes) of a prompt; beyond, 400"),
    "max_body": (int, 1 << 20, "bytes of a request; beyond, 413"),
    "timeout": (float, 600.0, "seconds until a request's last token; beyond, 504"),
    "grace": (float, 30.0, "seconds that running requests have after SIGTERM"),
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of the command line.

    Raises:
        UserError: an option that does not exist, lacks its value, or is out of bounds.
    """
    parser = CommandLine(
        prog="python -m gflownet.rhn.server",
        description="Serves a saved language model by HTTP: POST /v1/completions and GET /v1/models in OpenAI's shape, "
        "/health, and /metrics for Prometheus. SIGTERM lets running requests finish.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with model.json and model.safetensors")
    for name, (kind, default, text) in OPTIONS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=default, metavar="X", help=f"{text} (default: {default})")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer requests to this name of the server too; may be repeated "
        "(default: the address in --host and the loopback names; others get 403)",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="answer requests from web pages of this origin, e.g. https://example.com; may be repeated "
        "(default: none but the server's own; others get 403)",
    )
    found = parser.parse_args(arguments)
    for name, (kind, _, _) in OPTIONS.items():
        value, least = getattr(found, name), 0 if name in ("port", "grace") else 1
        if kind is not str and not value >= least:
            raise UserError(f"--{name.replace('_', '-')}: expected at least {least}, got {value}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return 0, 1 when the model failed, 2 for the user's mistakes."""
    try:
        asked = parse(sys.argv[1:] if argv is None else argv)
        return serve(asked)
    except UserError as error:
        print(error_line(error), file=sys.stderr)
        return EXIT_USER_ERROR


def serve(asked: argparse.Namespace) -> int:
    """Load, listen, and serve until a signal."""
    # Here and not above: --help and a wrong option wait for neither torch nor the framework.
    from gflownet.rhn.checkpoint import load_byte_decoder
    from gflownet.rhn.serving.engine import Engine, EngineConfig
    from gflownet.rhn.serving.scheduler import SchedulerConfig

    try:
        import uvicorn

        from gflownet.rhn.server.app import Limits, create_app
        from gflownet.rhn.server.origins import Origins
        from gflownet.rhn.server.service import Service
    except ModuleNotFoundError as error:
        raise UserError(f"expected what serving needs, got no {error.name}: pip install 'gflownet[serve]'") from None
    try:
        origins = Origins(frozenset({asked.host, *asked.allow_host}), frozenset(asked.allow_origin))
    except ValueError as error:
        raise UserError(f"--host, --allow-host, --allow-origin: {error}") from None
    model = load_byte_decoder(asked.folder)
    # A state does not grow with its tokens: a request is bounded by its time, waiting included.
    scheduler = SchedulerConfig(asked.max_slots, asked.max_queue, max_waiting=math.inf, token_budget=sys.maxsize)
    engine = Engine(model, EngineConfig(scheduler))
    listening = _listen(asked.host, asked.port)
    service = Service(engine, asked.folder.resolve().name, on_failure=lambda: _end(server))
    limits = Limits(asked.max_body, asked.max_prompt, asked.max_queue, asked.timeout, origins)
    app = create_app(service, limits, on_start=lambda: _begin(service, server, listening, asked.grace))
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SEND_SECONDS,
        )
    )
    server.run([listening])
    return EXIT_FAILED if service.failed else 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        raise UserError(f"--host, --port: expected an address to listen on, got {host}:{port} ({error})") from None


def _begin(service: Service, server: uvicorn.Server, listening: socket.socket, grace: float) -> None:
    """Print the URL, and let signals end the server gently from now on."""
    loop = asyncio.get_running_loop()
    drains: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        drains.append(loop.create_task(_drain(service, server, 0.0 if drains else grace)))  # the second one: at once

    for kind in (SIGINT, SIGTERM):
        loop.add_signal_handler(kind, on_signal)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {service.card['id']} at http://{shown}:{port}/v1", flush=True)


async def _drain(service: Service, server: uvicorn.Server, grace: float) -> None:
    await service.drain(grace)
    _end(server)


def _end(server: uvicorn.Server) -> None:
    server.should_exit = True
