"""The executor that runs jobs in the main process: no isolation, no deadline; the oracle of the others."""

from __future__ import annotations

from collections.abc import Collection

from gflownet.evaluation.execution import attempt
from gflownet.evaluation.executors.base import EvaluationInterruptedError, Executor, Handle
from gflownet.evaluation.executors.torch_state import TorchState
from gflownet.evaluation.job import Job, Outcome
from gflownet.evaluation.task import GFNTask
from gflownet.terminal.interrupts import Interruption


class InlineExecutor(Executor):
    """Runs each job when it is waited for."""

    isolates = False

    def __init__(self, task: GFNTask) -> None:
        self._task = task
        self._interruption = Interruption(EvaluationInterruptedError)

    @property
    def capacity(self) -> int:
        return 1

    def submit(self, job: Job, *, deadline: float | None) -> Handle:
        return Handle(job)

    def wait(self, handles: Collection[Handle], *, timeout: float | None) -> list[Handle]:
        done = [handle for handle in handles if handle.outcomes is not None]
        if not done:
            for handle in list(handles)[:1]:
                self._run(handle)
                done.append(handle)
        return done

    def cancel(self, handle: Handle) -> None:
        pass

    def interrupt(self) -> None:
        self._interruption.interrupt()

    def close(self) -> None:
        pass

    def _run(self, handle: Handle) -> None:
        state, finished = TorchState(), list[Outcome]()

        def report(outcome: Outcome) -> None:
            state.restore()
            finished.append(outcome)

        try:
            with self._interruption.block():
                done = attempt(self._task, handle.job, report=report, raises=(KeyboardInterrupt,))
            handle.outcomes, handle.num_finished = done
        except EvaluationInterruptedError:
            handle.outcomes, handle.num_finished = tuple(finished), len(finished)
            raise
        finally:
            state.restore()
