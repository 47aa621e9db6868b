"""Names of recursionpharma/gflownet's worker code, for DataLoaders that the caller starts.

wrapper = mp_object_wrapper(model, num_workers, cast_types=())
loader = DataLoader(Samples(wrapper.placeholder), num_workers=num_workers)  # model(x), model.method(x), len(model)
...
wrapper.terminate()
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gflownet.workers.packing import SharedPinnedBuffer
from gflownet.workers.process import (
    CPU,
    WorkerInfo,
    get_worker_device,
    get_worker_info,
    get_worker_rng,
    set_main_process_device,
    set_worker_rng_seed,
)
from gflownet.workers.proxy import Endpoint, Proxy
from gflownet.workers.server import Merger, ProxyServer, Served
from gflownet.workers.transport import make_transport

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
_NAME = "object"


class MPObjectPlaceholder(Proxy):
    """Proxy of the object in any process; calls of its methods run in the main process.

    It may be passed to a new process as a field of a dataset.
    """

    __slots__ = ()
    device = CPU  # of arguments and results


class MPObjectProxy:
    """Serves an object of the main process to workers that the caller starts.

    Args:
        obj: the object, such as a model or a replay buffer.
        num_workers: ignored; any number of processes and threads may call.
        cast_types: ignored; every tensor in a call moves to the device of the object's parameters.
        pickle_messages: send messages as pickles.
        sb_size: bytes of a shared message buffer; None: no buffers.

    Attributes:
        placeholder: proxy of the object, used by workers.
    """

    def __init__(
        self,
        obj: Any,
        num_workers: int,
        cast_types: tuple = (),
        pickle_messages: bool = False,
        sb_size: int | None = None,
    ) -> None:
        device = next((p.device for p in obj.parameters()), CPU) if isinstance(obj, torch.nn.Module) else CPU
        transport = make_transport(buffer_size=sb_size, pickle_messages=pickle_messages)
        served = Served(obj)
        self._server = ProxyServer({_NAME: served}, transport=transport, device=device)
        self.placeholder = MPObjectPlaceholder(_NAME, self._server.endpoint, methods=served.methods)
        self._close = weakref.finalize(self, self._server.close)  # also at exit, while threads still run

    def terminate(self) -> None:
        """Stop serving and release pipes and buffers; later calls raise ConnectionError."""
        self._close()


def mp_object_wrapper(
    obj: Any, num_workers: int, cast_types: tuple = (), pickle_messages: bool = False, sb_size: int | None = None
) -> MPObjectProxy:
    """Return an `MPObjectProxy`; workers use its `placeholder` in place of the object."""
    return MPObjectProxy(obj, num_workers, cast_types, pickle_messages, sb_size)
