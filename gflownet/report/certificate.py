"""The certificate of a run as a table, a JSON file and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from gflownet.certificate.figures import NO_DISTANCE, Certificate, EstimatedCertificate, ExactCertificate, SymmetryClass
from gflownet.certificate.result import Certified, RunCertificate
from gflownet.certificate.verdict import errors, findings, has_converged, rule_findings
from gflownet.console import print_line
from gflownet.errors import counted
from gflownet.files import json_text, write_whole
from gflownet.metrics.statistics import Interval

_MAX_CLASSES = 5  # automorphism counts in one line of the table
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
    names = ("is_complete", "num_states", "num_forward", "num_backward", "num_edges", "num_counted", "num_compared")
    violations = [{"check": v.check.value, "num": v.num, "example": v.example} for v in rules.violations]
    return {
        **{"hold": rules.holds, **{name: getattr(rules, name) for name in names}, "violations": violations},
        "verdict": [f"{finding.subject}: {finding.text}" for finding in rule_findings(rules)],
    }


def _content(certificate: RunCertificate, part: Certified) -> dict[str, Any]:
    names = ("automorphisms", "num_states", "deviation")
    classes = [{name: getattr(each, name) for name in names} for each in part.certificate.classes]
    return {
        "kind": "exact" if isinstance(part.certificate, ExactCertificate) else "estimated",
        "beta": part.beta,
        "conditioning": list(part.conditioning),
        "symmetries_hold": part.certificate.symmetries_hold,
        "verdict": [f"{finding.subject}: {finding.text}" for finding in findings(certificate, part)],
        **_figures(part),
        "classes": classes,
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
        how = "exact" if isinstance(part.certificate, ExactCertificate) else "estimates with 95 % intervals"
        title = f"certificate of p(x) ~ R(x), {how}, beta {part.beta:.4g}"
        if one_beta and len(certificate.parts) > 1:
            title += f", conditioned on {' '.join(f'{feature:.2f}' for feature in part.conditioning)}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for header in ("", "if right", "found"):
            table.add_column(header, no_wrap=True)
        for line in _lines(part.certificate):
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


class _Line(NamedTuple):
    label: str
    expected: str  # for a correct p
    measured: str


def _lines(certificate: Certificate) -> list[_Line]:
    if isinstance(certificate, ExactCertificate):
        return _exact_lines(certificate)
    return _estimated_lines(certificate)


def _exact_lines(figures: ExactCertificate) -> list[_Line]:
    apart = f"{figures.total_variation:.4f} from R, {figures.tv_uncorrected:.4f} from R / |Aut|"
    verdict = _verdict(figures.symmetries_hold, apart)
    if figures.tv_of_symmetries < NO_DISTANCE:
        verdict = "-, nothing here is symmetric"
    return [
        _Line("total variation", "0", f"{figures.total_variation:.4f}"),
        _Line("L1 distance", "0", f"{figures.l1:.4f}"),
        _Line("Jensen-Shannon divergence, nats", "0", f"{figures.jensen_shannon:.5f}"),
        _Line("Spearman of log p, log R", "1", _shown(figures.spearman)),
        _Line("log Z", "", f"{figures.log_z:.4f}"),
        _Line("log Z, learned", "log Z", _shown(figures.learned_log_z)),
        _Line("symmetries", "hold", verdict),
        _Line("log(p Z / R), mean by |Aut|", "0", _by_class(figures.classes)),
        _Line("terminal states, of all", "", f"{figures.num_terminal} of {figures.num_states}"),
    ]


def _estimated_lines(figures: EstimatedCertificate) -> list[_Line]:
    slope, verdict = figures.symmetry_slope, _verdict(figures.symmetries_hold, "-1 is uncorrected")
    if slope is None:
        verdict = "-, nothing compared is symmetric"
    test = f"{figures.num_test}, {figures.num_rollouts} ways back each, {figures.effective_rollouts:.1f} effective"
    return [
        _Line(f"flow consistency in subsets of {figures.subset_size}", "0", _between(figures.flow_consistency)),
        _Line("Spearman of log p, log R", "1", _between(figures.spearman)),
        _Line("Pearson of log p, log R", "1", _between(figures.pearson)),
        _Line("mean log p", "", _between(figures.log_prob)),
        _Line("ELBO", "log Z", _between(figures.elbo)),
        _Line("log Z", "", _between(figures.log_z)),
        _Line("EUBO, reweighted", "log Z", _between(figures.eubo)),
        _Line("log Z, learned", "log Z", _shown(figures.learned_log_z)),
        _Line("slope in log |Aut|", "0", "-" if slope is None else _between(slope)),
        _Line("symmetries", "hold", verdict),
        _Line("log(p Z / R), mean by |Aut|", "0", _by_class(figures.classes)),
        _Line("trajectories", "", str(figures.num_samples)),
        _Line("terminal states compared", "", test),
    ]


def _verdict(symmetries_hold: bool | None, why: str) -> str:
    """Return the verdict on symmetries; None: undecided."""
    verdict = {True: "hold", False: "IGNORED", None: "open"}[symmetries_hold]
    return f"{verdict} ({why})"


def _between(interval: Interval) -> str:
    return f"{_shown(interval.value)} [{_shown(interval.low)}, {_shown(interval.high)}]"


def _shown(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4f}"


def _by_class(classes: Sequence[SymmetryClass]) -> str:
    """Return the mean deviation of each automorphism count, those of most states first."""
    largest = sorted(classes, key=lambda c: -c.num_states)[:_MAX_CLASSES]
    shown = [f"{c.automorphisms:g}: {c.deviation:+.3f}" for c in sorted(largest, key=lambda c: c.automorphisms)]
    return ", ".join(shown) + (", ..." if len(classes) > len(largest) else "")
