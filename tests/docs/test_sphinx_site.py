"""The site: a page for every built-in class, options with their pages, navigation, links and notebooks."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from sphinx_site import check, navigation, options, sections

from gflownet import train
from gflownet.config import OPTIONS
from gflownet.envs.config import ENVIRONMENTS
from gflownet.evaluation.tasks import TASKS
from gflownet.objectives.config import BACKWARD_NAMES, OBJECTIVES

FOLDERS = {
    "objectives": tuple(OBJECTIVES),
    "backward-policies": BACKWARD_NAMES,
    "tasks": tuple(TASKS),
    "environments": tuple(ENVIRONMENTS),
}
PAGES = [f"{folder}/{name}" for folder, names in FOLDERS.items() for name in names]
FAST_PAGES = ("environments/computation_graph", "environments/choices", "tasks/language")


def pages_of(docs: Path) -> set[str]:
    files = [*docs.rglob("*.md"), *docs.rglob("*.ipynb")]
    return {file.relative_to(docs).with_suffix("").as_posix() for file in files if "_build" not in file.parts}


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page not in FAST_PAGES)) for page in PAGES]
)
def test_page_of_built_in_class(page: str, checkout: Path) -> None:
    text = (checkout / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {page.partition('/')[2]}")
    facts = sections.generated_section(page)
    assert "## Facts" in facts
    assert "{" not in facts.replace("`{", "")
    for command in re.findall(r"^python -m gflownet\.train (.*)$", text, re.MULTILINE):
        assert train.main([*shlex.split(command), "--print-config"]) == 0


def test_folders_hold_no_other_pages(checkout: Path) -> None:
    for folder, names in FOLDERS.items():
        assert {path.stem for path in (checkout / "docs" / folder).glob("*.md")} == {*names, "README"} - (
            {"README"} if folder == "objectives" else set()
        )


def test_index_pages_link_every_class(checkout: Path) -> None:
    docs = checkout / "docs"
    for folder, names in FOLDERS.items():
        index = docs / ("objectives.md" if folder == "objectives" else f"{folder}/README.md")
        text = index.read_text(encoding="utf-8")
        prefix = "objectives/" if folder == "objectives" else ""
        assert [name for name in names if f"]({prefix}{name}.md)" not in text] == []


def test_every_option_has_an_existing_page(checkout: Path) -> None:
    rows = options.documented_options()
    assert {row.option.key for row in rows if not row.owner} == set(OPTIONS)
    assert len({(row.page, row.anchor) for row in rows}) == len(rows)
    existing = pages_of(checkout / "docs")
    assert {row.page for row in rows} - existing == set()


def test_navigation_holds_every_page_once(checkout: Path) -> None:
    pages = pages_of(checkout / "docs")
    sections_ = navigation.sections_of(pages)
    placed = [page for rows in sections_.values() for page in rows]
    placed += [
        child for parent in navigation.CHILDREN if parent in pages for child in navigation.children_of(parent, pages)
    ]
    assert sorted(placed) == sorted(pages - {"index"})


def test_pages_reachable_from_first_page(checkout: Path) -> None:
    """By links of the Markdown files, as on GitHub; the site has the sidebar in addition."""
    docs = checkout / "docs"
    reached, waiting = {"index.md"}, ["index.md"]
    while waiting:
        page = docs / waiting.pop()
        if page.suffix != ".md":
            continue
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            target = os.path.relpath(page.parent / link, docs)
            if (docs / target).is_file() and target not in reached:
                reached.add(target)
                waiting.append(target)
    files = {f"{page}.md" if (docs / f"{page}.md").exists() else f"{page}.ipynb" for page in pages_of(docs)}
    assert files - reached == set()


def test_notebooks_have_small_outputs(checkout: Path) -> None:
    import nbformat

    paths = sorted((checkout / "docs" / "notebooks").glob("*.ipynb"))
    assert len(paths) == 2
    for path in paths:
        assert path.stat().st_size < 50_000
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert len(outputs) >= 4
        assert not any(output["output_type"] == "error" for output in outputs)
        assert "/tmp" not in json.dumps(outputs)


def small_site(folder: Path, pages: dict[str, str]) -> Path:
    for name, body in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"<html><body>{body}</body></html>")
    stem = check.SearchEnglish({}).stem
    terms = {stem(word): place for place, word in enumerate(check.SEARCHED)}
    index = {"docnames": list(check.SEARCHED.values()), "terms": terms, "titleterms": {}}
    (folder / "searchindex.js").write_text(f"Search.setIndex({json.dumps(index)})")
    return folder


SITE = {
    "index.html": '<a href="a.html#x">a</a><a href="reference/options.html">o</a><a href="https://example.org">e</a>',
    "a.html": '<p id="x"></p><p id="option-seed"></p><img src="b.svg">',
    "reference/options.html": '<a href="../a.html#option-seed">seed</a>',
    "search.html": "",
}
ANCHORS = [("a", "option-seed")]


def test_check_of_a_sound_site(tmp_path: Path) -> None:
    assert list(check.problems_of(small_site(tmp_path, SITE), anchors=ANCHORS)) == []


@pytest.mark.parametrize(
    ("page", "body", "problem"),
    [
        ("b.html", "", "b.html: no page links to it"),
        ("a.html", '<p id="x"></p><p id="option-seed"></p><a href="gone.html">g</a>', "a.html: dead link gone.html"),
        ("a.html", '<p id="option-seed"></p>', "index.html: no anchor for a.html#x"),
        ("a.html", '<p id="x"></p>', "a.html: no anchor option-seed"),
        ("reference/options.html", "", "reference/options.html: no link to a.html#option-seed"),
        ("search.html", '<script src="//cdn.org/x.js"></script>', "search.html: loads //cdn.org/x.js"),
    ],
)
def test_check_finds_planted_problems(page: str, body: str, problem: str, tmp_path: Path) -> None:
    site = small_site(tmp_path, {**SITE, page: body})
    assert problem in list(check.problems_of(site, anchors=ANCHORS))
