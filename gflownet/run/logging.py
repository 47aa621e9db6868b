"""Metric logs behind one `write(step, values)`: metrics.jsonl, console, Weights & Biases, TensorBoard."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from rich.console import Console

from gflownet.files import CHECKSUM, Closing, append_whole, cannot_write, parse_row, sealed, write_whole
from gflownet.pictures.figure import shortened
from gflownet.report.architectures import Leader
from gflownet.run.run_log import COUNTS, RunLog, RunResults, StepSamples, TensorBoardLog, first_line, read_end
from gflownet.run.view import SEARCH_LOOK, Look, PlannedWork, make_view
from gflownet.run.wandb_log import WandbLog
from gflownet.terminal.console import make_console, print_line

if TYPE_CHECKING:
    from gflownet.config import TensorBoardConfig, WandbConfig

METRICS_NAME = "metrics.jsonl"
# Keys that differ between the rows of two runs with one seed.
TIME_KEYS = frozenset(
    {
        *("evaluations_per_second", "seconds", "run", CHECKSUM, "in_flight", "busy_share"),
        *("method_seconds_per_evaluation", "method_share", "evaluation_seconds"),
        *COUNTS,
    }
)
_MAX_WORDS = 80  # characters of the best architecture in a line
HISTOGRAM_STEPS = 10  # steps whose samples a histogram shows
_log = logging.getLogger(__name__)


class MetricLogger(Closing):
    """Writes the metrics of each step to all logs. A context manager that closes them."""

    def __init__(
        self,
        log_dir: Path,
        *,
        planned: PlannedWork,
        print_every: int,
        wandb: WandbConfig,
        config: Mapping[str, Any],
        tensorboard: TensorBoardConfig | None = None,
        run: str = "",
        resume_step: int | None = None,
        console: Console | None = None,
        verbosity: Literal["quiet", "normal", "verbose"] = "normal",
        look: Look = SEARCH_LOOK,
    ) -> None:
        """Open the logs in the run folder.

        `config` is the unresolved config for wandb, `run` the id of the run. `resume_step` is the step of the
        checkpoint of a resumed run: later rows of metrics.jsonl are removed; None starts a new file. `verbosity` is the
        option console; `planned` is its work, for the time left, `look` the figures on the console.
        """
        self.console = console or make_console()  # for lines and tables
        self._verbosity, self._is_closing = verbosity, False
        log_dir.mkdir(parents=True, exist_ok=True)
        self._folder = log_dir
        self._file = MetricsFile(log_dir / METRICS_NAME, run=run, resume_step=resume_step)
        self._logs: list[RunLog] = []
        if wandb.mode != "disabled":
            self._logs.append(
                WandbLog(log_dir, wandb, config=config, print_line=self.print, logged_step=self._file.last_step_before)
            )
        if tensorboard is not None and tensorboard.use:
            text = yaml.safe_dump(dict(config), sort_keys=False)
            self._logs.append(TensorBoardLog(log_dir, config_text=text, print_line=self.print, resume_step=resume_step))
        self._samples, self._num_sampled_steps, self._step = StepSamples(), 0, resume_step or 0
        self.last_checkpoint: Path | None = None
        self._leader_hashes: list[str] = []
        self._num_trainings = 0  # of the final stage, logged
        self.view = make_view(  # arguments of the view alone are not recorded
            self.console,
            planned=planned,
            print_every=1 if verbosity == "verbose" else print_every,
            is_resumed=bool(resume_step),
            look=look,
            is_quiet=verbosity == "quiet",
        )

    @property
    def has_media(self) -> bool:
        """Return whether a log shows architectures."""
        return bool(self._logs)

    def write(
        self,
        step: int,
        values: Mapping[str, float],
        samples: StepSamples | None = None,
        *,
        shown: Mapping[str, float] | None = None,
    ) -> None:
        """Write the metrics of one step; metrics.jsonl first. Histograms are of the samples of several steps.

        `shown` are further values for the console only.
        """
        self._file.write(step, values)
        self._step = step
        for log in self._logs:
            log.write(step, values)
        if self._logs and samples is not None:
            self._samples, self._num_sampled_steps = self._samples + samples, self._num_sampled_steps + 1
            if self._num_sampled_steps == HISTOGRAM_STEPS:
                self._write_samples()
        self.view.write(step, {**values, **(shown or {})})

    def stage(self, name: str, done: int, total: int, values: Mapping[str, float] | None = None) -> None:
        """Show the progress of a stage; values of new trainings are logged at the last step plus their number."""
        self.view.stage(name, done, total, values)
        num_trainings = round((values or {}).get("num_trainings", 0))
        if values and num_trainings > self._num_trainings:
            self._num_trainings = num_trainings
            for log in self._logs:
                log.write(self._step + num_trainings, values)

    def write_leaders(self, hashes: Sequence[str], rows_of: Callable[[], Sequence[Leader]]) -> None:
        """Write the best architectures so far to the logs that show them, if they have changed.

        `hashes` are those of the architectures, best first; `rows_of` returns their rows.
        """
        if self._logs and hashes and list(hashes) != self._leader_hashes:
            self._leader_hashes = list(hashes)
            try:
                leaders = rows_of()
            except Exception as error:  # of the task's own code
                self.print(f"the best architectures are not shown in the logs: {first_line(error)}")
                return
            for log in self._logs:
                log.write_leaders(self._step, leaders)

    def name_best(self, words_of: Callable[[], str]) -> None:
        """Show the best architecture so far with the next metrics; `words_of` returns its words."""
        try:
            self.view.best_words = shortened(words_of(), _MAX_WORDS)
        except Exception as error:  # of the task's own code
            self.view.best_words = ""
            self.print(f"the best architecture is not shown in words: {first_line(error)}")

    def print(self, text: str) -> None:
        """Print a line, above the live panel if there is one; a quiet run prints only what follows the panel."""
        if self._is_closing or self._verbosity != "quiet":
            print_line(self.console, text)

    def warn(self, text: str) -> None:
        """Print a line, also of a quiet run."""
        print_line(self.console, text)

    def detail(self, text: str) -> None:
        """Print a line of a verbose run."""
        if self._verbosity == "verbose":
            print_line(self.console, text)

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the live panel until the end of the block; the logs stay open."""
        try:
            yield
        finally:
            self.view.close()
            self._is_closing = True

    def close(self) -> None:
        """Close everything; the console first, so that the terminal is restored even if the others fail.

        The logs get the results of the run, as they are in its folder.
        """
        self.view.close()
        self._file.close()
        if not self._logs:
            return
        self._write_samples()
        results: RunResults | None = None
        try:
            results = read_end(self._folder, checkpoint=self.last_checkpoint)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.print(f"logs: no results in wandb and TensorBoard: {first_line(error)}")
        for log in self._logs:
            log.close(results)
            if log.closing_line:
                self.print(log.closing_line)

    def _write_samples(self) -> None:
        if self._num_sampled_steps:
            for log in self._logs:
                log.write_samples(self._step, self._samples)
        self._samples, self._num_sampled_steps = StepSamples(), 0


