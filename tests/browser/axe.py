"""axe-core, which checks a page for accessibility (https://github.com/dequelabs/axe-core)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.browser.chromium import Browser

VERSION = "4.14.1"  # .ci/run installs it
_SCRIPT = Path(__file__).resolve().parents[2] / ".venv" / "npm" / "node_modules" / "axe-core" / "axe.min.js"


def missing_axe() -> str | None:
    """Return why pages cannot be checked, None if they can."""
    if _SCRIPT.exists():
        return None
    return f"needs axe-core: npm install --prefix .venv/npm --no-save axe-core@{VERSION}"


def violations(browser: Browser) -> list[str]:
    """Return the violations of the open page: rule, reason and element, a line each."""
    browser.run(_SCRIPT.read_text(encoding="utf-8"))
    results: dict[str, Any] = browser.run("return axe.run(document, {resultTypes: ['violations']})")
    assert results["passes"], "axe has checked nothing"
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:200]}"
        for rule in results["violations"]
        for node in rule["nodes"]
    ]
