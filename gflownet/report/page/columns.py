"""Section about the columns of a table: what was done with each."""

from __future__ import annotations

from gflownet.report.page.run_data import RunData
from gflownet.translation.table_columns import TableColumns


def column_section(run: RunData) -> list[tuple[str, str]]:
    """Return the name of each column and the words about it; empty for a run without a table."""
    columns = run.top[0].get("columns") if run.top else None
    return TableColumns.from_dict(columns).words() if columns else []
