"""Links from docs/ to files of the repository outside it: to the page of the site that shows the same."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

# Page -> file of the repository whose text it shows on the site.
INCLUDED = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
# File of the repository -> page of the site.
PAGES = {
    "README.md": "index.md",
    "README.md#install-and-run": "installation.md",
    "configs": "configs.md",
    **{file: f"{page}.md" for page, file in INCLUDED.items()},
}
# Stands for docs/: relpath of relative paths would depend on the name of the working folder.
_DOCS = "/checkout/docs"
# The project's log, which is not on the site: its links are text there.
_LOG = re.compile(r"\[([^\]]*)\]\((?:\.\./)*dev/[^)\s]*\)")
_LINK = re.compile(r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=\))")


def with_outside_links(docname: str, text: str, docs: Path) -> str:
    """Return the text of a page, or of the file that it includes, with its links out of docs/ replaced."""
    if docname in INCLUDED:
        file = docs.parent / INCLUDED[docname]
        text = _LOG.sub(r"\1", file.read_text(encoding="utf-8"))
        return _replaced(file.name, text, folder=f"{dirname(docname)}/", docname=docname)
    return _replaced(f"docs/{docname}.md", _LOG.sub(r"\1", text), folder=dirname(docname), docname=docname)


def _replaced(path: str, text: str, *, folder: str, docname: str) -> str:
    """Replace the links of a file of the repository, to be read as a page."""

    def target(link: re.Match[str]) -> str:
        destination, anchor = link[1], link[2] or ""
        if not destination or ":" in destination:
            return link[0]
        file = normpath(join(dirname(path), destination))
        if file.startswith("docs/"):
            page = file.removeprefix("docs/")
        else:
            page, anchor = page_of(file, anchor), ""
        return relpath(join(_DOCS, page), join(_DOCS, dirname(docname))) + anchor

    return _LINK.sub(target, text)


def page_of(file: str, anchor: str = "") -> str:
    """Return the page of the site, relative to docs/, for a file of the repository outside docs/."""
    if file.startswith("configs/"):
        return PAGES["configs"]
    return PAGES.get(file + anchor) or PAGES.get(file, f"../{file}")
