"""The compared methods, and the runs of a comparison one after the other, with their progress."""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gflownet.config import CONFIG_NAME, Config, load_config, to_mapping
from gflownet.errors import UserError
from gflownet.options import leaves
from gflownet.plugins import check_name
from gflownet.records.marker import read_marker
from gflownet.records.status import RunState, read_status
from gflownet.run.extensions import validate
from gflownet.search.config import AUTO, GFLOWNET, SEARCH_METHODS
from gflownet.terminal.interrupts import StopRequest

if TYPE_CHECKING:
    from rich.console import Console

# Labels are names of folders.
_LABEL = re.compile(r"[A-Za-z0-9][\w.+=-]*")
_METHOD_KEY = "search.method"
# Options that the comparison sets itself, and how.
RESERVED = {
    "seed": "--seeds",
    "log_dir": "--out",
    "budget.evaluations": "--budget",
    "resume": "repeating the command",
    "overwrite_existing_exp": "another --out",
    "evaluation.store_url": "nothing: every run has its store",
}


@dataclass(frozen=True)
class Method:
    """One side of a comparison."""

    label: str  # in tables and pictures, and the name of its folder
    overrides: tuple[str, ...]  # KEY=VALUE, on top of the common ones


def read_methods(names: str, described: Sequence[str] = ()) -> list[Method]:
    """Return the methods of the command line.

    Raises:
        UserError: an unknown method, an invalid text, a repeated label, or no method.
    """
    methods, homes = list[Method](), {AUTO: "", GFLOWNET: "", **SEARCH_METHODS.homes}
    for name in filter(None, map(str.strip, names.split(","))):
        if ":" in name:
            raise UserError(f'--methods: expected names, got {name!r}; try --method "mine: {_METHOD_KEY}={name}"')
        check_name("--methods", name, homes)
        methods.append(Method(name, (f"{_METHOD_KEY}={name}",)))
    methods += [read_method(text) for text in described]
    if not methods:
        raise UserError("--methods: expected at least one method, got none")
    labels = [method.label for method in methods]
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    if repeated is not None:
        raise UserError(f"--methods: expected different labels, got {repeated!r} twice")
    return methods


