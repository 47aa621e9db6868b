"""What sampling in worker processes is written with, whether it happens in one or in the main process."""

from __future__ import annotations

import torch

from gflownet.utils.proxy import Endpoint, Proxy
from gflownet.utils.proxy_server import Merger, ProxyServer, Served
from gflownet.utils.shared_pinned_buffer import SharedPinnedBuffer
from gflownet.utils.transport import CPU, make_transport

__all__ = [
    "Endpoint",
    "Merger",
    "Proxy",
    "ProxyServer",
    "Served",
    "SharedPinnedBuffer",
    "get_worker_device",
    "make_transport",
    "set_main_device",
]

_device = CPU


def get_worker_device() -> torch.device:
    """Return where sampling builds its tensors: on the run's device in the main process, on the CPU in a worker."""
    return _device


def set_main_device(device: torch.device) -> None:
    """Say which device the run computes on."""
    global _device
    _device = device
