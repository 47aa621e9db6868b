"""The report and the comparison in headless Chromium: errors, requests, content, keyboard, widths, accessibility."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gflownet.report.page import page_of, read_run
from tests.browser.axe import missing_axe, violations
from tests.browser.chromium import Browser, missing_browser, running_browser
from tests.browser.pages import write_comparison
from tests.finished_runs import FinishedRuns
from tests.report.page.folders import front_run

TAB = 9
WIDTHS = (390, 1280)
DOCS = Path(__file__).resolve().parents[2] / "docs" / "_build" / "html"
# Pages of the site that are checked; GFLOWNET_PAGES names others, separated by colons.
DOCS_PAGES = ("index.html", "quickstart.html", "objectives.html")
_FOCUSED = """
const element = document.activeElement;
return element === document.body ? null : {
  tag: element.tagName, href: element.getAttribute("href"), role: element.getAttribute("role"),
  visible: element.getClientRects().length > 0, label: element.getAttribute("aria-label") || element.textContent};
"""

# Options of the table that take more lines than they have places to break.
_BROKEN_OPTIONS = """
return [...document.querySelectorAll("table.options th[scope=row]")].filter(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map(each => Math.round(each.top)));
  return lines.size > cell.childNodes.length;
}).map(cell => cell.textContent);
"""


# Parts that scroll sideways, once all details are open.
_SCROLLED = """
for (const details of document.querySelectorAll("details")) details.open = true;
return [...document.querySelectorAll("body *")].filter(each => getComputedStyle(each).overflowX === "auto")
  .filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => [each.closest("section, header").id, each.textContent.trim().slice(0, 60)]);
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    reason = missing_browser()
    if reason is not None:
        pytest.skip(reason)
    with running_browser() as started:
        yield started


@pytest.fixture(scope="module")
def report(finished_runs: FinishedRuns) -> Path:
    return finished_runs("toy") / "report.html"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("comparison"))


def landmarks(browser: Browser) -> list[str]:
    return browser.run("return [...document.querySelectorAll('header,nav,main,footer')].map(e => e.localName)")


def check_page(browser: Browser, page: Path) -> None:
    """Check that a page is whole and silent at all widths, light and dark."""
    for width in WIDTHS:
        for is_dark in (False, True):
            browser.open(page, width=width, is_dark=is_dark)
            loaded = browser.loaded()
            assert loaded.messages == []
            assert loaded.requests == []
            sizes = browser.run("return [window.innerWidth, document.documentElement.scrollWidth]")
            assert sizes == [width, width], "no horizontal scrolling"
    assert landmarks(browser) == ["header", "nav", "main", "footer"]
    assert browser.run("return document.documentElement.lang") == "en"
    assert browser.run("return document.querySelectorAll('h1').length") == 1
    broken = (
        "return [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    )
    assert browser.run(broken) == 0


def test_report_in_browser(browser: Browser, report: Path) -> None:
    check_page(browser, report)
    text = browser.run("return document.body.innerText")
    assert "Completed" in text
    assert "Rank 0" in text
    assert browser.run("return document.querySelectorAll('main svg').length") > 3


@pytest.mark.parametrize(
    "kind", ["toy", "two objectives", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("choices", "images"))]
)
def test_report_fits_a_phone(browser: Browser, finished_runs: FinishedRuns, tmp_path: Path, kind: str) -> None:
    """No sideways scrolling, no option broken within a word, and the main answers before any other section."""
    path = tmp_path / "report.html"
    run = front_run(tmp_path / "run") if kind == "two objectives" else finished_runs(kind)
    path.write_text(page_of(read_run(run)))
    browser.open(path, width=390, height=844)
    assert browser.run("return document.documentElement.scrollWidth") == 390
    assert browser.run(_BROKEN_OPTIONS) == []
    topics = browser.run("return [...document.querySelectorAll('.summary > div > dt')].map(e => e.textContent)")
    found = ["Compared", "Found"] if kind == "two objectives" else ["Found", "Compared"]  # nothing to compare with
    assert topics[:5] == [*found, "Sampler", "Next", "Searched"]
    assert browser.run(_SCROLLED) == [], "opened details do not scroll either"
    first = browser.run("return document.querySelector('main figure, main .drawing, main pre').closest('section').id")
    assert first == ("front" if kind == "two objectives" else "best")


def test_browser_sees_errors_requests_and_scrolling(browser: Browser, tmp_path: Path) -> None:
    """Negative control of check_page."""
    page = tmp_path / "page.html"
    page.write_text("<title>x</title><img src='x.png'><p style='width: 9999px'>x</p><script>f()</script>")
    browser.open(page)
    loaded = browser.loaded()
    assert any("f is not defined" in message for message in loaded.messages)
    assert loaded.requests == [(tmp_path / "x.png").as_uri()]
    assert browser.run("return document.documentElement.scrollWidth") > 1280


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report", "comparison"])
def test_keyboard_reaches_every_link(browser: Browser, name: str, request: pytest.FixtureRequest) -> None:
    """Tab visits the skip link first, then the sections, and every link and region of the page in order."""
    browser.open(request.getfixturevalue(name))
    links = browser.run(
        "return [...document.querySelectorAll('a[href]')].filter(a => a.getClientRects().length)"
        ".map(a => a.getAttribute('href'))"
    )
    visited = []
    for _ in range(400):
        browser.press("Tab", code=TAB)
        focused = browser.run(_FOCUSED)
        if focused is None:
            break
        assert focused["visible"], focused
        assert focused["label"].strip(), f"without a name: {focused}"
        visited.append(focused["href"])
    reached = [href for href in visited if href is not None]
    assert reached[: len(links)] == links
    assert reached[0] == "#content"


@pytest.fixture
def axe(browser: Browser) -> Browser:
    reason = missing_axe()
    if reason is not None:
        pytest.skip(reason)
    return browser


@pytest.mark.slow
def test_axe_finds_violations(axe: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<title>x</title><main><img src='data:,'><p style='color: #eee; background: #fff'>pale</p></main>")
    axe.open(page)
    rules = {line.partition(":")[0] for line in violations(axe)}
    assert {"html-has-lang", "image-alt", "color-contrast"} <= rules


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report", "comparison"])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_page_is_accessible(axe: Browser, name: str, is_dark: bool, request: pytest.FixtureRequest) -> None:
    axe.open(request.getfixturevalue(name), is_dark=is_dark)
    assert violations(axe) == []


def docs_pages() -> list[Path]:
    chosen = os.environ.get("GFLOWNET_PAGES", "")
    return [Path(name) for name in chosen.split(":")] if chosen else [DOCS / name for name in DOCS_PAGES]


@pytest.mark.slow
@pytest.mark.parametrize("page", docs_pages(), ids=lambda page: page.name)
def test_docs_page_is_accessible(axe: Browser, page: Path) -> None:
    if not page.exists():
        pytest.skip("needs the built site: make docs")
    axe.open(page)
    assert violations(axe) == []