def read_method(text: str) -> Method:
    """Return the method of "LABEL: KEY=VALUE KEY=VALUE ..."; values with spaces are quoted as in a shell.

    Raises:
        UserError: no label, an option without a value, or one that the comparison sets.
    """
    label, colon, words = text.partition(":")
    expected = f"--method: expected LABEL: KEY=VALUE KEY=VALUE, got {text!r}"
    if not colon or not _LABEL.fullmatch(label.strip()):
        raise UserError(expected)
    try:
        overrides = tuple(shlex.split(words))
    except ValueError as error:
        raise UserError(f"{expected} ({error})") from None
    check_overrides(overrides)
    return Method(label.strip(), overrides)


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise UserError for an option that the comparison sets, or a text that is not KEY=VALUE."""
    for override in overrides:
        key, equals, _ = override.partition("=")
        if key in RESERVED:
            raise UserError(f"{key}: expected no such option in a comparison, which has {RESERVED[key]}")
        if not (key and equals):
            raise UserError(f"{override}: expected KEY=VALUE, for example search.num_initial=20")


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

    plan: Plan
    method: Method
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return f"{self.method.label}, seed {self.seed}"

    def config(self) -> Config:
        """Return the config of the run; later options win. Raises UserError like `load_config`."""
        fixed = (f"log_dir={json.dumps(str(self.folder))}", "resume=auto", f"seed={self.seed}")
        budget = f"budget.evaluations={self.plan.num_evaluations}"
        return load_config(self.plan.config, [*_QUIET, *self.plan.overrides, *self.method.overrides, *fixed, budget])

    def is_finished(self) -> bool:
        """Return whether the folder has the finished run. Raises UserError for a run with other options."""
        marker = read_marker(self.folder)
        if marker is None:
            return False
        self._check_options(marker.config)
        status = read_status(self.folder)
        return status is not None and status.state is RunState.COMPLETED

    def check_folder(self) -> None:
        """Raise UserError for a path that cannot be a folder, and for a folder with an output that is not of a run."""
        folder = next(path for path in (self.folder, *self.folder.absolute().parents) if path.exists())
        if not folder.is_dir():
            raise UserError(f"--out: expected a folder, got the file {folder}; choose another --out")
        output = self.folder / OUTPUT_NAME
        if output.exists() and not (self.folder / CONFIG_NAME).exists():
            start = output.read_bytes()[: len(OUTPUT_HEADER)] if output.is_file() else b"no file"
            if start not in (b"", OUTPUT_HEADER.encode()):
                raise UserError(f"--out: expected no file {output} before the run; choose another --out")

    def _check_options(self, started: Mapping[str, Any]) -> None:
        """Raise UserError for the first option that differs from those of the run in the folder."""
        options = dict(leaves(to_mapping(self.config())))
        stored = dict(leaves(started))
        for key, value in options.items():  # the run has the options of its classes, too
            if key not in _PLACES and value != stored.get(key):
                raise UserError(
                    f"{key}: expected {stored.get(key)!r}, as the run in {self.folder} was started, got {value!r}; "
                    "choose another --out"
                )


@dataclass(frozen=True)
class Plan:
    """Methods, seeds and budget of a comparison."""

    config: str | None  # name or path; None: the defaults
    methods: tuple[Method, ...]
    num_evaluations: int  # of each run
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]  # options of all runs, KEY=VALUE
    folder: Path

    def jobs(self) -> list[Job]:
        """Return the runs, the methods in turn for each seed, in folders LABEL/seed_K."""
        return [
            Job(self, method, seed, self.folder / method.label / f"seed_{seed}")
            for seed in self.seeds
            for method in self.methods
        ]

    def check(self) -> None:
        """Raise UserError for wrong options, and for a folder of a run with files of others."""
        for job in self.jobs():
            if job.seed == self.seeds[0]:
                validate(job.config())
            job.check_folder()

    def run(self, *, console: Console, stop: StopRequest) -> bool:
        """Run what is not finished; return whether all is, False after a stop request.

        Raises:
            UserError: a run that cannot be started or resumed, or a folder with a run of other options.
        """
        from gflownet.terminal.console import duration, print_line  # rich takes longer than the checks before

        jobs, start = self.jobs(), time.monotonic()
        open_jobs = [job for job in jobs if not job.is_finished()]
        num_before = num_finished = len(jobs) - len(open_jobs)
        for job in open_jobs:
            if stop.signal is not None or not _run(job):
                print_line(console, f"{num_finished} of {len(jobs)} runs are finished; repeat the command to continue")
                return False
            num_finished += 1
            elapsed = time.monotonic() - start
            left = elapsed / (num_finished - num_before) * (len(jobs) - num_finished)
            text = f"{num_finished}/{len(jobs)} runs | {duration(elapsed)} | left {duration(left)} | {job.name}"
            print_line(console, text)
        return True


def _run(job: Job) -> bool:
    """Start or resume a run, its printed lines and warnings into a file of its folder; return whether it is finished.

    Raises:
        UserError: options that do not fit together, or a folder with another run.
    """
    from gflownet.run.trainer import build_trainer  # the command itself does not wait for torch

    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / OUTPUT_NAME).open("a", encoding="utf-8") as file, _output_to(file):
        if not file.tell():
            file.write(f"{OUTPUT_HEADER}{job.name}\n")
        try:
            return build_trainer(job.config()).run() is None
        except ValueError as error:
            raise UserError(f"{job.name}: {error}") from None


@contextmanager
def _output_to(file: TextIO) -> Iterator[None]:
    """Print into a file, warnings too."""
    root, handlers = logging.getLogger(), logging.getLogger().handlers
    root.handlers = [logging.StreamHandler(file)]
    try:
        with redirect_stdout(file), redirect_stderr(file):
            yield
    finally:
        root.handlers = handlers
        sys.stdout.flush()
