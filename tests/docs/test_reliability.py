"""The table of faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NUM_ROWS = 88
WITHDRAWN = 53
_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


@pytest.fixture
def rows(checkout: Path) -> list[list[str]]:
    """Return the cells of every row of the table."""
    text = (checkout / "docs" / "reliability.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_table_has_every_row(rows: list[list[str]]) -> None:
    assert [int(row[0]) for row in rows] == [number for number in range(1, NUM_ROWS + 1) if number != WITHDRAWN]
    for number, fault, promise, tests in rows:
        assert fault, number
        assert promise, number
        assert _TEST.search(tests), number
        assert "no test" not in tests, number


def test_named_tests_exist(rows: list[list[str]], checkout: Path) -> None:
    named = [match for row in rows for match in _TEST.findall(row[3])]
    assert len(named) > NUM_ROWS
    for file, name in named:
        path = checkout / "tests" / file
        assert path.is_file(), file
        assert re.search(rf"^(async )?def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE), f"{file}::{name}"
