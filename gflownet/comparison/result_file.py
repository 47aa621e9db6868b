"""comparison.json and the picture of a comparison."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gflownet.comparison.accounting import Accounting
from gflownet.comparison.drawing import draw
from gflownet.comparison.plan import JSON_NAME, SVG_NAME, header
from gflownet.comparison.result import Comparison
from gflownet.files import json_text, save_whole

_FORMAT = 1
_PACKAGES = ("gflownet", "numpy", "torch")


def write_comparison(
    comparison: Comparison, folder: Path, *, command: Sequence[str], copy: Path | None = None
) -> list[Path]:
    """Write comparison.json and its picture; return their paths. Raises UserError if one cannot be written."""
    text = to_json(comparison, command=command)
    contents = {folder / JSON_NAME: text, folder / SVG_NAME: draw(comparison)}
    if copy is not None:
        contents[copy] = text
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_whole(path, content)
    return [*contents]


def to_json(comparison: Comparison, *, command: Sequence[str]) -> str:
    """Return all figures, and the curves of every seed, as JSON."""
    content = {
        **header(),
        "format": _FORMAT,
        "command": list(command),
        "versions": versions(),
        "title": comparison.title,
        "num_evaluations": comparison.num_evaluations,
        "seeds": list(comparison.seeds),
        "checkpoints": list(comparison.checkpoints),
        "references": asdict(comparison.references),
        "methods": {label: _method(comparison, label) for label in comparison.labels},
        "differences": [asdict(each) | {"verdict": each.verdict} for each in comparison.differences()],
    }
    return json_text(content)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages behind the figures."""
    result = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            result[package] = version(package)
        except PackageNotFoundError:
            continue
    return result


def _method(comparison: Comparison, label: str) -> dict[str, Any]:
    records = comparison.records[label]
    figures = {
        accounting.value: {
            quantity.value: {
                str(at): asdict(comparison.summary(label, quantity, at, accounting=accounting))
                for at in comparison.checkpoints
            }
            for quantity in comparison.quantities
        }
        for accounting in Accounting
    }
    optimum = {
        accounting.value: None if (each := comparison.optimum(label, accounting=accounting)) is None else asdict(each)
        for accounting in Accounting
    }
    return {
        "config": records[0].config,
        "figures": figures,
        "optimum": optimum,
        "own_seconds_per_evaluation": comparison.own_seconds(label),
        "proposals_per_evaluation": comparison.proposals_per_evaluation(label),
        "runs": [
            {"seed": seed, "scores": record.scores, "tests": record.tests, "proposals": record.proposals}
            | {"num_proposals": record.num_proposals, "end": record.end, "final_scores": record.final_scores}
            | {"evaluation_seconds": record.evaluation_seconds, "metrics": record.metrics}
            for seed, record in zip(comparison.seeds, records, strict=True)
        ],
    }
