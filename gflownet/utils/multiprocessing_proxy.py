"""Names of recursionpharma/gflownet's worker code, for DataLoaders that the caller starts.

wrapper = mp_object_wrapper(model, num_workers, cast_types=())
loader = DataLoader(Samples(wrapper.placeholder), num_workers=num_workers)  # model(x), model.method(x), len(model)
...
wrapper.terminate()
"""

from __future__ import annotations

from collections.abc import Sequence
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


class MPObjectPlaceholder:
    """Proxy of the object in any process; calls of its methods run in the main process.

    It may be passed to a new process as a field of a dataset.
    """

    device = CPU  # of arguments and results

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        """Keep one endpoint per worker, and a last one for the main process."""
        self._endpoints, self._own = endpoints, None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the result of calling the object."""
        return self._proxy(*arguments, **options)

    def __len__(self) -> int:
        """Return the length of the object."""
        return len(self._proxy)

    def __bool__(self) -> bool:
        """Return whether the length of the object is not 0; True for an object without a length."""
        return bool(self._proxy)

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return getattr(self._proxy, method)

    def __getstate__(self) -> dict[str, Any]:
        """Return the endpoints; another process picks its own."""
        return {"_endpoints": self._endpoints, "_own": None}

    @property
    def _proxy(self) -> Proxy:
        info = get_worker_info()
        position = len(self._endpoints) - 1 if info is None else info.id
        if self._own is None or self._own[0] != position:  # a forked worker inherits the main process's choice
            self._own = position, self._endpoints[position].proxy(_NAME)
        return self._own[1]


class MPObjectProxy:
    """Serves an object of the main process to workers that the caller starts.

    Args:
        obj: the object, such as a model or a replay buffer.
        num_workers: of the DataLoader.
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
        self._server = ProxyServer({_NAME: Served(obj)}, transport=transport, device=device)
        self._endpoints = [self._server.connect() for _ in range(num_workers + 1)]
        self.placeholder = MPObjectPlaceholder(self._endpoints)

    def terminate(self) -> None:
        """Stop serving and release pipes and buffers."""
        self._server.close()
        for endpoint in self._endpoints:
            endpoint.channel.close()

    __del__ = terminate


def mp_object_wrapper(
    obj: Any, num_workers: int, cast_types: tuple = (), pickle_messages: bool = False, sb_size: int | None = None
) -> MPObjectProxy:
    """Return an `MPObjectProxy`; workers use its `placeholder` in place of the object."""
    return MPObjectProxy(obj, num_workers, cast_types, pickle_messages, sb_size)
