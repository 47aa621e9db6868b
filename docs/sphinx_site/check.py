"""Check the built site: every page reachable, every link and option has its target, search works, nothing is loaded.

python -m sphinx_site.check FOLDER, from docs/. Exit status 1 and one line for each problem.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath
from urllib.parse import unquote

from sphinx.search.en import SearchEnglish

# Words that the search has to find, each on the page that explains it.
SEARCHED = {"automorphism": "concepts/symmetry", "vargrad": "objectives/vargrad", "checkpoint": "run-folder"}
# Pages without content, which no text links to.
GENERATED = {"genindex.html", "search.html", "py-modindex.html"}
_LOADING = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


@dataclass
class Page(HTMLParser):
    """Ids and links of a page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)
            elif (tag, name) in _LOADING and value:
                self.loaded.append(value)


def read_pages(site: Path) -> dict[str, Page]:
    """Return path within the site -> page."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path.relative_to(site).as_posix()] = page
    return pages


def problems_of(site: Path, *, anchors: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the problems of a site.

    Args:
        site: the folder of the built pages.
        anchors: (page, id) that have to exist and to be linked from the page of all options.
    """
    pages = read_pages(site)
    yield from dead_links(site, pages)
    yield from unreachable(pages)
    yield from missing_options(pages, anchors)
    yield from unsearchable(site)
    for path, page in pages.items():
        yield from (f"{path}: loads {address}" for address in page.loaded if re.match(r"(https?:)?//", address))


def dead_links(site: Path, pages: dict[str, Page]) -> Iterator[str]:
    """Yield the links to pages, files or headings of the site that do not exist."""
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            target, anchor = target_of(path, link)
            if target is None:
                continue
            if target not in pages:
                if not (site / target).exists():
                    yield f"{path}: dead link {link}"
            elif anchor and anchor not in pages[target].ids:
                yield f"{path}: no anchor for {link}"


def target_of(path: str, link: str) -> tuple[str | None, str]:
    """Return path and anchor of a link on a page; the path is None for an address outside the site."""
    address, _, anchor = link.partition("#")
    if re.match(r"[a-z]+:|//", address):
        return None, ""
    address = address.partition("?")[0]
    return (normpath(join(dirname(path), unquote(address))) if address else path), unquote(anchor)


def unreachable(pages: dict[str, Page]) -> Iterator[str]:
    """Yield the pages to which no path of links leads from the first page."""
    reached, waiting = {"index.html"}, ["index.html"]
    while waiting:
        path = waiting.pop()
        for link in pages[path].links:
            target, _ = target_of(path, link)
            if target in pages and target not in reached:
                reached.add(target)
                waiting.append(target)
    yield from (f"{path}: no page links to it" for path in pages if path not in reached | GENERATED)


def missing_options(pages: dict[str, Page], anchors: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the options without an anchor on their page, or without a link from the page of all options."""
    table = "reference/options.html"
    linked = {target_of(table, link) for link in pages[table].links}
    for page, anchor in anchors:
        path = f"{page}.html"
        if anchor not in pages.get(path, Page()).ids:
            yield f"{path}: no anchor {anchor}"
        if (path, anchor) not in linked:
            yield f"{table}: no link to {path}#{anchor}"


def unsearchable(site: Path) -> Iterator[str]:
    """Yield the words of SEARCHED that the search does not find on their pages."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    stem = SearchEnglish({}).stem
    for word, page in SEARCHED.items():
        hits: set[int] = set()
        for table in (index["terms"], index["titleterms"]):
            places = table.get(stem(word), [])  # a single page is a number
            hits.update([places] if isinstance(places, int) else places)
        if page not in {index["docnames"][hit] for hit in hits}:
            yield f"search: {word} does not lead to {page}"


def main(arguments: list[str]) -> int:
    from sphinx_site.options import documented_options

    anchors = [(item.page, item.anchor) for item in documented_options()]
    problems = list(problems_of(Path(arguments[0]), anchors=anchors))
    print("\n".join(problems) or f"{len(anchors)} options linked; links, search and pages hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
