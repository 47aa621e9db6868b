"""The transports: what is tested with one is tested with all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gflownet.utils.transport import Transport
from tests.utils.messages import TRANSPORTS


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    made = TRANSPORTS[request.param]()
    yield made
    made.close()
