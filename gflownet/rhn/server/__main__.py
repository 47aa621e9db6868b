"""Command line of python -m gflownet.rhn.server (imports torch only to serve)."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from gflownet.errors import UserError
from gflownet.rhn.server.limits import OPTIONS, ServerLimits
from gflownet.rhn.text_codec import check_model_folder
from gflownet.terminal.arguments import CommandLine, program, run_command

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

EXIT_FAILED = 1
API_KEY_VARIABLE = "GFLOWNET_API_KEY"
MAX_HEADER = 1 << 14  # bytes
KEEP_ALIVE_SECONDS = 60

# name: placeholder, help; each may be repeated
LISTS = {
    "api_key": (
        "KEY",
        "key that requests must have (Authorization: Bearer KEY; others get status 401, except for /health). "
        f"Other users of the machine see it in the list of processes: set {API_KEY_VARIABLE} instead",
    ),
    "allow_host": (
        "NAME",
        "additional host name of the server (default: the address in --host and the loopback names; others get "
        "status 403)",
    ),
    "allow_origin": (
        "ORIGIN",
        "origin of web pages that may send requests, e.g. https://example.com (default: only the server's own)",
    ),
    "chat_stop": ("TEXT", "end an answer of a chat before this text (without a template: before 'user:')"),
}


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog=program("serve"),
        description="Serve a saved language model by HTTP with OpenAI's API: POST /v1/completions, "
        "POST /v1/chat/completions, GET /v1/models; /health, and /metrics for Prometheus. SIGTERM lets running "
        "requests finish.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder with model.json and model.safetensors")
    numbers = (("port", int, 8000, "0: a free port"), *((o.key, o.type_hint, o.default, o.help) for o in OPTIONS))
    host = "address to listen on; 0.0.0.0: all addresses, with --allow-host and --api-key"
    for name, kind, default, text in (("host", str, "127.0.0.1", host), *numbers):
        parser.add_argument(_flag(name), type=kind, default=default, metavar="X", help=f"{text} (default: {default})")
    parser.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="Jinja2 template of chats, as in Hugging Face (default: chat_template.jinja in FOLDER; without it, lines "
        "'user: TEXT')",
    )
    parser.add_argument("--insecure", action="store_true", help="allow other than loopback addresses without a key")
    for name, (placeholder, text) in LISTS.items():
        parser.add_argument(
            _flag(name), action="append", default=[], metavar=placeholder, help=f"{text}; may be repeated"
        )
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the values of the command line, with its `limits` and the API key of the environment.

    Raises:
        UserError: an unknown option, a missing value, or a value out of bounds.
    """
    options = command_line().parse_args(arguments)
    lowest = {"port": 0, **{option.key: option.bounds.low for option in OPTIONS if option.bounds}}
    for name, low in lowest.items():
        if not getattr(options, name) >= low:
            raise UserError(f"{_flag(name)}: expected at least {low}, got {getattr(options, name)}")
    if not all(options.chat_stop):
        raise UserError("--chat-stop: expected a text, got nothing")
    key = os.environ.get(API_KEY_VARIABLE)
    options.api_key += [key] if key else []
    if not all(key and key.isascii() and key.isprintable() and " " not in key for key in options.api_key):
        raise UserError(f"--api-key, {API_KEY_VARIABLE}: expected printable ASCII characters without spaces")
    if not (options.api_key or options.insecure or _is_loopback(options.host)):
        raise UserError(
            f"--host: expected a key for {options.host!r}, which other machines may reach, got none; "
            f"set {API_KEY_VARIABLE}, or give --insecure"
        )
    options.limits = ServerLimits(**{option.key: getattr(options, option.key) for option in OPTIONS})
    return options


def _is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; names other than localhost may be of any."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; return the exit status: 0, 1 if the model failed, 2 for an error of the user."""
    return run_command(lambda: serve(parse(sys.argv[1:] if argv is None else argv)))


def serve(options: argparse.Namespace) -> int:
    """Load the model, listen, and serve until a signal."""
    # Imported here, so that --help and option errors do not import torch or the web framework.
    try:
        from gflownet.rhn.server.requests import load_chat_template

        check_model_folder(options.folder)
        template = load_chat_template(options.chat_template, options.chat_stop, options.folder)

        import uvicorn  # noqa: F401

        from gflownet.rhn.server.app import Access, create_app
        from gflownet.rhn.server.service import Service
    except ModuleNotFoundError as error:
        raise UserError(f"missing package {error.name}: pip install 'gflownet[serve]'") from None
    from gflownet.rhn.checkpoint import load_text_model
    from gflownet.rhn.serving.engine import Engine, EngineConfig, SchedulerConfig

    model, codec = load_text_model(options.folder)
    limits: ServerLimits = options.limits
    engine = Engine(model, EngineConfig(SchedulerConfig(limits.max_slots, limits.max_queue), codec=codec))
    listening = listen(options.host, options.port)
    name, host = options.folder.resolve().name, f"[{options.host}]" if ":" in options.host else options.host
    line = f"serving {name} at http://{host}:{listening.getsockname()[1]}/v1"

    def end() -> None:
        server.should_exit = True

    service = Service(engine, name, on_failure=end, codec=codec)
    access = Access((options.host, *options.allow_host), options.api_key, options.allow_origin)
    app = create_app(service, limits, on_start=lambda: print(line, flush=True), access=access, template=template)
    server = uvicorn_server(app, limits)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # uvicorn raises the signals that it handled once more
        server.run([listening])
    return EXIT_FAILED if service.failed else 0


def uvicorn_server(app: FastAPI, limits: ServerLimits) -> uvicorn.Server:
    """Return the server of an application."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_level="critical",  # no traceback of each request that the end of the grace period cuts off
            server_header=False,
            limit_concurrency=limits.max_connections,
            h11_max_incomplete_event_size=MAX_HEADER,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=limits.grace,  # type: ignore[arg-type]  # passed to asyncio.wait_for
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        UserError: the address is not available.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise UserError(f"--host, --port: cannot listen on {host}:{port} ({error})") from None


if __name__ == "__main__":
    sys.exit(main())
