"""The dispatcher: the only caller of executors. Groups, deduplicates, retries and records evaluations."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from gflownet.errors import UserError, counted
from gflownet.evaluation.budget import Budget, Reserve
from gflownet.evaluation.candidates.sets import ParentWeights, WeightFolder
from gflownet.evaluation.config import BudgetConfig, EvaluationConfig
from gflownet.evaluation.evaluator import AsynchronousEvaluator
from gflownet.evaluation.executors.base import EvaluationInterruptedError, Executor, Handle
from gflownet.evaluation.job import Deadlines, EvaluationFuture, EvaluationStatus, JobQueue, Outcome, Request, record_of
from gflownet.evaluation.presentation import words_of
from gflownet.evaluation.store.claims import Claims, Store
from gflownet.evaluation.store.evaluations import EvaluationRecord, Identity
from gflownet.evaluation.task import GFNTask

# Records of less work than this, seconds, are written together, because a write waits for the disk.
_WRITE_AFTER_S = 0.1
# Time between two looks for slow jobs, seconds.
_SLOW_EVERY_S = 1.0
_SLOW_SHARE = 1 / 3  # of the measured deadline, after which a job is worth a line
_DECAY = 0.9  # of the moving average of durations
_HASH_LENGTH = 11  # of a candidate in a line, with its version, as in g1-
# Jobs given to the executor per place, so that a process has its next job while the policy trains.
_JOBS_PER_PLACE = 2
# Reason of an EvaluationStoppedError after a signal.
STOP_REQUEST = "stop request"
# Shortest and longest time between two looks at graphs that other processes evaluate, seconds.
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.02, 0.5
_log = logging.getLogger(__name__)
LEASE = 60.0  # seconds without a sign of life after which another run takes over a claimed evaluation
MAX_ATTEMPTS = 2  # of a candidate that crashes, times out, or lacks memory or a connection
# Evaluations during which the main process may end before a graph is recorded as CRASHED.
_MIN_LOST = 2


class EvaluationStoppedError(Exception):
    """The evaluation ended early: a stop request or a spent budget. Finished candidates are in the store."""


class Dispatcher(AsynchronousEvaluator):
    """Evaluates each graph once; every result is in the store before it is returned.

    Thread-safe. A job that loses its process is split into single candidates; a single one is retried up to
    MAX_ATTEMPTS times, then recorded with its status and never evaluated again.
    """

    def __init__(
        self,
        task: GFNTask,
        store: Store,
        executor: Executor,
        *,
        config: EvaluationConfig,
        seed: int,
        run: str = "",
        budget: BudgetConfig | None = None,
        reserve: Reserve | None = None,
        num_evaluated: int = 0,
        seconds: float = 0.0,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keep the components; nothing is started.

        The executor is closed by its owner. Candidates get their seeds from that of the run, whose id is the same after
        a resume. `budget` are limits, of which `reserve` is for the final stage; `num_evaluated` and `seconds` are
        those so far.

        Raises:
            UserError: the budget limits the size of candidates, and the task has no `cost`.
        """
        self.task, self.store, self.executor, self.config = task, store, executor, config
        self.seed, self.run = seed, run
        used = {"num_evaluated": num_evaluated, "seconds": seconds}
        self.budget = Budget(budget or BudgetConfig(), reserve=reserve, **used)
        self.budget.check_task(task)
        self.counts: Counter[str] = Counter()
        self.evaluation_seconds = 0.0  # of all finished attempts
        self.revise: Callable[[EvaluationRecord], EvaluationRecord] = lambda record: record  # a row before it is kept
        self.on_result: Callable[[EvaluationRecord], None] = lambda record: None  # called when a row is written
        self.weights: WeightFolder | None = None  # of full trainings, written before their rows
        self.parents: ParentWeights | None = None  # of trainings whose weights others inherit
        self.watch: Callable[[], None] = lambda: None  # called in the main thread while results are awaited
        self._stopped = stopped
        self._futures: dict[Identity, EvaluationFuture] = {}
        self._waiting: deque[EvaluationFuture] = deque()  # for a place in budget.evaluations
        self._jobs, self._deadlines = JobQueue(task, seed=seed), Deadlines(config.deadline)
        self.mean_seconds = 0.0  # per evaluation, moving average; 0 before the first
        self._end: str | None = None  # reason of the end
        # Two evaluations of a cheap task cost less than one claim.
        claims = Claims(store, run=run, lease=LEASE, max_attempts=MAX_ATTEMPTS, counts_lost=not executor.isolates)
        self._claims = None if task.is_cheap else claims
        self._elsewhere: dict[Identity, EvaluationFuture] = {}  # claimed by other processes
        self._last_look, self._look_pause = -math.inf, _SHORTEST_LOOK_S
        self._running: dict[Handle, list[EvaluationFuture]] = {}
        self._unwritten: list[EvaluationRecord] = []
        self._last_write = self._last_look_at_running = time.monotonic()
        self._lock = threading.RLock()

    def submit(self, requests: Sequence[Request], *, step: int) -> list[EvaluationFuture]:
        with self._lock:
            self.flush()  # `find_many` below has to see every result
            unique = {request.identity: request for request in requests}
            records = dict(zip(unique, self.store.find_many(list(unique)), strict=True))
            self.budget.start()
            result = {identity: future for identity in unique if (future := self._futures.get(identity))}
            new = [request for identity, request in unique.items() if identity not in result]
            futures = [EvaluationFuture(request, step, record=records[request.identity]) for request in new]
            for future in futures:
                result[future.request.identity] = future
                self._enter(future)
            self._start_jobs()
            return [result[request.identity] for request in requests]

    def advance(self, *, timeout: float | None) -> int:
        with self._lock:
            self._admit()
            if (reason := self._due_reason()) is not None:
                self._stop(reason)
            num = self._look_elsewhere()
            if self._elsewhere and not num and not self._running and not self._jobs:
                time.sleep(self._look_pause if timeout is None else min(timeout, self._look_pause))
            try:
                done = self.executor.wait(list(self._running), timeout=timeout) if self._running else []
            except EvaluationInterruptedError:
                for handle, futures in self._running.items():
                    for future, outcome in zip(futures, handle.outcomes or (), strict=False):
                        if not outcome.is_transient:
                            self._record(future, outcome)
                self._stop(self._due_reason() or "interrupt")
            except BaseException:  # an interrupt during an inline evaluation
                self.flush()
                raise
            num += sum(self._finish(handle) for handle in done)
            if time.monotonic() - self._last_look_at_running >= _SLOW_EVERY_S:
                self._warn_of_slow()
            if time.monotonic() - self._last_write >= _WRITE_AFTER_S:
                self.flush()
            self._start_jobs()
            if threading.current_thread() is threading.main_thread():
                self.watch()
            return num

    def uncount(self, status: EvaluationStatus) -> None:
        """Take back the count of an evaluation that a further request continues."""
        with self._lock:
            self.counts[f"num_{status.value}"] -= 1
            self.budget.num_evaluated -= 1

    def cancel(self) -> None:
        """End all running jobs and forget all unfinished requests; finished ones are written."""
        with self._lock:
            if self.executor.isolates and self._running:  # jobs that are done, but not collected yet
                with suppress(UserError):
                    for handle in self.executor.wait(list(self._running), timeout=0.0):
                        self._finish(handle)
            for handle in self._running:
                self.executor.cancel(handle)
            self._running.clear()
            self._jobs.clear()
            self._waiting.clear()
            self._futures.clear()
            self._elsewhere.clear()
            try:
                self.flush()
            finally:  # a thread renews the claims until they are released
                if self._claims is not None:
                    self._claims.release()

    def close(self) -> None:
        """Cancel; without an error if the store cannot be written."""
        with suppress(UserError):
            self.cancel()

    @property
    def num_in_flight(self) -> int:
        return len(self._futures)

    def _enter(self, future: EvaluationFuture) -> None:
        """Queue the future of a graph that is not in flight, unless it is known or too large."""
        record = future.record
        is_open = (
            record is None
            or record.status is EvaluationStatus.REFUSED  # by an earlier, smaller budget
            or record.may_be_retried(run=self.run, max_attempts=MAX_ATTEMPTS)
        )
        outcome = self.budget.refusal(self.task, future.request.candidate) if is_open else None
        if record is not None and (not is_open or outcome is not None):
            return
        is_own = record is not None and record.run == self.run and record.status is not EvaluationStatus.REFUSED
        future.is_repeated = is_own
        future.record = None
        self._futures[future.request.identity] = future
        if outcome is None and future.request.parent is not None:
            self._waiting.appendleft(future)  # in the place of the training that it continues
        elif outcome is None:
            self._waiting.append(future)
        else:
            self._record(future, outcome)

    def _due_reason(self) -> str | None:
        if self._end is not None:
            return self._end
        if self._stopped():
            return STOP_REQUEST
        is_spent = self._waiting and len(self._waiting) == len(self._futures)
        return self.budget.spent_evaluations() if is_spent else self.budget.spent_seconds()

    def _stop(self, reason: str) -> NoReturn:
        self._end = reason
        self.cancel()
        raise EvaluationStoppedError(reason)

    def _admit(self) -> None:
        admitted = []
        while self._waiting and self.budget.num_left(len(self._futures) - len(self._waiting)) > 0:
            admitted.append(self._waiting.popleft())
        self._claim(admitted)

    def _claim(self, futures: Sequence[EvaluationFuture]) -> None:
        if self._claims is None or not futures:
            self._count_repeated(futures)
            self._jobs.extend(futures)
            return
        pairs = [(future.request.candidate, future.request.identity) for future in futures]
        granted = self._claims.take(pairs, step=futures[0].step)
        for future in futures:
            identity = future.request.identity
            attempts = granted.get(identity)
            if attempts is None:
                if identity not in self._elsewhere:
                    self._elsewhere[identity], self._look_pause = future, _SHORTEST_LOOK_S
                continue
            self._elsewhere.pop(identity, None)
            self._count_repeated([future])
            future.attempts, future.is_suspect, future.is_alone = attempts, attempts > 0, attempts > 0
            if not self.executor.isolates and attempts >= max(MAX_ATTEMPTS, _MIN_LOST):
                error = f"the process of the run ended in each of {attempts} evaluations of this graph"
                self._record(future, Outcome(EvaluationStatus.CRASHED, 0.0, error=error, is_transient=True))
            else:
                self._jobs.extend([future])

    def _count_repeated(self, futures: Sequence[EvaluationFuture]) -> None:
        """Count another attempt of an evaluation of this run as the same evaluation."""
        self.budget.num_evaluated -= sum(future.is_repeated for future in futures)
        for future in futures:
            future.is_repeated = False

    def _look_elsewhere(self) -> int:
        """Take the results of other processes, claim what they lost, and return the number of results."""
        if not self._elsewhere or time.monotonic() - self._last_look < self._look_pause:
            return 0
        before, self._look_pause = self._look_pause, min(2 * self._look_pause, _LONGEST_LOOK_S)
        self._last_look = time.monotonic()
        futures = list(self._elsewhere.values())
        for future, record in zip(futures, self.store.find_many(list(self._elsewhere)), strict=True):
            future.record = record
        for future in futures:
            if future.record is not None:
                del self._elsewhere[future.request.identity], self._futures[future.request.identity]
        self._claim(list(self._elsewhere.values()))
        if self._elsewhere and before < self._look_pause == _LONGEST_LOOK_S:
            _log.warning("waiting for %s of another run", counted(len(self._elsewhere), "evaluation"))
        return sum(future.record is not None for future in futures)

    def _start_jobs(self) -> None:
        self._admit()
        while self._jobs and len(self._running) < _JOBS_PER_PLACE * self.executor.capacity:
            if self._jobs[0].is_suspect:
                if len(self._running) >= self.executor.capacity:
                    return  # if it ends this process too, it alone is to blame
                self.flush()
                if self._claims is not None:
                    self._claims.start(self._jobs[0].request.identity)
            job, futures = self._jobs.pop_job(self.executor.capacity)
            if None in (job.fidelity, job.schedule):  # no part of a training
                seeds = {each.request.repeat for each in futures}
                job = replace(job, returns_weights=any(keeper.keeps(s) for keeper in self._keepers for s in seeds))
            deadline = self._deadlines.of(futures, num_running=self._num_running)
            self._running[self.executor.submit(job, deadline=deadline)] = futures

    def _finish(self, handle: Handle) -> int:
        """Record the outcomes of a done job, or queue its candidates again; return the number of finished ones."""
        futures = self._running.pop(handle)
        assert handle.outcomes is not None
        if len(futures) - handle.num_finished > 1:
            self._jobs.repeat_alone(futures[handle.num_finished :], first=True)
            futures = futures[: handle.num_finished]
        finished = 0
        for future, outcome in zip(futures, handle.outcomes, strict=False):
            future.attempts += 1
            self.evaluation_seconds += outcome.seconds
            if outcome.is_transient and future.attempts < MAX_ATTEMPTS:
                self.counts["num_retried"] += 1
                self._jobs.repeat_alone([future])
                continue
            self._record(future, outcome)
            finished += 1
        return finished

    def _warn_of_slow(self) -> None:
        """Log a line for each candidate that takes much longer than others."""
        self._last_look_at_running = time.monotonic()
        for handle, futures in self._running.items():
            slow = _SLOW_SHARE * self._deadlines.measured(futures, num_running=self._num_running)
            if handle.since is not None and (seconds := self._last_look_at_running - handle.since) >= slow:
                handle.since = None  # one line
                name = futures[0].request.candidate.canonical_hash()[:_HASH_LENGTH]
                words = f"candidate {name}" if len(futures) == 1 else counted(len(futures), "candidate")
                _log.warning("%s: no result for %.3g s, unlike most (evaluation.deadline)", words, seconds)

    @property
    def _keepers(self) -> list[WeightFolder | ParentWeights]:
        return [each for each in (self.weights, self.parents) if each is not None]

    @property
    def _num_running(self) -> int:
        return sum(map(len, self._running.values()))

    def _record(self, future: EvaluationFuture, outcome: Outcome) -> None:
        future.outcome = outcome
        is_scored = outcome.status is EvaluationStatus.OK and outcome.score is not None
        words = words_of(self.task, future.request.candidate) if is_scored else ""
        record = record_of(future, outcome, run=self.run, floor_score=self.config.floor_score, words=words)
        if outcome.status is not EvaluationStatus.REFUSED:
            self.mean_seconds = _DECAY * (self.mean_seconds or outcome.seconds) + (1 - _DECAY) * outcome.seconds
        if outcome.status is EvaluationStatus.OK:
            self._deadlines.add(future.request, outcome.seconds)
        record = future.record = self.revise(record)
        if outcome.weights is not None:
            for keeper in self._keepers:
                keeper.add(record, outcome.weights)
            future.outcome = replace(outcome, weights=None)
        self._unwritten.append(record)
        del self._futures[future.request.identity]
        self.counts[f"num_{record.status.value}"] += 1
        self.budget.num_evaluated += record.status is not EvaluationStatus.REFUSED

    def flush(self) -> None:
        with self._lock:
            records = self._unwritten
            if records:
                self.store.add(records)  # an error leaves them for the next attempt
                self._unwritten = []
                if self._claims is not None:
                    self._claims.finish([record.identity for record in records])
            for record in records:
                self.on_result(record)
            self._last_write = time.monotonic()
