"""The certificate of a run as metrics, a JSON file and tables on the console."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gflownet.certificate import words
from gflownet.certificate.result import Certified, RunCertificate
from gflownet.certificate.words import errors, findings, has_converged, rule_findings
from gflownet.errors import counted
from gflownet.files import json_text, write_whole
from gflownet.terminal.console import print_line

_MAX_ERRORS = 3  # failed rules with their own line; the others are consequences of these in most cases


def certificate_metrics(certificate: RunCertificate) -> dict[str, float]:
    """Return every figure as a metric `certificate/NAME`, or `certificate/NUMBER/NAME` for several conditionings."""
    rules = certificate.rules
    metrics: dict[str, float] = {
        "certificate/rules_hold": float(rules.holds),
        "certificate/num_transitions": rules.num_transitions,
        "certificate/num_errors": len(errors(certificate)),
    }
    for index, part in enumerate(certificate.parts):
        prefix = "certificate/" if len(certificate.parts) == 1 else f"certificate/{index}/"
        metrics |= {f"{prefix}{name}": value for name, value in _figures(part).items()}
    return metrics


def write_certificate(path: Path, certificate: RunCertificate, *, run: Mapping[str, Any]) -> None:
    """Write the certificate as JSON, unknown figures as null, with further fields about the run."""
    content = {
        **run,
        "errors": errors(certificate),
        **{
            name: getattr(certificate, name) for name in ("num_rewards", "num_evaluated", "num_failed", "num_predicted")
        },
        "rules": _rules(certificate),
        "certificates": [_content(certificate, part) for part in certificate.parts],
    }
    write_whole(path, json_text(content, indent=1))


def _rules(certificate: RunCertificate) -> dict[str, Any]:
    rules = certificate.rules
    violations = [asdict(each) | {"check": each.check.value} for each in rules.violations]
    return {
        **{"hold": rules.holds, **asdict(rules), "violations": violations},
        "verdict": [f"{finding.subject}: {finding.text}" for finding in rule_findings(rules)],
    }


def _content(certificate: RunCertificate, part: Certified) -> dict[str, Any]:
    return {
        "kind": part.certificate.kind,
        "beta": part.beta,
        "conditioning": list(part.conditioning),
        "symmetries_hold": part.certificate.symmetries_hold,
        "verdict": [f"{finding.subject}: {finding.text}" for finding in findings(certificate, part)],
        **_figures(part),
        "classes": [asdict(each) for each in part.certificate.classes],
    }


def _figures(part: Certified) -> dict[str, float]:
    """Return all figures under one conditioning, NaN for unknown values."""
    optimum = {} if part.optimum is None else part.optimum.figures()
    figures = {**optimum, "tv_to_optimum": part.tv_to_optimum}
    return {
        **part.certificate.figures(),
        **{name: math.nan if value is None else value for name, value in figures.items()},
        "has_converged": float(has_converged(part)),
    }


def print_certificate(certificate: RunCertificate, *, path: Path, console: Console) -> None:
    """Print a table for each conditioning, with the expected figures for a correct p, the verdict, and the path."""
    one_beta = len({part.beta for part in certificate.parts}) == 1
    rules = rule_findings(certificate.rules)[:_MAX_ERRORS]
    for index, part in enumerate(certificate.parts):
        how = "exact" if part.certificate.kind == "exact" else "estimates with 95 % intervals"
        title = f"certificate of p(x) ~ R(x), {how}, beta {part.beta:.4g}"
        if one_beta and len(certificate.parts) > 1:
            title += f", conditioned on {' '.join(f'{feature:.2f}' for feature in part.conditioning)}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for header in ("", "if right", "found"):
            table.add_column(header, no_wrap=True)
        for line in words.table(_content(certificate, part)):
            table.add_row(*line)
        console.print(table)
        print_line(console, "verdict")
        for finding in [*(rules if index == 0 else []), *findings(certificate, part)]:
            print_line(console, f"  {finding.subject + ':':<15}{finding.text}")
    paid = f"rewards: {counted(certificate.num_rewards, 'terminal state')}, "
    num = certificate.num_predicted
    paid += f"{num} predicted" if num else f"{certificate.num_evaluated} evaluated for this alone"
    failed = f", {certificate.num_failed} failed" if certificate.num_failed else ""
    print_line(console, f"{paid}{failed}; all figures: {path}")
