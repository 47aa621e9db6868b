"""The queue of evaluations: groups of candidates that one process evaluates as a job."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from gflownet.evaluation.halving import SuccessiveHalving
from gflownet.evaluation.job import Job
from gflownet.evaluation.task import GFNTask
from gflownet.evaluation.ticket import Request, Ticket
from gflownet.training.random_states import candidate_seed

# Candidates below this duration, seconds, share a job even if the task does not train them together.
SHORT_S = 0.02
_DECAY = 0.9  # of the moving average of durations


class JobQueue:
    """Queued evaluations in order. Tasks that train candidates together get one job per place."""

    def __init__(self, task: GFNTask, *, seed: int, deadline: float | None, halving: SuccessiveHalving | None) -> None:
        """Start empty.

        Args:
            task: of the candidates.
            seed: of the run.
            deadline: seconds per candidate; None: none.
            halving: trains candidates in parts.
        """
        self._seed, self._deadline, self._halving = seed, deadline, halving
        self._trains_together = type(task).evaluate_many is not GFNTask.evaluate_many
        self._tickets: deque[Ticket] = deque()
        self._mean_seconds = math.inf  # of a candidate, moving average

    def __len__(self) -> int:
        """Return the number of queued evaluations."""
        return len(self._tickets)

    @property
    def first(self) -> Ticket:
        """Return the next evaluation."""
        return self._tickets[0]

    @property
    def mean_seconds(self) -> float:
        """Return the moving average of the seconds per evaluation, 0 before the first."""
        return self._mean_seconds if math.isfinite(self._mean_seconds) else 0.0

    def measure(self, seconds: float) -> None:
        """Add the duration of an evaluation to the moving average."""
        known = self._mean_seconds if math.isfinite(self._mean_seconds) else seconds
        self._mean_seconds = _DECAY * known + (1 - _DECAY) * seconds

    def extend(self, tickets: Iterable[Ticket]) -> None:
        """Append evaluations."""
        self._tickets.extend(tickets)

    def repeat_alone(self, tickets: Iterable[Ticket], *, first: bool = False) -> None:
        """Queue evaluations of a lost or failed job again, each in a separate job, at the end or before all others."""
        again = list(tickets)
        for ticket in again:
            ticket.is_alone = True
        if first:
            self._tickets.extendleft(reversed(again))
        else:
            self._tickets.extend(again)

    def clear(self) -> None:
        """Forget all queued evaluations."""
        self._tickets.clear()

    def pop_job(self, num_places: int) -> tuple[Job, float | None, list[Ticket]]:
        """Remove the next group, and return its job with the deadline in seconds and the tickets.

        Args:
            num_places: capacity of the executor.
        """
        tickets = self._pop_group(num_places)
        requests = [self._request(ticket) for ticket in tickets]
        first = requests[0]
        job = Job(
            tuple(request.candidate for request in requests),
            tuple(candidate_seed(self._seed, each.candidate.canonical_hash(), each.repeat) for each in requests),
            fidelity=first.fidelity,
            schedule=first.schedule,
            trainings=tuple(ticket.training for ticket in tickets),
            saves_training=any(request.saves_training for request in requests),
            tests=first.tests,
        )
        deadline = self._deadline
        if deadline is not None and self._trains_together:
            deadline *= len(tickets)
        return job, deadline, tickets

    def _pop_group(self, num_places: int) -> list[Ticket]:
        """Remove and return the tickets of the next job: equal requests, as many as every place gets."""
        first = self._tickets.popleft()
        tickets = [first]
        if first.is_alone:
            return tickets
        size = self._group_size(1 + sum(self._may_share(first, ticket) for ticket in self._tickets), num_places)
        while self._tickets and len(tickets) < size and self._may_share(first, self._tickets[0]):
            tickets.append(self._tickets.popleft())
        return tickets

    def _group_size(self, num: int, num_places: int) -> int:
        """Return the number of candidates of a job when `num` are waiting."""
        if not self._trains_together and self._mean_seconds > SHORT_S:
            return 1
        return math.ceil(num / num_places)

    def _may_share(self, first: Ticket, second: Ticket) -> bool:
        """Return whether two requests may be in one job."""
        one, other = self._request(first), self._request(second)
        # Further seeds of one graph save no training, and may be trained with the first.
        own = {"candidate": other.candidate, "repeat": other.repeat, "saves_training": other.saves_training}
        return not second.is_alone and replace(one, **own) == other

    def _request(self, ticket: Ticket) -> Request:
        """Return a request for the executor, which continues a saved training to the end."""
        if ticket.training is None or ticket.parent is not None or self._halving is None:
            return ticket.request
        return replace(ticket.request, fidelity=self._halving.max_fidelity, schedule=self._halving.max_fidelity)
