"""The built site: no warnings, all checks, and a search by keyboard that finds a page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.browser.chromium import missing_browser, running_browser

MAX_SECONDS = 60  # until the search has loaded its index
PAGES = ("index.html", "tutorial/second.html")  # of a tiny site
FOUND = "concepts/symmetry.html"
NOT_COPIED = shutil.ignore_patterns("_build", "__pycache__")


def build(docs: Path, site: Path, *, builder: str = "html") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, str(docs), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(checkout / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_built_site_holds(site: Path, checkout: Path) -> None:
    command = [sys.executable, "-m", "sphinx_site.check", str(site)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, cwd=checkout / "docs", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gflownet", "main", "a b"])
def test_site_of_a_checkout_of_any_name(
    name: str, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny checkout, whose pages link to each other and to files outside docs/."""
    root = tmp_path / name
    shutil.copytree(checkout / "docs" / "sphinx_site", root / "docs" / "sphinx_site", ignore=NOT_COPIED)
    shutil.copytree(checkout / "docs" / "static", root / "docs" / "static")
    shutil.copy(checkout / "docs" / "conf.py", root / "docs")
    (root / "gflownet").symlink_to(checkout / "gflownet")
    (root / "docs" / "tutorial").mkdir()
    (root / "docs" / "index.md").write_text("# First\n\n[source](../gflownet/plugins.py) [page](tutorial/second.md)\n")
    (root / "docs" / "tutorial" / "second.md").write_text(
        "# Second\n\n[first](../../README.md) [source](../../gflownet/errors.py)\n"
    )
    monkeypatch.chdir(root)
    done = build(Path("docs"), Path("docs/_build/html"))
    assert done.returncode == 0, done.stderr
    links = {name: re.findall(r'href="([^"]+)"', (root / "docs/_build/html" / name).read_text()) for name in PAGES}
    assert "tutorial/second.html" in links["index.html"]
    assert any(link.endswith("plugins.py") for link in links["index.html"])
    assert "../index.html" in links["tutorial/second.html"]


@pytest.mark.slow
def test_build_refuses_a_dead_link(checkout: Path, tmp_path: Path) -> None:
    """Negative control: a copy of docs/ with one wrong link."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs", "gflownet", "tasks"):
        (tmp_path / name).symlink_to(checkout / name)
    docs = tmp_path / "docs"
    shutil.copytree(checkout / "docs", docs, ignore=NOT_COPIED)
    with (docs / "glossary.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    done = build(docs, tmp_path / "site", builder="dummy")
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr


@pytest.mark.slow
def test_search_finds_a_page(site: Path) -> None:
    reason = missing_browser()
    if reason is not None:
        pytest.skip(reason)
    with running_browser() as browser:
        browser.open(site / "index.html")
        browser.run(
            "const field = document.querySelector('input[name=q]'); field.value = arguments[0]; field.form.submit()",
            "automorphism",
        )
        deadline = time.monotonic() + MAX_SECONDS
        links: list[str] = []
        while not any(link.endswith(FOUND) for link in links) and time.monotonic() < deadline:
            links = browser.run("return [...document.querySelectorAll('ul.search li a')].map(a => a.pathname)")
        assert any(link.endswith(FOUND) for link in links), links
