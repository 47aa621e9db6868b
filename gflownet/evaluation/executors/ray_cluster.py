"""A connection to a Ray cluster: a running one, or one that is started on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import psutil

from gflownet.errors import UserError
from gflownet.evaluation.execution import capped

# Bytes of shared memory for large arguments and results; a pickled task is 0.5 MB.
_OBJECT_STORE_BYTES = 100 * 2**20
# Seconds until an address must accept a connection, and until Ray must have started or connected: 7 to 19 s measured.
_CONNECT_TIMEOUT_S, _START_TIMEOUT_S = 5.0, 120.0
# The same for the end: 2 s measured.
_STOP_TIMEOUT_S = 30.0
_REAPER = Path(__file__).with_name("ray_reaper.py")
_MODE_PROBE = Path(__file__).with_name("ray_mode.py")
_MODE_VARIABLE = "RAY_AUTH_MODE"
_TOKEN_FILE = Path(".ray", "auth_token")
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_adopted_mode = "unknown"  # in RAY_AUTH_MODE, if it is that of a cluster and not the user's
_log = logging.getLogger(__name__)


def import_ray() -> Any:
    """Return the module ray.

    Raises:
        UserError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"evaluation.executor=ray: expected Ray, got {error}; install it with pip install 'gflownet[ray]'"
        ) from None
    return ray


