"""What every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Return the root of the source tree."""
    return Path(__file__).resolve().parent.parent
