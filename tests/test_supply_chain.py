"""Pins of packages by version and hash, and of the actions of workflows by commit."""

from __future__ import annotations

import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ACTION = re.compile(r"uses:\s*(\S+)(.*)")
_PINNED = re.compile(r"[\w-]+/[\w/.-]+@[0-9a-f]{40}")
_PIN = re.compile(r"[a-z0-9-]+==[^\s=]+")
_HASHED = re.compile(r"[a-z0-9-]+==[^\s=]+( --hash=sha256:[0-9a-f]{64})+")
_EXTRAS = "# Extras, tests and docs"


def unpinned_actions(workflow: str) -> list[str]:
    """Return the actions of a workflow without a commit, or without the version of that commit as a comment."""
    uses = _ACTION.findall(workflow)
    return [name for name, rest in uses if not (_PINNED.fullmatch(name) and re.fullmatch(r" # v[\d.]+", rest))]


def unhashed_lines(text: str) -> list[str]:
    """Return the lines of hashes.txt that are no version with its hashes."""
    return [line for line in text.splitlines() if not _HASHED.fullmatch(line)]


def pins_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def closure(*names: str) -> set[str]:
    """Return the packages that some packages need without extras, these included, by their installed metadata."""
    needed: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if name in needed and extras == {""}:
            continue
        needed.add(name)
        further = map(Requirement, requires(name) or ())
        waiting += [
            each
            for each in further
            if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras | {""})
        ]
    return needed


def test_actions_are_pinned(checkout: Path) -> None:
    workflows = sorted((checkout / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) >= 2
    for path in workflows:
        text = path.read_text(encoding="utf-8")
        assert _ACTION.search(text), path
        assert unpinned_actions(text) == [], path
    assert "pip-audit" in workflows[0].read_text(encoding="utf-8")


def test_packages_have_hashes(checkout: Path) -> None:
    """Of the same versions; torch has the hash of its build for CPUs too, which the index does not have."""
    pins, hashes = ((checkout / name).read_text(encoding="utf-8") for name in ("constraints.txt", "hashes.txt"))
    assert unhashed_lines(hashes) == []
    assert all(_PIN.fullmatch(line) for line in pins_of(pins))
    assert sorted(line.partition(" ")[0] for line in hashes.splitlines()) == sorted(pins_of(pins))
    (cpu_hash,) = re.findall(r"^# torch.*(--hash=\S+)$", pins, re.MULTILINE)
    (torch,) = re.findall(r"^torch==.*$", hashes, re.MULTILINE)
    assert cpu_hash in torch


def test_first_section_contains_dependencies_of_a_run(checkout: Path) -> None:
    """`make install` installs this section only, without asking packages what they need."""
    section = (checkout / "constraints.txt").read_text(encoding="utf-8").partition(_EXTRAS)[0]
    names = {line.partition("==")[0] for line in pins_of(section)}
    needed = closure("gflownet", "hatchling")
    assert names <= needed
    assert {name for name in needed - names if not name.startswith(("nvidia-", "cuda-", "triton"))} == {"gflownet"}


def test_makefile_installs_nothing_without_hashes(checkout: Path) -> None:
    """Except the checkout itself, and what torch's builds for GPUs need."""
    lines = (checkout / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    installs = [line.strip() for line in lines if "pip install" in line or "$(PIP) install" in line]
    assert [line for line in installs if "--require-hashes" not in line and "$(VENV)/hashes" not in line] == [
        "$(PIP) install -c constraints.txt torch",
        "$(PIP) install --no-deps --no-build-isolation -e .",
    ]
