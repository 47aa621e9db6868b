"""Files of a release: one version, workflows, issue forms, citation."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import gflownet

WORKFLOWS = ("ci", "release")
# Path of a file or pattern of files, and the name of its schema.
SCHEMAS = {
    "CITATION.cff": "citation-file-format",
    ".github/workflows/*.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
}


def load(path: Path) -> Any:
    """Return the content of a YAML file, with dates and the key `on` as texts."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def validate(content: Any, schema: str) -> None:
    folder = files("check_jsonschema.builtin_schemas.vendor")
    jsonschema.validate(content, json.loads((folder / f"{schema}.json").read_text(encoding="utf-8")))


def typed(path: Path) -> Any:
    """Return the content of a YAML file; YAML 1.1 reads the key `on` as true."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in content.items()}


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_file_is_valid(pattern: str, checkout: Path) -> None:
    paths = sorted(checkout.glob(pattern))
    assert paths
    for path in paths:
        validate(typed(path), SCHEMAS[pattern])


def test_version_is_in_one_place(checkout: Path) -> None:
    version = gflownet.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert load(checkout / "CITATION.cff")["version"] == version
    project = (checkout / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert 'path = "gflownet/__init__.py"' in project
    configuration = checkout / "docs" / "conf.py"
    if configuration.exists():
        assert version not in configuration.read_text(), "the docs read gflownet.__version__"


def test_changelog_headings(checkout: Path) -> None:
    """Unreleased first, then versions with dates, newest first; kinds of Keep a Changelog."""
    text = (checkout / "CHANGELOG.md").read_text()
    first, *releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert first == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", release) for release in releases)
    numbers = [tuple(map(int, release.split()[0].split("."))) for release in releases]
    assert numbers == sorted(numbers, reverse=True)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Withdrawn"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds


def test_workflows_hold_no_secrets(checkout: Path) -> None:
    for name in WORKFLOWS:
        text = (checkout / ".github" / "workflows" / f"{name}.yml").read_text()
        assert not re.search(r"secrets\.|password|https?://|index-url", text)
        workflow = load(checkout / ".github" / "workflows" / f"{name}.yml")
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            assert int(job["timeout-minutes"]) <= 360
    publish = load(checkout / ".github" / "workflows" / "release.yml")["jobs"]["publish"]
    assert (publish["permissions"], publish["needs"]) == ({"id-token": "write"}, "build")
    assert not [step for step in publish["steps"] if "run" in step], "no code of the repository with that permission"
