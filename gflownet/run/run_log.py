"""Logs that show a run in another program: interface, groups of metrics, and TensorBoard (docs/wandb.md)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gflownet.config import CONFIG_NAME
from gflownet.records.marker import PAGE_NAME
from gflownet.records.status import RunState, read_status
from gflownet.report.architectures import PICTURES_NAME, TOP_NAME, Leader
from gflownet.report.closing import FRONT_NAME
from gflownet.report.references import RANDOM_NAME
from gflownet.report.results import RESULTS_NAME, Results, Side, read_results
from gflownet.report.verdict import summary_figures

# Of the executor, see `gflownet.run.progress`.
COUNTS = ("num_timeout", "num_crashed", "num_out_of_memory", "num_refused", "num_retried")
# Group of each key of metrics.jsonl; other keys are of losses and belong to `train`.
GROUPS = {
    "score": (
        *("score_mean", "score_best", "validation_score_mean", "greedy_score_mean", "predicted_score_mean"),
        *("log_reward_mean", "hypervolume", "front_size"),
    ),
    "final": (
        *("num_trainings", "num_finalists", "num_new_seeds", "final_score_best", "num_random", "random_score_best"),
    ),
    "evaluation": (
        *("num_distinct", "cached_share", "failed_share", "evaluations_per_second", "in_flight", "busy_share"),
        *("num_stopped", "extrapolation_rank_correlation", "evaluation_seconds"),
        *COUNTS,
    ),
    "search": (
        *("fallback", "method_seconds_per_evaluation", "method_share", "num_proposals", "num_moves"),
        *("policy_updates", "baseline"),
    ),
}
_GROUP_OF = {key: group for group, keys in GROUPS.items() for key in keys}
_SEARCH_PREFIXES = ("surrogate_", "proposed_")
# Axes of the charts: the first is the default.
AXES = ("step", "evaluations", "seconds")


@dataclass(frozen=True)
class StepSamples:
    """Scores and log-rewards of the graphs that were sampled in one or several steps."""

    scores: tuple[float, ...] = ()
    log_rewards: tuple[float, ...] = ()

    @classmethod
    def of(cls, scores: Iterable[float] = (), log_rewards: Iterable[float] = ()) -> StepSamples:
        """Return the finite values."""
        return cls(tuple(filter(math.isfinite, scores)), tuple(filter(math.isfinite, log_rewards)))

    def __add__(self, other: StepSamples) -> StepSamples:
        """Return the samples of both."""
        return StepSamples(self.scores + other.scores, self.log_rewards + other.log_rewards)

    def histograms(self) -> dict[str, tuple[float, ...]]:
        """Return the values of each histogram that has any, by the key of its chart."""
        values = {"samples/scores": self.scores, "samples/log_rewards": self.log_rewards}
        return {key: each for key, each in values.items() if each}


@dataclass(frozen=True)
class RunResults:
    """Results of a run at its end, files of its folder."""

    results: Results
    checkpoint: Path | None  # the last one
    architectures: Sequence[Path]  # top_architectures.json, drawings, weights, config
    report: Path | None
    state: str  # completed, interrupted, failed
    seconds: float | None


class RunLog(ABC):
    """A log of a run. No method raises: a failure is one line, and the log ends."""

    closing_line = ""  # for the console, once the log is closed
    _name: ClassVar[str]
    _open: Any = None  # the run or the file of the other program; None: the log has ended

    def __init__(self, print_line: Callable[[str], None]) -> None:
        """Keep the function that prints a failure."""
        self._print = print_line

    @contextmanager
    def _reporting(self, failure: str, *, is_end: bool = True) -> Iterator[None]:
        """Print an error of the block in one line; `is_end`: it ends the log."""
        try:
            yield
        except Exception as error:
            self._print(f"{self._name}: {failure}: {first_line(error)}")
            if is_end:
                self._open = None

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of one step."""

    @abstractmethod
    def write_samples(self, step: int, samples: StepSamples) -> None:
        """Log histograms of samples."""

    @abstractmethod
    def write_leaders(self, step: int, leaders: Sequence[Leader]) -> None:
        """Log the best architectures so far."""

    @abstractmethod
    def close(self, results: RunResults | None = None) -> None:
        """Log the results, if any, and end the log."""


