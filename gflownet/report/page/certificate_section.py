"""The certificate of a run in plain words, from certificate.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gflownet.certificate.words import sentence, table
from gflownet.pictures.chart import Table
from gflownet.report.page.overview import has_search_method
from gflownet.report.page.run_data import RunData, mapping_of


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


def _verdict(part: Mapping[str, Any], errors: Sequence[str], rules: Sequence[str]) -> Verdict:
    words, tone = sentence(part, errors)
    if part.get("kind") == "exact":
        num = part.get("num_terminal")
        if isinstance(num, int):
            words += f" Exact: all {num:,} terminal states are compared."
    findings = [*rules, *(str(line) for line in part.get("verdict") or ())]
    return Verdict(words, tone, findings, Table(("figure", "if right", "found"), [list(row) for row in table(part)]))
