"""Metric logs behind one `write(step, values)`: metrics.jsonl, console, Weights & Biases."""

from __future__ import annotations

import errno
import json
import logging
import math
import netrc
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console

from gflownet.console import make_console, make_view, print_line
from gflownet.files import cannot_write, write_whole
from gflownet.run.executor_status import COUNTS

if TYPE_CHECKING:
    from gflownet.config import WandbConfig

METRICS_NAME = "metrics.jsonl"
WANDB_NAME = "wandb"
WANDB_ID_NAME = "run_id"  # in the folder of wandb
# Keys that differ between the rows of two runs with one seed.
TIME_KEYS = frozenset(
    {
        *("evaluations_per_second", "seconds", "run", "in_flight", "busy_share"),
        *("method_seconds_per_evaluation", "method_share", "evaluation_seconds"),
        *COUNTS,
    }
)

# Timeouts in seconds for an unreachable wandb server, at the start and at the end of a run.
INIT_TIMEOUT = 15.0
FINISH_TIMEOUT = 30.0
WANDB_SERVER = "https://api.wandb.ai"
_log = logging.getLogger(__name__)


class MetricLogger:
    """Writes the metrics of each step to all logs. A context manager that closes them."""

    def __init__(
        self,
        log_dir: Path,
        *,
        num_training_steps: int,
        print_every: int,
        wandb: WandbConfig,
        config: Mapping[str, Any],
        run: str = "",
        resume_step: int | None = None,
        console: Console | None = None,
    ) -> None:
        """Open the logs in the run folder.

        `config` is the unresolved config for wandb, `run` the id of the run. `resume_step` is the step of the
        checkpoint of a resumed run: later rows of metrics.jsonl are removed; None starts a new file.
        """
        self.console = console or make_console()
        log_dir.mkdir(parents=True, exist_ok=True)
        self._file = MetricsFile(log_dir / METRICS_NAME, run=run, resume_step=resume_step)
        self._wandb = WandbLog(log_dir, wandb, config=config, print_line=self.print)
        self._view = make_view(
            self.console,
            num_training_steps=num_training_steps,
            print_every=print_every,
            first_step=resume_step or 0,
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the metrics of one step; metrics.jsonl first."""
        self._file.write(step, values)
        self._wandb.write(step, values)
        self._view.write(step, values)

    def show(self, values: Mapping[str, float]) -> None:
        """Update values of the live panel during a step; they are not recorded."""
        self._view.show(values)

    def summarise(self, values: Mapping[str, float]) -> None:
        """Write metrics of the whole run to the summary of the wandb run."""
        self._wandb.summarise(values)

    def print(self, text: str) -> None:
        """Print a line, above the live panel if there is one."""
        print_line(self.console, text)

    def close(self) -> None:
        """Close everything; the console first, so that the terminal is restored even if the others fail."""
        self._view.close()
        self._file.close()
        self._wandb.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MetricsFile:
    """metrics.jsonl: one JSON object per step and line, written unbuffered."""

    def __init__(self, path: Path, *, run: str = "", resume_step: int | None = None) -> None:
        """Open the file: empty, or with the rows of the run up to `resume_step`.

        Raises:
            UserError: the file cannot be written.
        """
        self.path = path
        self._run = run
        write_whole(path, b"" if resume_step is None else _rows_until(path, resume_step, run=run))
        self._file = path.open("ab", buffering=0)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the row of a step; NaN and infinity become null.

        Raises:
            UserError: the row cannot be written, for example on a full disk; the file is unchanged.
        """
        row = {"step": step, **{key: _number(value) for key, value in values.items()}}
        if self._run:
            row["run"] = self._run
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        size = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._file.truncate(size)
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WandbLog:
    """Metrics on Weights & Biases. A failure is reported in one line and never ends the run."""

    def __init__(
        self, log_dir: Path, options: WandbConfig, *, config: Mapping[str, Any], print_line: Callable[[str], None]
    ) -> None:
        self._print = print_line
        self._run: Any = None
        mode = options.mode
        if mode == "disabled":
            return
        if mode == "online" and not has_wandb_key():
            print_line(
                "wandb: no API key, so metrics are saved offline in the run folder; set wandb.mode=disabled to turn "
                "wandb off"
            )
            mode = "offline"
        self._run = self._start(log_dir, options, mode=mode, config=config)
        if self._run is None and mode == "online":
            self._run = self._start(log_dir, options, mode="offline", config=config)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of one step."""
        if self._run is None:
            return
        try:
            self._run.log(dict(values), step=step)
        except Exception as error:
            self._print(f"wandb: logging stopped at step {step}, metrics.jsonl continues: {_first_line(error)}")
            self._run = None

    def summarise(self, values: Mapping[str, float]) -> None:
        """Write values into the run's summary."""
        if self._run is None:
            return
        try:
            self._run.summary.update(dict(values))
        except Exception as error:
            self._print(f"wandb: the run has no summary: {_first_line(error)}")

    def close(self) -> None:
        """End the run on wandb, waiting at most FINISH_TIMEOUT for the upload."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.finish()
        except Exception as error:
            self._print(f"wandb: the run was not finished, metrics.jsonl is complete: {_first_line(error)}")

    def _start(self, log_dir: Path, options: WandbConfig, *, mode: str, config: Mapping[str, Any]) -> Any:
        """Start a wandb run; return None after printing the reason of a failure."""
        os.environ.setdefault("WANDB_SILENT", "true")  # read on import, before the settings of a run
        folder = log_dir.resolve()
        try:
            import wandb  # takes half a second; not needed with wandb.mode=disabled

            return wandb.init(
                project=options.project,
                entity=options.entity,
                name=options.name,
                id=_run_id(folder) if mode == "online" else None,
                resume="allow" if mode == "online" else None,
                dir=folder,
                config=dict(config),
                mode="online" if mode == "online" else "offline",
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    init_timeout=INIT_TIMEOUT,
                    finish_timeout=FINISH_TIMEOUT,
                    disable_git=True,
                    disable_code=True,
                ),
            )
        except Exception as error:
            instead = "continuing offline" if mode == "online" else "metrics.jsonl is complete"
            self._print(f"wandb: {mode} logging failed, {instead}: {_first_line(error)}")
            return None


def has_wandb_key() -> bool:
    """Return whether wandb has credentials: in the environment, or in the netrc file of `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = os.environ.get("WANDB_BASE_URL", WANDB_SERVER).partition("://")[2].partition("/")[0].partition(":")[0]
    try:
        path = os.environ.get("NETRC")
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _run_id(folder: Path) -> str:
    """Return the id of the wandb run of a run folder, the same when the run is resumed."""
    path = folder / WANDB_NAME / WANDB_ID_NAME
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_whole(path, uuid.uuid4().hex[:8])
    return path.read_text(encoding="utf-8")


def _rows_until(path: Path, step: int, *, run: str) -> bytes:
    """Return the rows of the run up to `step`, and log a warning if rows are missing or damaged.

    A killed process may leave half a line at the end, and rows after `step`.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    steps = [_step_of(line, run=run) for line in whole]
    rows = [line for line, row_step in zip(whole, steps, strict=True) if row_step is not None and row_step <= step]
    if len(rows) != step or None in steps:
        damaged = next((f", line {number} is damaged" for number, row in enumerate(steps, 1) if row is None), "")
        _log.warning(
            "%s: expected one row for each of %d steps, got %d%s; continuing without", path, step, len(rows), damaged
        )
    return b"".join(rows)


def _step_of(line: bytes, *, run: str) -> int | None:
    """Return the step of a row; None if the line is damaged or belongs to another run."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or row.get("run", "") != run or not isinstance(row.get("step"), int):
        return None
    return row["step"]


def _number(value: float) -> float | int | None:
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
