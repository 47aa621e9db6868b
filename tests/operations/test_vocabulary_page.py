"""docs/operations.md lists every row as its class defines it."""

from __future__ import annotations

import json
from pathlib import Path

from gflownet.graphs.operation import OPERATIONS, operation, read_operation
from gflownet.operations.operation import REQUIRED, Category, Setting

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def shown_setting(name: str, setting: Setting) -> str:
    """Return a setting with its default, and the choices of a search."""
    default = {} if setting.default == () else setting.default
    text = name if default is REQUIRED else f"{name}={json.dumps(default)}"
    choices = ", ".join(map(json.dumps, setting.choices))
    return f"`{text}`".replace('"', "") + (f" {{{choices}}}".replace('"', "") if choices else "")


def table_row(name: str) -> str:
    """Return the line of an operation: name, meaning, an example of its shapes, settings."""
    row = operation(name)
    example = row.examples[0]
    applied = read_operation({"name": name, **example.settings})
    output = row.infer_shape(dict(zip(row.ports, example.inputs, strict=True)), applied.settings)
    inputs = ", ".join(map(str, example.inputs))
    settings = ", ".join(shown_setting(*item) for item in row.settings.items())
    return f"| `{name}` | {OPERATIONS.built_in[name].summary} | {inputs} → {output} | {settings} |"


def table() -> list[str]:
    """Return the lines of the table, by category."""
    lines = ["| name | meaning | for example | settings |", "|---|---|---|---|"]
    for category in Category:
        lines += [table_row(name) for name in OPERATIONS if operation(name).category is category]
    return lines


def test_docs_table_has_no_unknown_operation() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Vocabulary")[2].partition("\n## ")[0]
    names = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(names) == sorted(OPERATIONS)


def test_docs_table_has_every_operation() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in table() if line not in lines] == []


if __name__ == "__main__":  # python -m tests.operations.test_vocabulary_page: the table for the page
    print("\n".join(table()))
