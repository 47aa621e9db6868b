"""The certificate of a run in plain words, from certificate.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.pictures.chart import Table, number_text
from gflownet.report.page.overview import has_search_method
from gflownet.report.page.run_data import RunData, figure_of, mapping_of

# Largest distance of a network that has converged (gflownet.certification.verdict.CONVERGED, which imports torch).
CONVERGED = 0.05
# Words of the verdict on an objective without the target R / Z.
_OTHER_TARGET = "aims at another distribution"
_FIGURES = {
    "total_variation": "total variation of p and R / Z (0 is exact)",
    "flow_consistency": "flow consistency: total variation within random subsets (0 is exact)",
    "jensen_shannon": "Jensen-Shannon divergence, nats (0 is exact)",
    "spearman": "rank correlation of log p and log R (1 is exact)",
    "pearson": "correlation of log p and log R (1 is exact)",
    "log_z": "log Z, true or estimated",
    "learned_log_z": "log Z, learned",
    "tv_to_optimum": "total variation of p and the exact optimum of the objective",
    "elbo": "lower bound of log Z",
    "eubo": "upper bound of log Z",
    "num_terminal": "terminal states",
    "num_test": "terminal states compared",
}


@dataclass(frozen=True)
class Verdict:
    """The verdict under one conditioning."""

    words: str
    tone: str  # good, bad or open
    findings: Sequence[str]
    figures: Table


@dataclass(frozen=True)
class CertificateSection:
    """Verdicts, or how to get a certificate."""

    verdicts: Sequence[Verdict]
    errors: Sequence[str]
    note: str
    command: str  # that writes a certificate; empty with one


def certificate_section(run: RunData, *, command: str) -> CertificateSection:
    """Return the certificate in words; without one, the command that certifies the run."""
    content = run.certificate
    if content is None:
        words = "This run has no certificate: whether it samples in proportion to the reward is not measured."
        if has_search_method(run):
            words += " A certificate compares its sampler with measured and predicted scores."
        return CertificateSection((), (), words, command)
    parts = [part for part in content.get("certificates") or () if isinstance(part, Mapping)]
    errors = [str(error) for error in content.get("errors") or ()]
    rules = [str(line) for line in mapping_of(content.get("rules")).get("verdict") or ()]
    verdicts = [_verdict(part, errors, rules if number == 0 else []) for number, part in enumerate(parts)]
    return CertificateSection(verdicts, errors, "" if verdicts else "certificate.json has no verdict.", "")


def words_of(part: Mapping[str, Any], errors: Sequence[str]) -> tuple[str, str]:
    """Return the verdict of a certificate in one sentence, and its tone."""
    name, distance, low, high = _distance(part)
    measured = f"{name} {_short(distance)}"
    if low is not None and high is not None:
        measured += f" (95 % interval {_short(low)} to {_short(high)})"
    if errors:
        return f"The certificate found errors ({', '.join(errors)}); {measured}.", "bad"
    if any(_OTHER_TARGET in str(line) for line in part.get("verdict") or ()):
        return (
            f"The objective aims at another distribution than the reward: {measured}, which it does not reduce.",
            "open",
        )
    if not math.isfinite(distance):
        return "Not judged: too few states to measure the distance from the target.", "open"
    if part.get("has_converged"):
        if high is not None:
            return f"This run samples in proportion to the reward: {measured}.", "good"
        return f"This run samples within TV {_short(distance)} of the target, in proportion to the reward.", "good"
    optimum = part.get("tv_to_optimum")
    if isinstance(optimum, int | float) and optimum <= CONVERGED:
        return (f"The network has reached the optimum of its objective, which is not the target: {measured}.", "open")
    return f"This run has not converged: {measured}; {_short(CONVERGED)} counts as converged. Train longer.", "bad"


def _distance(part: Mapping[str, Any]) -> tuple[str, float, float | None, float | None]:
    """Return name, value and interval of the distance from the target."""
    if part.get("kind") == "exact":
        return "total variation", figure_of(part.get("total_variation")), None, None
    low, high = (part.get(f"flow_consistency_{end}") for end in ("low", "high"))
    value = figure_of(part.get("flow_consistency"))
    if low is None or high is None:
        return "flow consistency", value, None, None
    return "flow consistency", value, figure_of(low), figure_of(high)


def _verdict(part: Mapping[str, Any], errors: Sequence[str], rules: Sequence[str]) -> Verdict:
    words, tone = words_of(part, errors)
    if part.get("kind") == "exact":
        num = part.get("num_terminal")
        if isinstance(num, int):
            words += f" Exact: all {num:,} terminal states are compared."
    findings = [*rules, *(str(line) for line in part.get("verdict") or ())]
    return Verdict(words, tone, findings, Table(("figure", "value"), list(_rows(part))))


def _rows(part: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, words in _FIGURES.items():
        if not isinstance(part.get(name), int | float):
            continue
        low, high = part.get(f"{name}_low"), part.get(f"{name}_high")
        text = number_text(float(part[name]))
        if isinstance(low, int | float) and isinstance(high, int | float):
            text += f" ({number_text(float(low))} to {number_text(float(high))})"
        yield [words, text]


def _short(value: float) -> str:
    """Return a distance with two or three digits: .03, .72."""
    if not math.isfinite(value):
        return number_text(None)
    return f"{value:.2f}".replace("0.", ".", 1) if value >= 0.01 else number_text(value, 1)
