"""Command line of python -m gflownet.rhn.server (imports torch only to serve)."""

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

from gflownet.command_line import EXIT_USER_ERROR, CommandLine
from gflownet.errors import UserError, error_line

if TYPE_CHECKING:
    import uvicorn

    from gflownet.rhn.server.service import Service

EXIT_FAILED = 1
BACKLOG = 1024  # connections waiting to be accepted
KEEP_ALIVE_SECONDS = 30  # for an idle connection
SEND_SECONDS = 5  # to send responses in progress at shutdown

# name: type, default, help; numbers are at least 1, port and grace at least 0
OPTIONS: dict[str, tuple[type, Any, str]] = {
    "host": (
        str,
        "127.0.0.1",
        "address to listen on; 0.0.0.0: all addresses, with --allow-host; there is no authentication",
    ),
    "port": (int, 8000, "0: a free port"),
    "max_slots": (int, 32, "maximum number of prompts answered at once"),
    "max_queue": (int, 256, "maximum number of waiting prompts; beyond: status 429"),
    "max_prompt": (int, 16384, "maximum tokens (bytes) of a prompt; beyond: status 400"),
    "max_body": (int, 1 << 20, "maximum bytes of a request; beyond: status 413"),
    "timeout": (float, 600.0, "seconds for a request; beyond: status 504"),
    "grace": (float, 30.0, "seconds for running requests after SIGTERM"),
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of the command line.

    Raises:
        UserError: an unknown option, a missing value, or a value out of bounds.
    """
    parser = CommandLine(
        prog="python -m gflownet.rhn.server",
        description="Serve a saved language model by HTTP: POST /v1/completions and GET /v1/models in OpenAI's format, "
        "/health, and /metrics for Prometheus. SIGTERM lets running requests finish.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder with model.json and model.safetensors")
    for name, (kind, default, text) in OPTIONS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=default, metavar="X", help=f"{text} (default: {default})")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="additional host name of the server; may be repeated "
        "(default: the address in --host and the loopback names; others get status 403)",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of web pages that may send requests, e.g. https://example.com; may be repeated "
        "(default: only the server's own; others get status 403)",
    )
    options = parser.parse_args(arguments)
    for name, (kind, _, _) in OPTIONS.items():
        value, lowest = getattr(options, name), 0 if name in ("port", "grace") else 1
        if kind is not str and not value >= lowest:
            raise UserError(f"--{name.replace('_', '-')}: expected at least {lowest}, got {value}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return the exit status: 0, 1 if the model failed, 2 for an error of the user."""
    try:
        return serve(parse(sys.argv[1:] if argv is None else argv))
    except UserError as error:
        print(error_line(error), file=sys.stderr)
        return EXIT_USER_ERROR


def serve(options: argparse.Namespace) -> int:
    """Load the model, listen, and serve until a signal."""
    # Imported here, so that --help and option errors do not import torch or the web framework.
    from gflownet.rhn.checkpoint import load_text_model
    from gflownet.rhn.serving.engine import Engine, EngineConfig
    from gflownet.rhn.serving.scheduler import SchedulerConfig

    try:
        import uvicorn

        from gflownet.rhn.server.app import Limits, create_app
        from gflownet.rhn.server.origins import Origins
        from gflownet.rhn.server.service import Service
    except ModuleNotFoundError as error:
        raise UserError(f"missing package {error.name}: pip install 'gflownet[serve]'") from None
    try:
        origins = Origins(frozenset({options.host, *options.allow_host}), frozenset(options.allow_origin))
    except ValueError as error:
        raise UserError(f"--host, --allow-host, --allow-origin: {error}") from None
    model = load_text_model(options.folder).model
    # States have a constant size, so the limit of a request is its time, waiting included.
    scheduler = SchedulerConfig(options.max_slots, options.max_queue, max_waiting=math.inf, token_budget=sys.maxsize)
    engine = Engine(model, EngineConfig(scheduler))
    listening = _listen(options.host, options.port)
    service = Service(engine, options.folder.resolve().name, on_failure=lambda: _end(server))
    limits = Limits(options.max_body, options.max_prompt, options.max_queue, options.timeout, origins)
    app = create_app(service, limits, on_start=lambda: _begin(service, server, listening, options.grace))
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
        raise UserError(f"--host, --port: cannot listen on {host}:{port} ({error})") from None


def _begin(service: Service, server: uvicorn.Server, listening: socket.socket, grace: float) -> None:
    """Print the URL and install signal handlers that end the server after running requests."""
    loop = asyncio.get_running_loop()
    drains: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        drains.append(
            loop.create_task(_drain(service, server, 0.0 if drains else grace))
        )  # the second signal ends it at once

    for kind in (SIGINT, SIGTERM):
        loop.add_signal_handler(kind, on_signal)
    host, port = listening.getsockname()[:2]
    display_host = f"[{host}]" if ":" in host else host
    print(f"serving {service.card['id']} at http://{display_host}:{port}/v1", flush=True)


async def _drain(service: Service, server: uvicorn.Server, grace: float) -> None:
    await service.drain(grace)
    _end(server)


def _end(server: uvicorn.Server) -> None:
    server.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
