"""Rendering of a run as report.html."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from gflownet.report.page.run_data import RunData

PAGE_NAME = "report.html"


def page_of(run: RunData) -> str:
    """Return the page of a run: one HTML document without links to other files."""
    return _environment().get_template("report.html.j2").render(run=run)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("gflownet.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
