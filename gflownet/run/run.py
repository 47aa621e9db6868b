"""A run: folder, logs, view, status, page, checkpoints and stop request of one session, and its stages."""

from __future__ import annotations

import logging
import math
import shlex
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gflownet.config import ReportConfig, TensorBoardConfig, to_mapping
from gflownet.errors import UserError
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.files import locked_folder, write_whole
from gflownet.records.marker import PAGE_NAME, free_folder
from gflownet.records.status import Phase, RunState, StatusLog
from gflownet.report.results import RESULTS_NAME, Results, read_results
from gflownet.run.folder import RunFolder
from gflownet.run.logging import MetricLogger
from gflownet.run.view import SEARCH_LOOK, Look, PlannedWork
from gflownet.terminal.arguments import program
from gflownet.terminal.console import duration, make_console, print_line
from gflownet.terminal.interrupts import (
    STOP_MESSAGE,
    AbandonedError,
    StopRequest,
    discard_output_without_reader,
    stop_signals,
)

_Opened = TypeVar("_Opened")
_log = logging.getLogger(__name__)
# Maximum share of the time for pages during the run: one that takes long is written less often.
_MAX_SHARE = 0.05


@dataclass(eq=False)
class Run:
    """One session of a run, which its stages share."""

    _config: Any
    folder: RunFolder  # locked, with the checkpoints
    stop: StopRequest  # the signal that ends the run
    _stack: ExitStack
    logger: MetricLogger = field(init=False)  # metric logs and console, after `open_logs`
    store: EvaluationStore = field(init=False)  # evaluations of a search
    results: Results = field(init=False)  # results.json
    _status: StatusLog = field(init=False)
    _page: _Page = field(init=False)

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal has ended the run."""
        return self.stop.signal is not None

    def open(self, opened: AbstractContextManager[_Opened]) -> _Opened:
        """Enter a context that is left at the end of the run."""
        return self._stack.enter_context(opened)

    def open_logs(
        self,
        *,
        planned: PlannedWork,
        resume_step: int | None,
        tensorboard: TensorBoardConfig | None = None,
        look: Look = SEARCH_LOOK,
    ) -> None:
        """Open metrics.jsonl, the logs of other programs and the view; see MetricLogger for the arguments."""
        config = self._config
        self.logger = self.open(
            MetricLogger(
                self.folder.path,
                planned=planned,
                print_every=config.print_every,
                wandb=config.wandb,
                tensorboard=tensorboard,
                config=to_mapping(config),
                run=self.folder.run_id,
                resume_step=resume_step,
                verbosity=config.console,
                look=look,
            )
        )

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Add the time of the block to a phase."""
        self.logger.detail(f"{phase} begins")
        self.logger.view.enter(phase)
        with self._status.phase(phase):
            yield
        self.logger.detail(f"{phase} took {duration(self._status.seconds[phase])}")

    def record(self, **parts: Any) -> None:
        """Add parts to results.json. Raises UserError if it cannot be written."""
        self.results = replace(self.results, **parts)
        self.folder.write(self.folder.path / RESULTS_NAME, self.results.to_json(self.folder.path))

    def refresh(self) -> None:
        """Save the times so far now and then; cheap.

        Raises:
            LostFolderError: the run folder was deleted.
        """
        self.folder.check()
        self._status.refresh()

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, which the end of the process waits for, and the page now and then.

        Raises:
            LostFolderError: the run folder was deleted.
        """
        self.folder.check()
        with self.stop.completed():
            self.logger.last_checkpoint = self.folder.checkpoints.save(step, state)
        self._page.rewrite(self.logger.print)

    @contextmanager
    def recorded(
        self,
        report: ReportConfig | None,
        *,
        plan: Mapping[str, Any] | None = None,
        start_seconds: float = 0.0,
        closing_lines: Callable[[RunState], Iterable[str]] | None = None,
    ) -> Iterator[None]:
        """Keep status.json and report.html (None: no page) during the block, at its end and after an error.

        `start_seconds` are those of the session so far. `closing_lines` returns the last lines for the final state; by
        default times, and the command that resumes.
        """
        folder = self.folder
        self._status = StatusLog(
            folder.path, resumed=folder.resumed, write=folder.write, plan=plan, start_seconds=start_seconds
        )
        self._page, self.results = _Page(folder, None if report is None else report.every), Results()
        if folder.resumed:
            try:
                self.results = read_results(folder.path)
            except UserError as error:
                _log.warning("%s; its stages write it again", error)
        self.stop.mark = lambda number: self._status.mark_interrupted(signal.Signals(number).name)
        if self.stop.signal is not None:  # since the start of the run
            self.stop.mark(self.stop.signal)
        state, message, writes_page = RunState.COMPLETED, "", True
        try:
            yield
            if self.stop.signal is not None:
                state, message = RunState.INTERRUPTED, signal.Signals(self.stop.signal).name
        except KeyboardInterrupt:  # a second Ctrl-C
            state, message, writes_page = RunState.INTERRUPTED, signal.SIGINT.name, False
            raise
        except BaseException as error:
            if _is_closed_output(error):  # as in `gflownet train ... | head`
                state, message = RunState.INTERRUPTED, signal.SIGPIPE.name
            else:
                name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
                state, message = RunState.FAILED, f"{name}{error}"
            raise
        finally:  # errors of status and page never end the run; a lost folder gets none
            if not folder.is_lost:
                self._status.end(state, " ".join(message.split()))  # before the page, which shows it
                is_written = writes_page and self._page.write(is_last=True)
                for line in (closing_lines or self._closing_lines)(state):
                    self.logger.print(line)
                if is_written:
                    for line in self._page.advice if state is RunState.COMPLETED else ():
                        self.logger.print(line)
                    self.logger.print(f"report: {self._page.path}")

    def _closing_lines(self, state: RunState) -> Iterator[str]:
        """Yield the seconds of all sessions, whole and by phase, and the command that resumes."""
        status = self._status.run
        num, seconds = len(status.sessions), status.seconds
        phases = [f"{phase} {duration(value)}" for phase, value in seconds.items() if value >= 0.5]
        each = f" in {num} sessions" if num > 1 else ""
        yield f"time: {duration(sum(seconds.values()))}{each}" + (f" ({', '.join(phases)})" if len(phases) > 1 else "")
        if state is not RunState.COMPLETED:
            yield f"resume: {resume_command(self.folder.path)}"


@contextmanager
def open_run(config: Any, *, default_folder: str = "", stop_message: str = STOP_MESSAGE) -> Iterator[Run]:
    """Open the folder of a run, and turn the first signal into a request to stop.

    A new run in place of one in `default_folder` has the next free one, which `config.log_dir` is then.

    Raises:
        UserError: the folder is in use, holds another run or none to resume.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signals(message=stop_message, ends_process=True))
        while True:
            path = Path(config.log_dir)
            try:
                folder = RunFolder(path, resume=config.resume, overwrite=config.overwrite_existing_exp)
                break
            except UserError:  # another process may have taken a default one meanwhile
                if not default_folder or (free := free_folder(Path(default_folder))) == path:
                    raise
                config.log_dir = str(free)
        if default_folder not in ("", config.log_dir) and config.console != "quiet":
            print_line(make_console(), f"log_dir: {default_folder} has a run, this one is in {path}")
        if folder.replaced is not None and config.console != "quiet":
            print_line(make_console(), f"log_dir: the earlier run is now in {folder.replaced}")
        yield Run(config, stack.enter_context(folder), stop, stack)


