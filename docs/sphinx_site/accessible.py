"""Attributes for screen readers and keyboards that furo leaves out; tests/browser checks pages with axe-core."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

# Captions of the navigation lack their level, both side bars a name, and code that scrolls a place in the tab order.
_ATTRIBUTES = (
    ('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'),
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="Pages">'),
    ('<aside class="toc-drawer">', '<aside class="toc-drawer" aria-label="On this page">'),
    ('<div class="highlight"><pre>', '<div class="highlight"><pre tabindex="0">'),
)


def complete_attributes(app: Sphinx, error: Exception | None) -> None:
    """Add the attributes to all pages once they are written."""
    if error is not None or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        completed = page
        for old, new in _ATTRIBUTES:
            completed = completed.replace(old, new)
        if completed != page:
            path.write_text(completed, encoding="utf-8")