class RayCluster:
    """The connection of this process to Ray; a cluster that it started ends with it."""

    def __init__(self, address: str, *, num_cpus: int) -> None:
        """Start a cluster on this machine, or connect to a running one.

        A connection that this process already has is used, and left open by `close`.

        Args:
            address: HOST:PORT or auto; empty: start a cluster on this machine.
            num_cpus: of a cluster that is started.

        Raises:
            UserError: Ray is not installed, does not start, or does not answer.
        """
        self._ray = import_ray()
        self._address = address
        self._closing, self._is_ready = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        if self._ray.is_initialized():
            return
        arguments: dict[str, Any] = {"address": address}
        if address:
            use_mode_of(address)
        else:
            ensure_token()
            arguments = {
                "address": "local",
                "num_cpus": num_cpus,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
            }
        # Ray starts and ends in a thread that lives as long as the connection. In the main thread ray.init() would
        # turn a stop signal into an exit, and Linux ends Ray's processes with the thread that started them.
        self._thread = threading.Thread(target=self._serve, args=(arguments,), name="ray", daemon=True)
        with _kept_signal_handlers():
            self._thread.start()
            is_ready = self._is_ready.wait(_START_TIMEOUT_S)
        if not is_ready:
            raise UserError(f"{self._place}: no answer from Ray within {_START_TIMEOUT_S:g} s")
        if self._error is not None:
            reason = capped(f"{type(self._error).__name__}: {self._error}", 500)
            raise UserError(f"{self._place}: {reason}")

    @property
    def nodes(self) -> list[dict[str, float]]:
        """The resources of each machine of the cluster at this time, by Ray's names: CPU, GPU, memory in bytes."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Disconnect; end a cluster that was started here. May be called twice."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)
            self._thread = None

    @property
    def _place(self) -> str:
        return f"evaluation.ray.address={self._address or 'empty'}"

    def _serve(self, arguments: dict[str, Any]) -> None:
        with _silent_node_messages():
            self._connect(arguments)

    def _connect(self, arguments: dict[str, Any]) -> None:
        """Connect, wait until `close`, disconnect."""
        try:
            self._ray.init(log_to_driver=False, logging_level=logging.ERROR, **arguments)
        except Exception as error:
            self._error = error
            with suppress(Exception):
                self._ray.shutdown()
            self._is_ready.set()
            return
        with _node_ended_with_main_process() if arguments["address"] == "local" else nullcontext():
            self._is_ready.set()
            self._closing.wait()
            self._ray.shutdown()


def check_address(address: str) -> None:
    """Raise UserError unless the address is empty, auto, or a HOST:PORT that accepts connections."""
    if address in ("", "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536 or "/" in host:
        raise UserError(f"evaluation.ray.address: expected HOST:PORT, auto or nothing, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise UserError(f"evaluation.ray.address={address}: no Ray cluster answers there ({error})") from None


def ensure_token() -> None:
    """Create Ray's token file where no token is configured, readable by its owner only (Ray's own is not).

    Without a writable home folder the token stays in the environment of this run.
    """
    if os.environ.get(_MODE_VARIABLE, "token").lower() != "token" or _has_token():
        return
    token = secrets.token_hex(32)
    try:
        path = Path.home() / _TOKEN_FILE
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except (OSError, RuntimeError):  # no home folder, or a read-only one
        os.environ[_TOKEN_VARIABLES[0]] = token
        return
    with open(descriptor, "w") as file:
        file.write(token)


def use_mode_of(address: str) -> None:
    """Use the authentication mode of a running cluster, unless RAY_AUTH_MODE sets another one.

    Raises:
        UserError: the cluster does not answer, RAY_AUTH_MODE is not its mode, or it does not accept this user's token.
    """
    global _adopted_mode
    place, chosen = f"evaluation.ray.address={address}", os.environ.get(_MODE_VARIABLE, "").lower()
    if chosen == _adopted_mode:
        chosen = ""
    accepted = _accepted_mode(address)
    if accepted == "none":
        token = f"the token of {_token_place()} is another one" if _has_token() else "this machine has none"
        raise UserError(f"{place}: the cluster expects a token and {token}; copy its ~/{_TOKEN_FILE} to this machine")
    if chosen not in ("", accepted):
        words = "no tokens" if accepted == "disabled" else "tokens"
        raise UserError(f"{place}: the cluster uses {words}, got {_MODE_VARIABLE}={chosen}; unset it or set {accepted}")
    if accepted == "disabled" and _has_token() and not chosen:
        _log.warning("%s: the cluster uses no tokens, so that of %s is not used", place, _token_place())
    os.environ[_MODE_VARIABLE] = _adopted_mode = accepted
    from ray import _raylet

    cast(Any, _raylet).Config.initialize("")  # reads the environment again


def _accepted_mode(address: str) -> str:
    """Return the mode in which the cluster accepts this user: disabled, token or none. Raises UserError."""
    modes = "token" if _has_token() else "disabled"
    command = [sys.executable, "-P", str(_MODE_PROBE), address, modes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_START_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"evaluation.ray.address={address}: no answer from Ray within {_START_TIMEOUT_S:g} s") from None
    mode = done.stdout.strip()
    if mode not in ("disabled", "token", "none"):
        reason = capped((done.stderr.strip().splitlines() or ["no answer"])[-1], 500)
        raise UserError(f"evaluation.ray.address={address}: {reason}")
    return mode


def _token_place() -> str:
    return next((name for name in _TOKEN_VARIABLES if os.environ.get(name)), f"~/{_TOKEN_FILE}")


def _has_token() -> bool:
    return any(os.environ.get(name) for name in _TOKEN_VARIABLES) or (Path.home() / _TOKEN_FILE).is_file()


@contextmanager
def _kept_signal_handlers() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM afterwards: Ray's library replaces them."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    handlers = {kind: signal.getsignal(kind) for kind in kinds}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for kind, handler in handlers.items():
                if handler is not None:
                    signal.signal(kind, handler)


@contextmanager
def _node_ended_with_main_process() -> Iterator[None]:
    """Run a process that ends all processes of this machine's node afterwards, or after a kill -9 of this process."""
    raylets = [process for process in psutil.Process().children() if process.name() == "raylet"]
    reapers = [
        subprocess.Popen(
            [sys.executable, "-P", str(_REAPER), str(os.getpid()), str(raylet.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for raylet in raylets
    ]
    try:
        yield
    finally:
        for reaper in reapers:
            assert reaper.stdin is not None
            reaper.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                reaper.wait(_STOP_TIMEOUT_S)


@contextmanager
def _silent_node_messages() -> Iterator[None]:
    """Discard Ray's messages about ended worker processes, which the executor reports itself."""
    from ray._private import worker

    name = "print_to_stdstream"
    original: Callable[..., None] | None = getattr(worker, name, None)
    if original is None:  # another version of Ray: its messages are printed
        yield
        return
    setattr(worker, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(worker, name, original)