def grouped(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values with the key GROUP/KEY, without those of an axis; keys with a group keep it."""
    return {key if "/" in key else f"{group_of(key)}/{key}": value for key, value in values.items() if key not in AXES}


def group_of(key: str) -> str:
    """Return the group of a key of metrics.jsonl."""
    return _GROUP_OF.get(key, "search" if key.startswith(_SEARCH_PREFIXES) else "train")


def axes_of(step: int, values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a step on the axes of the charts."""
    axes = {"step": step, "evaluations": values.get("num_distinct"), "seconds": values.get("seconds")}
    return {axis: value for axis, value in axes.items() if value is not None}


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, its type without one."""
    return str(error).partition("\n")[0] or type(error).__name__


_ARCHITECTURE_FILES = (TOP_NAME, RESULTS_NAME, RANDOM_NAME, FRONT_NAME, CONFIG_NAME)


def read_end(folder: Path, *, checkpoint: Path | None) -> RunResults:
    """Return the results of the run in a folder; missing files give empty fields.

    Raises:
        UserError: results.json is damaged.
    """
    status = read_status(folder)
    report = folder / PAGE_NAME
    has_top = (folder / TOP_NAME).exists()
    files = [folder / name for name in _ARCHITECTURE_FILES if (folder / name).exists()]
    drawings = sorted(path for path in (folder / PICTURES_NAME).glob("ran*") if path.is_file())
    return RunResults(
        results=read_results(folder),
        checkpoint=checkpoint if checkpoint is not None and checkpoint.exists() else None,
        architectures=[*files, *drawings] if has_top else [],
        report=report if report.exists() else None,
        state=RunState.RUNNING if status is None else status.state,
        seconds=None if status is None else sum(status.seconds.values()),
    )


TENSORBOARD_NAME = "tensorboard"
_FLUSH_S = 30


class TensorBoardLog(RunLog):
    """Event files of TensorBoard."""

    _name = "tensorboard"

    def __init__(
        self, log_dir: Path, *, config_text: str, print_line: Callable[[str], None], resume_step: int | None = None
    ) -> None:
        """Open a new event file.

        TensorBoard ignores what was logged after `resume_step`, the step of the checkpoint of a resumed run.
        """
        super().__init__(print_line)
        self._last_step = resume_step or 0
        purge_step = None if resume_step is None else resume_step + 1
        with self._reporting("no event file, metrics.jsonl is complete"):
            from torch.utils.tensorboard import SummaryWriter  # takes a second; needed with tensorboard.use only

            self._open = SummaryWriter(log_dir / TENSORBOARD_NAME, purge_step=purge_step, flush_secs=_FLUSH_S)
            self._open.add_text("config", f"```yaml\n{config_text}```", self._last_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._last_step = step
        with self._reporting(f"logging stopped at step {step}, metrics.jsonl continues"):
            for key, value in grouped(values).items() if self._open else ():
                self._open.add_scalar(key, value, step)

    def write_samples(self, step: int, samples: StepSamples) -> None:
        with self._reporting("no histogram"):
            for key, values in samples.histograms().items() if self._open else ():
                self._open.add_histogram(key, np.asarray(values, dtype=np.float64), step)

    def write_leaders(self, step: int, leaders: Sequence[Leader]) -> None:
        with self._reporting("no table of architectures"):
            if self._open is not None:
                self._open.add_text("top/architectures", _table_of(leaders), step)

    def close(self, results: RunResults | None = None) -> None:
        with self._reporting("the event file is incomplete, metrics.jsonl is complete"):
            if self._open is not None:
                figures = {} if results is None else summary_figures(results.results)
                self.write(
                    self._last_step, {key: each for key, each in figures.items() if isinstance(each, int | float)}
                )
                self._open.close()
        self._open = None


def _table_of(leaders: Sequence[Leader]) -> str:
    """Return a table in Markdown."""
    columns = ("rank", "score", "interval", "test score", "parameters", "architecture", "load")
    rows = [columns, ("---",) * len(columns)]
    for each in (leader.finalist for leader in leaders):
        side = each.final or Side("", each.score)
        numbers = (each.rank, ""), (side.mean, ".4g"), (each.test_score, ".4g"), (each.num_parameters, ",")
        rank, score, test, size = ("" if number is None else format(number, form) for number, form in numbers)
        interval = "" if math.isnan(side.low) else f"[{side.low:.4g}, {side.high:.4g}]"
        rows.append((rank, score, interval, test, size, each.shown, f"`{each.load}`" if each.load else ""))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
