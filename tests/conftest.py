"""What every test may use."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# What a shell starts in the background ignores SIGINT, and so does all that it starts; some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the root of the source tree."""
    return Path(__file__).resolve().parent.parent