def resume_command(folder: Path, *, command: str = "train") -> str:
    """Return the command line that resumes the run in a folder."""
    return f"{program(command)} log_dir={shlex.quote(str(folder))} resume=true"


class Stage(ABC):
    """A part of a run: search, final stage, certificate, report, training of a language model."""

    @abstractmethod
    def run(self, run: Run) -> None:
        """Take the stage; after a signal (`run.is_stopped`) it ends as soon as a resumed run can continue it."""


class StepStage(Stage):
    """A stage of steps with metrics, which a resumed run continues exactly after the last checkpoint."""

    checkpoint_every: int  # steps between two checkpoints
    is_sound: bool = True  # whether the state of the last step is worth a checkpoint

    @property
    @abstractmethod
    def step(self) -> int:
        """Return the number of completed steps."""

    @abstractmethod
    def steps(self, run: Run) -> Iterator[dict[str, float]]:
        """Take the remaining steps until the end or a signal, and yield the metrics of each."""

    @abstractmethod
    def write(self, run: Run, metrics: dict[str, float]) -> None:
        """Write the metrics of a completed step."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the complete state for a checkpoint."""

    @abstractmethod
    def finish(self, run: Run, *, is_abandoned: bool) -> None:
        """Complete the stage before its last checkpoint; `is_abandoned`: a signal has ended a step in its middle."""

    def run(self, run: Run) -> None:
        """Take the steps with regular checkpoints, and write one at the end, unless a step was abandoned."""
        steps, is_abandoned, num_saved = self.steps(run), False, self.step // self.checkpoint_every
        while True:
            try:
                with run.stop.abandonable():
                    metrics = next(steps, None)
            except AbandonedError:  # somewhere in the step: the state is that of no step
                is_abandoned = True
                break
            if metrics is None:
                break
            self.write(run, metrics)
            run.refresh()
            if (num := self.step // self.checkpoint_every) > num_saved and self.is_sound:
                num_saved = num
                run.save(self.step, self.state_dict())
        self.finish(run, is_abandoned=is_abandoned)
        if is_abandoned:
            run.logger.print(f"step {self.step + 1} is abandoned: a resumed run continues from the last checkpoint")
        else:
            run.save(self.step, self.state_dict())


class _Page:
    """report.html of one session, rewritten at checkpoints."""

    def __init__(self, folder: RunFolder, every: float | None) -> None:
        """`every` is the minimum number of seconds between two, 0: only the last one, None: no page."""
        self._folder, self._every = folder, every
        self._is_announced, self._due = False, time.monotonic() + (every or math.inf)
        self.path = folder.path / PAGE_NAME
        self.advice = list[str]()  # the next step, by the last page

    def rewrite(self, report_line: Callable[[str], None]) -> None:
        """Write the page if the last one is old enough, and print its path the first time."""
        start = time.monotonic()
        if self._every is None or start < self._due:
            return
        if self.write() and not self._is_announced:
            self._is_announced = True
            report_line(f"report: {self.path}, rewritten at checkpoints")
        end = time.monotonic()
        self._due = end + max(self._every, (end - start) / _MAX_SHARE)

    def write(self, *, is_last: bool = False) -> bool:
        """Write the page, and find the next step after the last one; return whether the page is there."""
        if self._every is None:
            return False
        from gflownet.report.page import advice, page_of, read_run  # the templates are not needed before

        try:
            run = read_run(self._folder.path)
            page, self.advice = page_of(run), advice(run) if is_last else []
            with locked_folder(self._folder.path):
                write_whole(self.path, page)
        except Exception as error:
            _log.warning("%s was not written: %s", self.path, " ".join(str(error).split()))
            return False
        return True


def _is_closed_output(error: BaseException) -> bool:
    """Return whether the reader of stdout has closed it; further output is discarded."""
    if isinstance(error, SystemExit):  # of rich, which discards the output
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, BrokenPipeError) and discard_output_without_reader()
