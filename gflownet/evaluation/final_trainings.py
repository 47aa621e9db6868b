"""The final stage: finalists of the search, and of random architectures, race on new seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gflownet.errors import counted
from gflownet.evaluation.claims import Store
from gflownet.evaluation.config import FinalConfig
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.execution import describe
from gflownet.evaluation.extrapolation import rank_correlation
from gflownet.evaluation.final import FinalStage, NoStore, TopArchitecture, ranked, trained
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.racing import RANDOM_REPEAT, Belief, Race
from gflownet.evaluation.store import EvaluationRecord
from gflownet.evaluation.task import Reference
from gflownet.evaluation.ticket import Request, Ticket
from gflownet.graphs.canonical import Candidate
from gflownet.training.random_states import candidate_seed

_WAIT_S = 0.2

# Receives the name of a stage, its completed and its whole work; called often.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Finalists:
    """The best of a search, or of random architectures, and the plan of their race."""

    records: Sequence[EvaluationRecord]  # best first
    prior: Callable[[float], Belief]  # noise of one training -> belief before the race
    guess: float  # noise before any repeated training
    num_trainings: int
    num_before: int = 0  # trainings of an earlier process
    offset: int = 0  # added to the numbers of the new seeds
    seconds: float = math.inf  # for trainings, summed over them


@dataclass
class _Heat:
    """A race with its trainings."""

    finalists: Finalists
    race: Race
    num_left: int  # trainings that no earlier process has done
    seconds_left: float
    rounds: Iterator[list[tuple[int, int]]] = field(init=False)
    tickets: list[list[Ticket]] = field(init=False)  # of each finalist

    def __post_init__(self) -> None:
        self.rounds = self.race.rounds()
        self.tickets = [[] for _ in self.finalists.records]

    def add(self, finalist: int, ticket: Ticket) -> None:
        """Add a finished training; nothing for an unfinished one."""
        if ticket.record is None:
            return
        self.tickets[finalist].append(ticket)
        self.race.scores[finalist].append(ticket.record.score)
        if ticket.record.status is not EvaluationStatus.OK:
            self.race.failed.add(finalist)
        if ticket.outcome is not None:
            self.num_left -= 1
            self.seconds_left -= ticket.outcome.seconds

    def architectures(self) -> list[TopArchitecture]:
        """Return the finalists with their trainings and posterior means."""
        mean = self.race.belief.mean.tolist()
        rows = zip(self.finalists.records, self.tickets, mean, strict=True)
        return [replace(trained(record, tickets), posterior=value) for record, tickets, value in rows]


@dataclass
class FinalTrainings:
    """Trains architectures on new seeds. A stop request ends it; finished trainings are in the store and the result."""

    store: Store
    build_dispatcher: Callable[[Store], Dispatcher]  # without limits of the number of evaluations
    config: FinalConfig
    from_dict: Callable[[dict[str, Any]], Candidate]  # builds a terminal object from node-link data
    step: int  # of the search
    report_line: Callable[[str], None]
    report_progress: Progress = lambda stage, done, total: None
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self._dispatcher = self.build_dispatcher(self.store)
        self._task = self._dispatcher.task
        self._notes: list[str] = []
        self._num_done = self._num_planned = 0

    @property
    def fidelity(self) -> int | None:
        """Return the epochs or steps of a training, None for the task's own evaluation."""
        return self.config.epochs or self._task.max_fidelity or None

    @property
    def has_other_length(self) -> bool:
        """Return whether these trainings are longer or shorter than those of the search."""
        return self.fidelity not in (None, self._task.max_fidelity)

    def run(
        self,
        finalists: Finalists,
        *,
        random_candidates: Sequence[Candidate] = (),
        random_finalists: Callable[[Sequence[EvaluationRecord]], Finalists | None] = lambda records: None,
        num_planned: int = 0,
    ) -> FinalStage:
        """Race the finalists of the search and those of random architectures; measure the references.

        Args:
            finalists: of the search.
            random_candidates: evaluated as in the search, with another seed.
            random_finalists: returns those of the random architectures, given their successful rows; None: no race.
            num_planned: trainings of the random architectures, for the progress; 0: one of each.
        """
        num_compared = num_planned or len(random_candidates)
        self._num_planned = finalists.num_trainings + num_compared
        compared = f"{counted(len(random_candidates), 'random architecture')}, {counted(num_compared, 'training')}"
        raced = f"{counted(len(finalists.records), 'finalist')}, {counted(finalists.num_trainings, 'training')}"
        self.report_line(f"final stage: {raced} on new seeds; {compared}")
        heat = self._heat(finalists)
        heats = [heat]
        singles = self._round(heats, [Request(candidate, repeat=RANDOM_REPEAT) for candidate in random_candidates])
        rows = [ticket.record for ticket in singles or () if ticket.record is not None]
        chosen = random_finalists([row for row in rows if row.status is EvaluationStatus.OK])
        heats += [] if chosen is None or self.is_stopped else [self._heat(chosen)]
        while not self.is_stopped and self._round(heats) is not None:
            pass
        is_complete = not self.is_stopped
        return FinalStage(
            ranked(self._with_weights(heat.architectures(), offset=finalists.offset)),
            num_seeds=self.config.num_seeds,
            fidelity=self.fidelity,
            best_random=self._best(heats[1]) if len(heats) > 1 and is_complete else None,
            num_random=len(rows),
            num_random_trainings=len(rows) + sum(each.finalists.num_trainings for each in heats[1:]),
            correlation=self._correlation(heat) if self.has_other_length else None,
            references=self._references(),
            notes=tuple(self._notes),
            is_stopped=self.is_stopped,
            is_complete=is_complete,
        )

    def _heat(self, finalists: Finalists) -> _Heat:
        race = Race(
            finalists.prior,
            len(finalists.records),
            num_trainings=finalists.num_trainings,
            num_seeds=self.config.num_seeds,
            guess=finalists.guess,
            is_shifted=self.has_other_length,
        )
        return _Heat(finalists, race, finalists.num_trainings - finalists.num_before, finalists.seconds)

    def _round(self, heats: Sequence[_Heat], singles: Sequence[Request] = ()) -> list[Ticket] | None:
        """Take the next round of each race together; return the tickets of single requests, None without any work."""
        places = [(heat, finalist, request) for heat in heats for finalist, request in self._chosen(heat)]
        if not places and not singles:
            return None
        tickets = self._complete(self._dispatcher, [request for _, _, request in places] + [*singles])
        for (heat, finalist, _), ticket in zip(places, tickets, strict=False):
            heat.add(finalist, ticket)
        self._num_done += sum(ticket.record is not None for ticket in tickets)
        return tickets[len(places) :]

    def _chosen(self, heat: _Heat) -> list[tuple[int, Request]]:
        """Return the next trainings of a race within its plan; those of earlier processes are read from the store."""
        wanted = [
            (finalist, self._request(heat.finalists.records[finalist], heat.finalists.offset, seed))
            for finalist, seed in next(heat.rounds, ())
        ]
        known = self.store.find_many([request.identity for _, request in wanted])
        num_new, chosen = min(heat.num_left, self._num_affordable(heat)), []
        for each, row in zip(wanted, known, strict=True):
            if row is not None or num_new > 0:
                chosen.append(each)
                num_new -= row is None
        return chosen

    def _num_affordable(self, heat: _Heat) -> float:
        """Return the number of trainings for which the seconds suffice."""
        records, length = heat.finalists.records, (self.fidelity or 1) / (self._task.max_fidelity or 1)
        seconds = length * math.fsum(record.seconds for record in records) / len(records)
        return math.inf if heat.seconds_left == math.inf else math.floor(heat.seconds_left / max(seconds, 1e-9))

    def _request(self, record: EvaluationRecord, offset: int, seed: int) -> Request:
        """Return the request of a new seed, from 1 on; the first one saves its training."""
        return Request(
            self.from_dict(json.loads(record.graph)),
            repeat=offset + seed,
            fidelity=self.fidelity,
            saves_training=seed == 1 and self.fidelity is not None,
            tests=True,
        )

    def _complete(self, dispatcher: Dispatcher, requests: Sequence[Request]) -> list[Ticket]:
        """Return the tickets of requests, some without a row after a stop request, and report the progress."""
        if self.is_stopped or not requests:
            return []
        tickets = dispatcher.submit(requests, step=self.step)
        try:
            while (num_done := sum(ticket.record is not None for ticket in tickets)) < len(tickets):
                self._show(num_done)
                dispatcher.advance(timeout=_WAIT_S)
            self._show(len(tickets))
        except EvaluationStoppedError:
            self.is_stopped = True
        except BaseException:
            dispatcher.close()  # gives back its claims
            raise
        dispatcher.evaluations([], step=self.step)  # writes the last rows
        return tickets

    def _show(self, num_done: int) -> None:
        num = self._num_done + num_done
        self.report_progress("final stage, trainings", num, max(num, self._num_planned))

    def _correlation(self, heat: _Heat) -> float | None:
        """Return the rank correlation of the finalists' scores in the search and on new seeds, None if undefined."""
        architectures = [each for each in heat.architectures() if each.scores and not each.errors]
        value = rank_correlation([(each.record.score, each.mean) for each in architectures])
        return None if math.isnan(value) else value

    def _best(self, heat: _Heat) -> TopArchitecture:
        """Return the winner of a race with its weights."""
        return self._with_weights(list(ranked(heat.architectures())[:1]), offset=heat.finalists.offset)[0]

    def _with_weights(self, architectures: list[TopArchitecture], *, offset: int) -> list[TopArchitecture]:
        """Repeat the first training where its row is from an earlier process, for the weights."""
        missing = [each for each in architectures if each.scores and each.weights is None and not each.errors]
        if self.fidelity is None or not missing:
            return architectures
        requests = [self._request(each.record, offset, 1) for each in missing]
        tickets = self._complete(self.build_dispatcher(NoStore()), requests)
        repeated = {each.record.key: trained(each.record, tickets) for each in missing}
        return [self._with_weights_of(each, repeated.get(each.record.key)) for each in architectures]

    def _with_weights_of(self, architecture: TopArchitecture, repeated: TopArchitecture | None) -> TopArchitecture:
        """Add the weights of a repeated training, if it reached the stored score."""
        if repeated is None or repeated.weights is None:
            return architecture
        if repeated.scores[0] != architecture.scores[0]:
            self._notes.append(
                f"weights not saved: expected the stored score {architecture.scores[0]:.6g} from the same training of "
                f"{architecture.record.hash}, got {repeated.scores[0]:.6g}"
            )
            return architecture
        return replace(architecture, weights=repeated.weights)

    def _references(self) -> tuple[Reference, ...]:
        """Return the task's references; an error becomes a note."""
        if self.is_stopped:
            return ()
        self.report_progress("final stage, references", 0, 1)
        seeds = [candidate_seed(self._dispatcher.seed, "reference", k) for k in range(1, 1 + self.config.num_seeds)]
        try:
            return tuple(self._task.references(seeds=seeds))
        except Exception as error:
            self._notes.append(f"no reference: {describe(error)}")
            return ()
