"""Fixtures: every transport; a server with callers in the same process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gflownet.workers import Endpoint, ProxyServer, Served
from gflownet.workers.proxy import CALL
from gflownet.workers.transport import Transport
from tests.workers.messages import TRANSPORTS
from tests.workers.served_model import Model, Rows


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Transport:
    return TRANSPORTS[request.param]()


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def server(model, transport) -> Iterator[ProxyServer]:
    served = {
        "policy": Served(model, {CALL: Rows(), "forward": Rows()}),
        "plain": Served(model),
        "function": Served(sorted),
        "numbers": Served([3, 1, 2]),
    }
    with ProxyServer(served, transport=transport) as made:
        yield made


@pytest.fixture
def endpoint(server) -> Endpoint:
    return server.endpoint


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads
