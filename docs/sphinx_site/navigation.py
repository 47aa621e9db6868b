"""The sidebar: sections of pages in reading order. Pages that no section names join the how-to pages."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch

# Caption -> pages or patterns; a page that does not exist yet is left out.
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": (
        "installation",
        "quickstart",
        "tutorial/README",
        "report",
        "compare-runs",
        "commands",
        "console",
        "notebooks/README",
    ),
    "Concepts": ("concepts/README", "glossary"),
    "How to": (
        "howto",
        "training-candidates",
        "search-your-own-space",
        "search-convolutional-cells",
        "tabular-benchmarks",
        "recorded-spaces",
        "conditioning",
        "run-folder",
        "reliability",
        "evaluation",
        "final-stage",
        "workers",
        "cluster",
        "metrics",
        "exactness",
        "wandb",
        "upgrading",
    ),
    "Search spaces and tasks": (
        "environments/README",
        "tasks/README",
        "operations",
        "operations-by-need",
        "graph-format",
    ),
    "Learning": (
        "objectives",
        "backward-policies/README",
        "policies",
        "exploration",
        "exploration-teacher",
        "greedy-sampling",
    ),
    "Few evaluations": (
        "search-methods",
        "search-surrogate",
        "search-proposals",
        "search-signals",
        "search-baselines",
        "compare",
        "ask-and-tell",
    ),
    "Build on it": ("extending", "coming-from/README", "coming-from*"),
    "Libraries": ("translation", "tensor-graphs", "language-models", "rhn", "serving"),
    "Reference": ("reference/options", "reference/README", "configs"),
    "Project": ("architecture", "benchmarks", "contributing", "changelog"),
}
# Page -> pages below it.
CHILDREN: dict[str, tuple[str, ...]] = {
    "tutorial/README": ("tutorial/*",),
    "concepts/README": (
        "concepts/states-and-actions",
        "concepts/proportional-sampling",
        "concepts/symmetry",
        "concepts/certificates",
        "concepts/*",
    ),
    "environments/README": ("environments/*",),
    "tasks/README": ("tasks/*",),
    "objectives": ("objectives/*",),
    "backward-policies/README": ("backward-policies/*",),
    "notebooks/README": ("notebooks/*",),
    "reference/README": ("reference/gflownet*",),
    "coming-from/README": ("coming-from/*",),
}
LEFTOVERS = "How to"


def sections_of(pages: Iterable[str]) -> dict[str, list[str]]:
    """Return caption -> pages at the top level of the sidebar, with every page in a section or below a page."""
    pages = sorted(set(pages) - {"index"})
    children = {page for parent in CHILDREN if parent in pages for page in children_of(parent, pages)}
    sections: dict[str, list[str]] = {}
    placed = set(children)
    for caption, patterns in SECTIONS.items():
        rows = [page for pattern in patterns for page in pages if fnmatch(page, pattern) and page not in placed]
        sections[caption] = list(dict.fromkeys(rows))
        placed.update(rows)
    sections[LEFTOVERS] += [page for page in pages if page not in placed]
    return {caption: rows for caption, rows in sections.items() if rows}


def children_of(parent: str, pages: Iterable[str]) -> list[str]:
    """Return the pages below a page, in the order of its patterns."""
    rows = [page for pattern in CHILDREN[parent] for page in sorted(pages) if fnmatch(page, pattern)]
    return list(dict.fromkeys(page for page in rows if page != parent))


def navigation_of(page: str, pages: Iterable[str]) -> str:
    """Return the tables of contents to append to a page, as Markdown; empty for most pages."""
    if page == "index":
        return "".join(_toctree(rows, caption=caption) for caption, rows in sections_of(pages).items())
    if page in CHILDREN:
        return _toctree(children_of(page, pages))
    return ""


def _toctree(pages: Iterable[str], *, caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "", "```{toctree}", *options, "", *(f"/{page}" for page in pages), "```", ""])
