"""Every built-in activation and aggregation has a complete specification, and its row in docs/translation.md."""

import re
from pathlib import Path

from gflownet.operations.vocabulary import ACTIVATIONS, AGGREGATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "translation.md"


def section(title):
    """Return the text of docs/translation.md between a heading and the next one."""
    return PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].partition("\n## ")[0]


def test_docs_list_every_activation():
    names = re.sub(r"\([^)]*\)", "", section("Activations").partition(", and\n")[0])
    assert {name.strip() for name in names.split(",")} >= set(ACTIVATIONS)


def test_docs_table_has_every_aggregation():
    _, _, *rows = [line for line in section("Aggregations").splitlines() if line.startswith("|")]
    cells = [re.sub(r"\([^)]*\)", "", row.split("|")[1]) for row in rows]
    assert {name.strip() for cell in cells for name in cell.split(",")} >= set(AGGREGATIONS)
