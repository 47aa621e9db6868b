"""Code that runs in a worker process, whichever backend has started it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gflownet.utils.channel import Channel
from gflownet.utils.failures import Failure
from gflownet.utils.proxy import Endpoint
from gflownet.utils.worker_context import WorkerInfo, set_worker_info

Produce = Callable[[WorkerInfo, Endpoint], Iterator[Any]]


def become_worker(info: WorkerInfo) -> None:
    """Prepare this process: one thread, signals left to the main process, and no life without it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the main process ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a forked worker has inherited the main process's handler
    threading.Thread(target=_die_with_main, daemon=True).start()
    torch.set_num_threads(1)
    set_worker_info(info)


def frames(info: WorkerInfo, endpoint: Endpoint, channel: Channel) -> Iterator[bytes]:
    """Yield every message of a `Produce`, encoded for the channel; the last is a `Failure`.

    The first message in the channel is the pickled `Produce`, not an argument of the process: with spawn, writing more
    arguments than a pipe holds to a process that has died would never end. An empty message follows whenever the main
    process has read a frame.
    """
    try:
        for message in pickle.loads(channel.connection.recv_bytes())(info, endpoint):
            yield channel.encode(message)
            channel.connection.recv_bytes()
        raise RuntimeError("expected messages for ever, got the end of the stream")
    except Exception as error:
        yield channel.encode(Failure.of(error))


def _die_with_main() -> None:
    main = multiprocessing.parent_process()
    assert main is not None, "called in a worker"
    main.join()
    os._exit(1)
