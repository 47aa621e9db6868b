"""The runs of a comparison, and its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gflownet.comparison.methods import Method
from gflownet.comparison.runs import Job
from gflownet.errors import UserError

JSON_NAME, SVG_NAME = "comparison.json", "comparison.svg"
_KIND = "gflownet comparison"


@dataclass(frozen=True)
class Plan:
    """Methods, seeds and budget of a comparison."""

    config: str | None  # name or path; None: the defaults
    methods: tuple[Method, ...]
    num_evaluations: int  # of each run
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]  # options of all runs, KEY=VALUE
    folder: Path
    checkpoints: tuple[int, ...] = ()  # evaluations at which figures are shown; empty: powers of ten and their halves

    def jobs(self) -> Mapping[str, list[Job]]:
        """Return the runs: method label -> one per seed, in folders LABEL/seed_K."""
        return {
            method.label: [
                Job(
                    config=self.config,
                    method=method,
                    seed=seed,
                    num_evaluations=self.num_evaluations,
                    overrides=self.overrides,
                    folder=self.folder / method.label / f"seed_{seed}",
                )
                for seed in self.seeds
            ]
            for method in self.methods
        }

    def check(self, *, copy: Path | None = None) -> None:
        """Raise UserError for wrong options, and for a place of the results or of a run with files of others.

        Args:
            copy: second path of comparison.json.
        """
        for jobs in self.jobs().values():
            jobs[0].check()
            for job in jobs:
                job.check_folder()
        if copy is not None and (copy.is_symlink() or copy.exists()) and not is_result(copy):
            raise UserError(f"--json: expected a new file or the result of a comparison, got {copy}")
        names = [name for name in (JSON_NAME, SVG_NAME) if (self.folder / name).exists()]
        if names and not is_result(self.folder / JSON_NAME):
            raise UserError(
                f"--out: expected a folder of a comparison, got {self.folder} with another file {names[0]}; "
                "choose another --out"
            )


def is_result(path: Path) -> bool:
    """Return whether a file is the result of a comparison."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("kind") == _KIND


def header() -> dict[str, str]:
    """Return the entries by which `is_result` knows a file."""
    return {"kind": _KIND}
