"""The run in a few sentences, each with a link to its section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gflownet.errors import counted


@dataclass(frozen=True)
class Sentence:
    """A sentence about a section."""

    section: str  # key
    topic: str
    words: str


def summary_of(contents: Mapping[str, Any]) -> list[Sentence]:
    """Return the main sentences of the sections, by key of their content."""
    return list(_sentences(contents))


def _sentences(contents: Mapping[str, Any]) -> Iterator[Sentence]:
    if (references := contents.get("references")) is not None:
        yield from (Sentence("references", "Result", f"{words}.") for words in references.sentences)
    if (best := contents.get("best")) is not None:
        first = best.ranked[0]
        name, score = first.facts[0]
        yield Sentence("best", "Best", f"{first.title.lower()}: {score} ({name}).")
    if (time := contents.get("time")) is not None and time.spent:
        yield Sentence("time", "Spent", f"{time.spent}.")
    if (certificate := contents.get("certificate")) is not None and certificate.verdicts:
        yield Sentence("certificate", "Certificate", certificate.verdicts[0].words)
    if (effects := contents.get("effects")) is not None and effects.sentences:
        yield Sentence("effects", "What matters", effects.sentences[0])
    if (failures := contents.get("failures")) is not None and failures.num_failed:
        kind = failures.kinds[0]
        words = f"{failures.num_failed:,} of {counted(failures.num_evaluated, 'evaluation')}, most often: {kind.error}"
        yield Sentence("failures", "Failures", words)