class MetricsFile:
    """metrics.jsonl: one JSON object per step and line, written unbuffered."""

    def __init__(self, path: Path, *, run: str = "", resume_step: int | None = None) -> None:
        """Open the file: empty, or with the rows of the run up to `resume_step`.

        Raises:
            UserError: the file cannot be written.
        """
        self.path = path
        self._run = run
        lines = path.read_bytes().splitlines(keepends=True) if resume_step is not None and path.exists() else []
        lines = [line for line in lines if line.endswith(b"\n")]  # a killed process may leave a part of the last one
        rows = [parse_row(line) for line in lines]
        steps = [None if row is None or row.get("run", "") != run else int(row["step"]) for row in rows]
        self.last_step_before = max((step for step in steps if step is not None), default=0)
        write_whole(path, b"" if resume_step is None else _rows_until(path, resume_step, lines=lines, steps=steps))
        self._file = path.open("ab", buffering=0)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the row of a step; NaN and infinity become null.

        Raises:
            UserError: the row cannot be written, for example on a full disk; the file is unchanged.
        """
        numbers = {key: value if isinstance(value, int) else float(value) for key, value in values.items()}
        row = {"step": step, **{key: value if math.isfinite(value) else None for key, value in numbers.items()}}
        if self._run:
            row["run"] = self._run
        try:
            append_whole(self._file, json.dumps(sealed(row), allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _rows_until(path: Path, step: int, *, lines: Sequence[bytes], steps: Sequence[int | None]) -> bytes:
    """Return the rows up to `step`, with a warning if some are missing, damaged or of another run (None)."""
    rows = [line for line, row_step in zip(lines, steps, strict=True) if row_step is not None and row_step <= step]
    if len(rows) != step or None in steps:
        damaged = next((f", line {number} is damaged" for number, row in enumerate(steps, 1) if row is None), "")
        _log.warning(
            "%s: expected one row for each of %d steps, got %d%s; continuing without", path, step, len(rows), damaged
        )
    return b"".join(rows)
