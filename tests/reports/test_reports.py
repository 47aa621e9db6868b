"""The index of public reports names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

NUM_ROWS = 25
_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_every_report_names_tests_that_exist(checkout: Path) -> None:
    lines = (checkout / "tests" / "reports" / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert len(rows) == NUM_ROWS
    for row in rows:
        named = _TEST.findall(row)
        assert named, row
        for file, name in named:
            text = (checkout / "tests" / file).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), f"{file}::{name}"
