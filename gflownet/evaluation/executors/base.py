"""The executor: runs jobs in this process, in a pool of processes or on a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gflownet.evaluation.job import Job, Outcome
from gflownet.files import Closing


class EvaluationInterruptedError(KeyboardInterrupt):
    """Raised inside an evaluation that is stopped. No failure of its candidate, hence no Exception."""


@dataclass(eq=False)
class Handle:
    """A submitted job and, once it is done, its outcomes."""

    job: Job
    outcomes: tuple[Outcome, ...] | None = None  # one per candidate; None while it runs
    num_finished: int = 0  # candidates that were done, from the first on; the others share the reason, as outcomes
    finished: list[Outcome] = field(default_factory=list)  # so far, of a job in another process
    since: float | None = None  # monotonic time of its start or its last outcome; None: unknown, or it waits
    backend: Any = field(default=None, repr=False)  # of the executor


class Executor(Closing, ABC):
    """Runs jobs of one task. Used by one thread at a time, the dispatcher's.

    A job that ends its process, or exceeds its deadline or the memory, is done with outcomes of that status; no other
    job is affected. Outcomes are bit-equal to those of `InlineExecutor`. A context manager that closes it.
    """

    isolates: ClassVar[bool] = True  # jobs run in other processes: a candidate cannot end the main process
    # Called with lines for the user.
    notify: Callable[[str], None] = staticmethod(lambda line: None)

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Return the number of jobs that run at the same time."""

    def start(self) -> None:
        """Start what the first job needs, such as processes, so that it waits less. No effect later."""

    @abstractmethod
    def submit(self, job: Job, *, deadline: float | None) -> Handle:
        """Start a job, or queue it where all places are taken.

        Args:
            job: the job.
            deadline: seconds from the start of the job, or from its previous outcome, after which the process is ended
                when no candidate is done; None: no deadline.

        Raises:
            UserError: the task or the candidates cannot be sent to another process.
        """

    @abstractmethod
    def wait(self, handles: Collection[Handle], *, timeout: float | None) -> list[Handle]:
        """Return the done ones of these handles, as soon as there is one or the timeout (seconds) is over."""

    @abstractmethod
    def cancel(self, handle: Handle) -> None:
        """End a job at once, or remove it from the queue; its handle is never done. No effect on a done job."""

    def interrupt(self) -> None:
        """End an evaluation that runs in this process, with EvaluationInterruptedError in its `wait`.

        The handle gets the outcomes of its candidates that were finished before.

        Called by signal handlers; without effect for jobs in other processes, which `cancel` ends.
        """

    @abstractmethod
    def close(self) -> None:
        """Cancel all jobs and end every process; no process is left afterwards. May be called twice."""
