"""Sockets of the server, and uvicorn with the limits of its connections."""

from __future__ import annotations

import resource
import socket
from contextlib import suppress
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from gflownet.errors import UserError
from gflownet.rhn.server.connections import MAX_REFUSED, SEND_BUFFER, Connections

BACKLOG = 1024  # connections waiting to be accepted
KEEP_ALIVE_SECONDS = 30  # for an idle connection
SEND_SECONDS = 5  # to send responses in progress at shutdown
OTHER_FILES = 64  # open files of the process besides connections


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
