"""The built site: no warnings, all checks, and a search by keyboard that finds a page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
