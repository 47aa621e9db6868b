"""Failures of a run: lines and kinds of failed candidates, equal for one cause, quarantine.jsonl, skipped steps.

The quarantine lists candidates that ended their process, exceeded the deadline or the memory, one JSON object each.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from dataclasses import asdict

import torch

from gflownet.errors import UserError, counted
from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStore
from gflownet.evaluation.store.rows import EvaluationStatus, failure_kind, first_line
from gflownet.files import append_whole, cannot_write
from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import OptimizerConfig
from gflownet.run.folder import QUARANTINE_NAME, SKIPPED_NAME, RunFolder
from gflownet.run.run import Run

_HASH_LENGTH = 12
MAX_BATCHES = 10  # of skipped steps, per run
DIVERGED_SUFFIX = ".diverged"  # of checkpoints whose policy gives no finite loss


def failure_line(evaluation: Evaluation) -> str:
    """Return the line that reports the first failure of its kind."""
    words = evaluation.status.words
    return f"evaluation of {evaluation.hash[:_HASH_LENGTH]} {words}: {evaluation.error or 'no reason known'}"


def refuse_failures(store: EvaluationStore, *, run: str, num_planned: int = 0, is_early: bool = False) -> None:
    """Raise UserError where no architecture has a score, with the most frequent cause; `is_early` during the search."""
    if store.count(EvaluationStatus.OK):
        return
    rows = [*store.of_run(run)]
    kinds = Counter(failure_kind(row.status, row.error) for row in rows)
    for kind, num in kinds.most_common(1):
        row = next(row for row in rows if failure_kind(row.status, row.error) == kind)
        cause = first_line(row.error) or row.status.words
        start = f"every evaluation failed, {num} of {len(rows)} with: {cause}; {'the search stops; ' * is_early}"
        raise UserError(f"{start}check that task, environment and evaluation.* fit together")
    if num_planned and not rows:
        raise UserError("no evaluation was finished; a larger budget.seconds may help")


_SHORT_HASH = 11  # with its version, as in g1-


def evaluation_line(record: EvaluationRecord) -> str:
    """Return hash, status or score, seconds and size of an evaluation, and the reason of a failure."""
    result = f"score {record.score:.4f}" if record.status is EvaluationStatus.OK else str(record.status)
    size = "" if record.num_parameters is None else f", {counted(record.num_parameters, 'parameter')}"
    is_random, seed = record.seed >= RANDOM_REPEAT, record.seed % RANDOM_REPEAT
    place = (", random" if is_random else "") + (f", seed {seed}" if seed else "")
    place += f", {record.fidelity} epochs or steps" if record.fidelity else ""
    reason = "" if record.error is None else f": {' '.join(record.error.split())}"
    return f"evaluation {record.hash[:_SHORT_HASH]}: {result} in {record.seconds:.1f} s{size}{place}{reason}"


QUARANTINED = frozenset({EvaluationStatus.CRASHED, EvaluationStatus.TIMEOUT, EvaluationStatus.OUT_OF_MEMORY})


class Quarantine:
    """The list of a run; the file is created with its first candidate. `num` is the number added by this process."""

    def __init__(self, folder: RunFolder) -> None:
        self.path, self.num, self._folder = folder.path / QUARANTINE_NAME, 0, folder

    def add(self, record: EvaluationRecord) -> None:
        """Append a candidate if its status is one of QUARANTINED.

        Raises:
            UserError: the file cannot be written; it is unchanged.
        """
        if record.status not in QUARANTINED:
            return
        self._folder.check()
        names = ("hash", "status", "attempts", "error", "seconds", "step", "run", "fidelity")
        entry = {name: getattr(record, name) for name in names} | {"graph": json.loads(record.graph)}
        try:
            with self.path.open("ab", buffering=0) as file:
                append_whole(file, json.dumps(entry).encode() + b"\n")
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self.num += 1

    def line(self) -> str:
        """Return the closing line: where the list is, and how to try a candidate again."""
        candidates = "candidate was" if self.num == 1 else "candidates were"
        return (
            f"{self.num} {candidates} quarantined: {self.path}; to try again: "
            f"python -m gflownet.store requeue {self._folder.path} HASH"
        )


_MAX_SKIPPED = 5  # training steps in a row


class SkippedSteps:
    """Training steps without finite loss or gradient: their batches are written, and too many in a row end the run."""

    def __init__(self, options: OptimizerConfig) -> None:
        self._options = options
        self._first = self.last = -1  # numbers of the last steps in a row

    def add(self, run: Run, step: int, error: FloatingPointError, batch: TrajectoryBatch) -> None:
        """Write the batch of a skipped step. Raises the error if no further one in a row may be skipped."""
        if step != self.last:
            self._first = self._first if step == self.last + 1 else step
            self.last = step
            self._write(run.folder, step, batch)
            run.logger.warn(f"step {step}: {error}; the step is skipped")
        if step - self._first + 1 >= _MAX_SKIPPED:
            raise error

    def end(self, run: Run, error: FloatingPointError, *, step: int, batch: TrajectoryBatch | None) -> UserError:
        """Return the error that ends the run after `step`; no later checkpoint has the state that led to it.

        `batch` are the last trajectories that the policy learned from.
        """
        is_skipped = step <= self.last
        if not is_skipped and batch is not None:  # for example, sampling has failed
            self._write(run.folder, step, batch)
        start = run.folder.checkpoints.set_aside_from(self._first - 1 if is_skipped else step, suffix=DIVERGED_SUFFIX)
        place = "" if str(error).startswith("step ") else f"after step {step}: "
        options, folder = self._options, run.folder.path / SKIPPED_NAME
        batches = f"; batches: {folder}" if folder.exists() else ""
        return UserError(
            f"{place}{error}; resume=true continues from step {start}: lower "
            f"opt.learning_rate (now {options.learning_rate:g}) or opt.clip_grad_param (now "
            f"{options.clip_grad_param:g}){batches}"
        )

    def _write(self, folder: RunFolder, step: int, batch: TrajectoryBatch) -> None:
        """Write the batch, unless the folder has enough of them. Raises UserError like `RunFolder.write`."""
        path = folder.path / SKIPPED_NAME / f"step_{step:08d}.pt"
        num = len(list(path.parent.glob("*"))) - path.exists()
        if num < MAX_BATCHES:
            content = io.BytesIO()
            torch.save(asdict(batch), content)
            folder.write(path, content.getvalue())
