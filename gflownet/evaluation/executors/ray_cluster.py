"""A connection to a running Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.execution import capped

# Seconds until an address must accept a connection, and until Ray must have connected: 2 s measured.
_CONNECT_TIMEOUT_S, _START_TIMEOUT_S = 5.0, 120.0
_ADDRESS_VARIABLE = "RAY_ADDRESS"  # read by Ray's own commands too


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
    """The connection of this process to a running Ray cluster."""

    def __init__(self, address: str) -> None:
        """Connect. A connection that this process already has is used, and left open by `close`.

        Args:
            address: HOST:PORT or auto.

        Raises:
            UserError: Ray is not installed, or the cluster does not answer or refuses this user.
        """
        self._ray = import_ray()
        self._is_ours = not self._ray.is_initialized()
        if not self._is_ours:
            return
        errors: list[Exception] = []
        # In the main thread ray.init() would turn a stop signal into an exit.
        thread = threading.Thread(target=self._connect, args=(address, errors), name="ray", daemon=True)
        with _kept_signal_handlers():
            thread.start()
            thread.join(_START_TIMEOUT_S)
        if thread.is_alive():
            raise UserError(f"evaluation.ray.address={address}: no answer from Ray within {_START_TIMEOUT_S:g} s")
        for error in errors:
            reason = capped(" ".join(f"{type(error).__name__}: {error}".split()), 500)
            raise UserError(
                f"evaluation.ray.address={address}: {reason}; a cluster with tokens expects its ~/.ray/auth_token here"
            )

    @property
    def nodes(self) -> list[dict[str, float]]:
        """The resources of each machine of the cluster at this time, by Ray's names: CPU, GPU, memory in bytes."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def close(self) -> None:
        """Disconnect; the cluster goes on. May be called twice."""
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    def _connect(self, address: str, errors: list[Exception]) -> None:
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            errors.append(error)
            with suppress(Exception):
                self._ray.shutdown()


def checked_address(address: str) -> str:
    """Return the address of an option or of RAY_ADDRESS: auto, or a HOST:PORT that accepts connections.

    Raises:
        UserError: there is none, it has another form, or nothing answers there.
    """
    place = "evaluation.ray.address" if address else _ADDRESS_VARIABLE
    address = address or os.environ.get(_ADDRESS_VARIABLE, "")
    if not address:
        raise UserError(
            "evaluation.executor=ray: expected a running cluster, got no evaluation.ray.address and no RAY_ADDRESS; "
            "start one on this machine with `ray start --head`, then set evaluation.ray.address=auto"
        )
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536 or "/" in host:
        raise UserError(f"{place}: expected HOST:PORT or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise UserError(f"{place}={address}: no Ray cluster answers there ({error})") from None
    return address


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
