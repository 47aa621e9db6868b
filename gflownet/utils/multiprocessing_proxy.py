"""Public names for code that samples in worker processes, and the names that code for older packages uses."""

from __future__ import annotations

from gflownet.utils.object_proxy import MPObjectPlaceholder, MPObjectProxy, mp_object_wrapper
from gflownet.utils.proxy import Endpoint, Proxy
from gflownet.utils.proxy_server import Merger, ProxyServer, Served
from gflownet.utils.shared_pinned_buffer import SharedPinnedBuffer
from gflownet.utils.transport import make_transport
from gflownet.utils.worker_context import (
    WorkerInfo,
    get_worker_device,
    get_worker_info,
    get_worker_rng,
    set_main_process_device,
    set_worker_rng_seed,
)

__all__ = [
    "Endpoint",
    "MPObjectPlaceholder",
    "MPObjectProxy",
    "Merger",
    "Proxy",
    "ProxyServer",
    "Served",
    "SharedPinnedBuffer",
    "WorkerInfo",
    "get_worker_device",
    "get_worker_info",
    "get_worker_rng",
    "make_transport",
    "mp_object_wrapper",
    "set_main_process_device",
    "set_worker_rng_seed",
]
