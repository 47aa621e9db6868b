"""Fixtures of the tests of the server, which are collected with the packages of the extra `test` only."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if all(map(find_spec, ("fastapi", "httpx", "openai"))) else ["test_*.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small model, which tests only read."""
    from tests.rhn.server.clients import save_tiny

    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")
