"""Rendering of a run as report.html."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gflownet.report.page.curves import curves_of
from gflownet.report.page.overview import minute_text, overview_of
from gflownet.report.page.run_data import RunData

PAGE_NAME = "report.html"


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    title: str
    content: Any  # for the template sections/KEY.html.j2


def page_of(run: RunData, *, written: datetime | None = None) -> str:
    """Return the page of a run: one HTML document without links to other files.

    Args:
        run: data of the run.
        written: time of writing; None: now. The page of the same run at the same time is the same text.
    """
    written = datetime.now(UTC) if written is None else written
    return render(
        "report.html.j2",
        run=run,
        overview=overview_of(run, written=written),
        sections=sections_of(run),
        written=minute_text(written),
    )


def render(template: str, **content: Any) -> str:
    """Return the text of a template; everything in `content` is escaped."""
    return _environment().get_template(template).render(**content)


def sections_of(run: RunData) -> Sequence[Section]:
    """Return the sections of the page that have content, in order."""
    sections = [
        Section("curves", "Progress", curves_of(run)),
    ]
    return [section for section in sections if section.content]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("gflownet.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
