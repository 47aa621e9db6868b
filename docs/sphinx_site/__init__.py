"""Sphinx extension of the site: navigation, generated facts, option tables, reference and notebooks.

The Markdown of docs/ is complete on GitHub. While Sphinx reads a page, this extension appends what it derives from
the code, so that no table goes stale: nothing generated is stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from sphinx_site.accessible import complete_attributes
from sphinx_site.docstrings import escape_docstring
from sphinx_site.navigation import navigation_of
from sphinx_site.notebooks import NotebookParser
from sphinx_site.options import with_options
from sphinx_site.outside_links import with_outside_links
from sphinx_site.sections import generated_section


def complete_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the generated sections to the Markdown of a page."""
    docs = Path(app.srcdir)
    if (docs / f"{docname}.ipynb").exists():
        return
    text = with_outside_links(docname, source[0], docs)
    text += generated_section(docname)
    text = with_options(docname, text)
    source[0] = text + navigation_of(docname, app.env.found_docs)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("source-read", complete_page)
    app.connect("build-finished", complete_attributes)
    app.connect("autodoc-process-docstring", escape_docstring, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
