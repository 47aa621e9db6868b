"""quarantine.jsonl: candidates that ended their process, exceeded the deadline or the memory, one JSON object each."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gflownet.evaluation.status import EvaluationStatus
from gflownet.evaluation.store import EvaluationRecord
from gflownet.files import cannot_write
from gflownet.run.folder import QUARANTINE_NAME, RunFolder

QUARANTINED = frozenset({EvaluationStatus.CRASHED, EvaluationStatus.TIMEOUT, EvaluationStatus.OUT_OF_MEMORY})


class Quarantine:
    """The list of a run; the file is created with its first candidate.

    Attributes:
        path: of the file.
        num: candidates added by this process.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.path / QUARANTINE_NAME
        self.num = 0
        self._folder = folder

    def add(self, record: EvaluationRecord) -> None:
        """Append a candidate if its status is one of QUARANTINED.

        Raises:
            UserError: another file has the name of the list, or it cannot be written; it is unchanged.
        """
        if record.status not in QUARANTINED:
            return
        self._folder.claim(QUARANTINE_NAME)
        _append(self.path, json.dumps(_entry(record)).encode() + b"\n")
        self.num += 1

    def line(self) -> str:
        """Return the closing line: where the list is, and how to try a candidate again."""
        candidates = "candidate was" if self.num == 1 else "candidates were"
        return (
            f"{self.num} {candidates} quarantined: {self.path}; to try again: "
            f"python -m gflownet.store requeue {self._folder.path} HASH"
        )


def _entry(record: EvaluationRecord) -> dict[str, object]:
    names = ("hash", "status", "attempts", "error", "seconds", "step", "run", "fidelity")
    return {name: getattr(record, name) for name in names} | {"graph": json.loads(record.graph)}


def _append(path: Path, line: bytes) -> None:
    try:
        with path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) != len(line):
                    raise OSError("only a part was written")
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise cannot_write(path, error) from error
