"""Fixtures of evaluation: databases of the store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.postgres_server import missing_server, new_database, running_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """Start one PostgreSQL server for all tests of a process."""
    reason = missing_server()
    if reason is not None:
        pytest.skip(reason)
    with running_server() as folder:
        yield folder


@pytest.fixture
def postgres(postgres_server: Path) -> str:
    """Return the URL of an empty PostgreSQL database."""
    return new_database(postgres_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'evaluations.sqlite'}"
    url: Callable[[str], str] = request.getfixturevalue
    return url("postgres")
