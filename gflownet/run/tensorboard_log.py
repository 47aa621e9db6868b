"""A run in TensorBoard: scalars, histograms, the best architectures as text (docs/wandb.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gflownet.report.architectures import Leader
from gflownet.run.run_log import RunLog, RunResults, StepSamples, first_line, grouped

TENSORBOARD_NAME = "tensorboard"
_FLUSH_S = 30


class TensorBoardLog(RunLog):
    """Event files of TensorBoard. A failure is reported in one line and never ends the run."""

    def __init__(
        self, log_dir: Path, *, config_text: str, print_line: Callable[[str], None], resume_step: int | None = None
    ) -> None:
        """Open a new event file.

        Args:
            log_dir: run folder; the file is in its subfolder `tensorboard`.
            config_text: options of the run as YAML.
            print_line: prints a failure.
            resume_step: step of the checkpoint of a resumed run; TensorBoard ignores what was logged after it.
        """
        self._print = print_line
        self._last_step = resume_step or 0
        purge_step = None if resume_step is None else resume_step + 1
        self._writer: Any = None
        with self._reporting("no event file, metrics.jsonl is complete"):
            from torch.utils.tensorboard import SummaryWriter  # takes a second; needed with tensorboard.use only

            self._writer = SummaryWriter(log_dir / TENSORBOARD_NAME, purge_step=purge_step, flush_secs=_FLUSH_S)
            self._writer.add_text("config", f"```yaml\n{config_text}```", self._last_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of one step."""
        self._last_step = step
        with self._reporting(f"logging stopped at step {step}, metrics.jsonl continues"):
            if self._writer is not None:
                for key, value in grouped(values).items():
                    self._writer.add_scalar(key, value, step)

    def write_samples(self, step: int, samples: StepSamples) -> None:
        """Log histograms of samples."""
        with self._reporting("no histogram"):
            if self._writer is not None:
                for key, values in samples.histograms().items():
                    self._writer.add_histogram(key, np.asarray(values, dtype=np.float64), step)

    def write_leaders(self, step: int, leaders: Sequence[Leader]) -> None:
        """Log the best architectures as a table in text."""
        with self._reporting("no table of architectures"):
            if self._writer is not None:
                self._writer.add_text("top/architectures", _table_of(leaders), step)

    def write_checkpoint(self, step: int, path: Path) -> None:
        """Log nothing: event files hold no checkpoints."""

    def summarise(self, values: Mapping[str, float]) -> None:
        """Log figures of the whole run at its last step."""
        self.write(self._last_step, {key: value for key, value in values.items() if isinstance(value, int | float)})

    def close(self, results: RunResults | None = None) -> None:
        """Write what is buffered."""
        with self._reporting("the event file is incomplete, metrics.jsonl is complete"):
            if self._writer is not None:
                self._writer.close()
        self._writer = None

    @contextmanager
    def _reporting(self, failure: str) -> Iterator[None]:
        """Print an error of the block in one line, and end the log."""
        try:
            yield
        except Exception as error:
            self._print(f"tensorboard: {failure}: {first_line(error)}")
            self._writer = None


def _table_of(leaders: Sequence[Leader]) -> str:
    """Return a table in Markdown."""
    columns = ("rank", "score", "interval", "test score", "parameters", "architecture", "load")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for leader in leaders:
        test = "" if leader.test_score is None else f"{leader.test_score:.4g}"
        load = f"`{leader.load}`" if leader.load else ""
        parameters = "" if leader.num_parameters is None else f"{leader.num_parameters:,}"
        rank = "" if leader.rank is None else leader.rank
        cells = [rank, f"{leader.score:.4g}", leader.interval, test, parameters, leader.words, load]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
