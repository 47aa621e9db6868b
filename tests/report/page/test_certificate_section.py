"""Sentences about a certificate, from the entries of certificate.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gflownet.certificate.words import CONVERGED, sentence
from gflownet.report.page import read_run
from gflownet.report.page.sections import certificate_section
from tests.report.page.folders import write_run

EXACT = {"kind": "exact", "total_variation": 0.03, "has_converged": True, "num_terminal": 1200}
ESTIMATED = {
    **{"kind": "estimated", "flow_consistency": 0.02, "flow_consistency_low": 0.012, "flow_consistency_high": 0.03},
    "has_converged": True,
}
FAR = {"total_variation": 0.72, "has_converged": False}


@pytest.mark.parametrize(
    ("part", "errors", "words", "tone"),
    [
        (EXACT, (), "This run samples within TV .03 of the target, in proportion to the reward.", "good"),
        (
            ESTIMATED,
            (),
            "This run samples in proportion to the reward: flow consistency .02 (95 % interval .01 to .03).",
            "good",
        ),
        (
            {**EXACT, **FAR},
            (),
            "This run has not converged: total variation .72; .05 counts as converged. Train longer.",
            "bad",
        ),
        (
            {**EXACT, **FAR, "tv_to_optimum": CONVERGED},
            (),
            "The network has reached the optimum of its objective, which is not the target: total variation .72.",
            "open",
        ),
        (
            {**EXACT, **FAR, "tv_to_optimum": CONVERGED + 0.01},
            (),
            "This run has not converged: total variation .72; .05 counts as converged. Train longer.",
            "bad",
        ),
        (
            EXACT,
            ("sign of log Z", "symmetry term"),
            "The certificate found errors (sign of log Z, symmetry term); total variation .03.",
            "bad",
        ),
        (
            {**EXACT, **FAR, "verdict": ["network: expected return aims at another distribution than R / Z"]},
            (),
            "The objective aims at another distribution than the reward: total variation .72, "
            "which it does not reduce.",
            "open",
        ),
        (
            {"kind": "estimated", "flow_consistency": None, "has_converged": False},
            (),
            "Not judged: too few states to measure the distance from the target.",
            "open",
        ),
    ],
)
def test_words_of_a_certificate(part: Mapping[str, Any], errors: Sequence[str], words: str, tone: str):
    assert sentence(part, errors) == (words, tone)


def test_section_has_verdicts_findings_and_figures(tmp_path: Path):
    content = {"certificates": [EXACT, ESTIMATED], "errors": [], "rules": {"verdict": ["rules: hold"]}}
    section = certificate_section(read_run(write_run(tmp_path, files={"certificate.json": content})), command="certify")
    first, second = section.verdicts
    assert first.words.endswith("Exact: all 1,200 terminal states are compared.")
    assert "terminal states" not in second.words
    assert (list(first.findings), list(second.findings)) == (["rules: hold"], [])
    assert ["total variation", "0", "0.0300"] in [list(row) for row in first.figures.rows]
    assert any(row[2] == "0.0200 [0.0120, 0.0300]" for row in second.figures.rows)
    assert (section.command, section.note) == ("", "")


@pytest.mark.parametrize(
    ("files", "note", "command"),
    [
        ({}, "This run has no certificate", "certify"),
        ({"certificate.json": {"errors": ["rule"]}}, "certificate.json has no verdict.", ""),
    ],
)
def test_section_without_a_verdict(tmp_path: Path, files: Mapping[str, Any], note: str, command: str):
    section = certificate_section(read_run(write_run(tmp_path, files=files)), command="certify")
    assert section.note.startswith(note)
    assert (section.verdicts, section.command) == (section.verdicts[:0], command)
