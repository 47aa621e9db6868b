"""One run of a comparison: start or resume it with the trainer, and write its record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gflownet.command_line.checks import validate
from gflownet.comparison.methods import Method
from gflownet.comparison.record import RunRecord, read_record, write_record
from gflownet.config import CONFIG_NAME, load_config, to_mapping
from gflownet.errors import UserError
from gflownet.options import leaves

# No output for readers, and no work after the search except what the user chooses.
_QUIET = (
    "wandb.mode=disabled",
    "print_every=1000000000",
    "final.top=0",
    "search.train_sampler=false",
    "report.every=null",
)
# Printed output of a run in its folder, and the start of its first line.
OUTPUT_NAME, OUTPUT_HEADER = "output.log", "# python -m gflownet.compare: "
# Differences of these options do not change the curve of a run.
_PLACES = ("log_dir", "resume")


@dataclass(frozen=True)
class Job:
    """One method with one seed."""

    config: str | None
    method: Method
    seed: int
    num_evaluations: int
    overrides: tuple[str, ...]  # of all methods
    folder: Path

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return f"{self.method.label}, seed {self.seed}"

    def options(self) -> list[str]:
        """Return all options of the run; later ones win."""
        fixed = (f"log_dir={json.dumps(str(self.folder))}", "resume=auto", f"seed={self.seed}")
        budget = f"budget.evaluations={self.num_evaluations}"
        return [*_QUIET, *self.overrides, *self.method.overrides, *fixed, budget]

    def record(self) -> RunRecord | None:
        """Return the record of the finished run in the folder, None if it is not finished.

        Raises:
            UserError: a run with other options.
        """
        record = read_record(self.folder)
        if record is not None:
            self._check_options(record.config)
        return record

    def check(self) -> None:
        """Raise UserError for options that do not depend on the chosen classes."""
        validate(load_config(self.config, self.options()))

    def check_folder(self) -> None:
        """Raise UserError for a path that cannot be a folder, and for a folder with an output that is not of a run."""
        folder = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
        if not folder.is_dir():
            raise UserError(f"--out: expected a folder, got the file {folder}; choose another --out")
        output = self.folder / OUTPUT_NAME
        if output.exists() and not (self.folder / CONFIG_NAME).exists() and not _is_output(output):
            raise UserError(f"--out: expected no file {output} before the run; choose another --out")

    def _check_options(self, started: Mapping[str, Any]) -> None:
        """Raise UserError for the first option that differs from those of the run in the folder."""
        wanted = dict(leaves(to_mapping(load_config(self.config, self.options()))))
        stored = dict(leaves(started))
        for key in sorted(wanted.keys() | stored.keys()):
            if key not in _PLACES and wanted.get(key) != stored.get(key):
                raise UserError(
                    f"{key}: expected {stored.get(key)!r}, as the run in {self.folder} was started, "
                    f"got {wanted.get(key)!r}; choose another --out"
                )


def run(job: Job) -> bool:
    """Start or resume a run; return whether it is finished, False after a stop request.

    Raises:
        UserError: options that do not fit together, or a folder with another run.
    """
    # Imported here: the command itself does not wait for torch.
    from gflownet.comparison.extraction import record_of
    from gflownet.run.trainer import GFNTrainer

    if job.record() is not None:
        return True
    config = load_config(job.config, job.options())
    mapping = to_mapping(config)
    trainer = GFNTrainer(config)
    trainer.progress.new_evaluations = []
    if trainer.run() is not None:
        return False
    write_record(job.folder, record_of(trainer, mapping))
    return True


def _is_output(path: Path) -> bool:
    """Return whether a file is the printed output of a run, or empty."""
    try:
        with path.open("rb") as file:
            start = file.read(len(OUTPUT_HEADER))
    except OSError:
        return False
    return start in (b"", OUTPUT_HEADER.encode())
