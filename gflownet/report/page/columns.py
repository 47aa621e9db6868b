"""Section about the columns of a table: what was done with each."""

from __future__ import annotations

from gflownet.report.page.run_data import RunData


def column_section(run: RunData) -> list[tuple[str, str]]:
    """Return the name of each column and the words about it; empty for a run without a table."""
    columns = run.top[0].get("columns") if run.top else None
    if not columns:
        return []
    target, rows = columns["target"], [(each["name"], each.get("words", "")) for each in columns["columns"]]
    return [*rows, (target["name"], f"target: {'classes' if target['has_classes'] else 'numbers'}")]
