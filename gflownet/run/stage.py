"""The contract of the stages of a run, and the loop of those that take steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from gflownet.cli.interrupts import AbandonedError
from gflownet.run.run import Run


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
