"""The final stage: finalists of the search and of random architectures race on new seeds; test scores without them."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

from torch import Tensor

from gflownet.errors import UserError, counted
from gflownet.evaluation.candidates.sets import WeightFolder
from gflownet.evaluation.candidates.tensor_task import EPOCHS
from gflownet.evaluation.config import FinalConfig
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.execution import describe
from gflownet.evaluation.job import TEST_METRIC, EvaluationFuture, EvaluationStatus, ReferenceName, Request
from gflownet.evaluation.presentation import Reference, joined
from gflownet.evaluation.racing import (
    MOST_MEASURED,
    RANDOM_REPEAT,
    NormalMeans,
    Race,
    Winner,
    rank_correlation,
    seeds_to_compare,
)
from gflownet.evaluation.store.evaluations import EvaluationRecord
from gflownet.evaluation.task import GFNTask
from gflownet.graphs.canonical import Candidate


@dataclass(frozen=True)
class TopArchitecture:
    """One of the best architectures: its row of the search, and its trainings on new seeds."""

    record: EvaluationRecord  # of the search
    scores: tuple[float, ...] = ()  # validation score of each new seed, the floor score of a failed training
    tests: tuple[float | None, ...] = ()  # test score of each new seed; without new seeds, of the seed of the search
    errors: tuple[str, ...] = ()  # of failed trainings
    test_error: str | None = None  # of the first missing test score
    weights: Mapping[str, Tensor] | None = None  # after the training on the first new seed
    posterior: float | None = None  # mean score given the search and the seeds of the choice, by which it is ranked
    num_choice: int = 0  # first new seeds, by which it was chosen: the later ones measure it

    @property
    def measured(self) -> tuple[float, ...]:
        """Return the scores of the new seeds without a part in its choice; of one that was not chosen, all."""
        return self.scores[self.num_choice :] or self.scores

    @property
    def measured_tests(self) -> tuple[float | None, ...]:
        """Return the test scores of the same seeds."""
        return self.tests[self.num_choice :] or self.tests

    @property
    def mean(self) -> float:
        """Return the mean validation score of the new seeds; without new seeds, the score of the search."""
        return math.fsum(self.measured) / len(self.measured) if self.scores else self.record.score

    @property
    def test(self) -> float | None:
        """Return the mean test score, None without one."""
        tests = [test for test in self.measured_tests if test is not None]
        return math.fsum(tests) / len(tests) if tests else None


@dataclass(frozen=True)
class Sizes:
    """Caps of a metric, each with finalists of its own: those above the cap before."""

    metric: str
    caps: tuple[float, ...]  # increasing

    def groups(self, architectures: Iterable[TopArchitecture]) -> list[int]:
        """Return the number of the smallest cap above each architecture."""
        return [bisect_left(self.caps, each.record.metrics[self.metric]) for each in architectures]

    def best(self, architectures: Sequence[TopArchitecture], cap: float) -> int | None:
        """Return the rank of the first architecture at or below a cap with trainings, none of them failed."""
        complete = ((rank, each) for rank, each in enumerate(architectures) if each.scores and not each.errors)
        return next((rank for rank, each in complete if each.record.metrics[self.metric] <= cap), None)


@dataclass(frozen=True)
class FinalStage:
    """Result of the final stage."""

    top: tuple[TopArchitecture, ...]  # best posterior mean first
    num_seeds: int
    fidelity: int | None  # epochs or steps of the trainings; None: the task's own evaluation
    random_top: tuple[TopArchitecture, ...] = ()  # finalists of random architectures, best posterior mean first
    num_trainings: int = 0  # of the run, search and final stage
    num_random: int = 0  # evaluated random architectures, of which `random_top` are the best
    even_share: float = 0.0  # of them, drawn evenly over sizes
    num_random_trainings: int = 0  # of them, their race included
    correlation: float | None = None  # of ranks in the search and here, where the trainings have another length
    references: tuple[Reference, ...] = ()
    notes: tuple[str, ...] = ()  # lines for the user
    is_stopped: bool = False  # by a stop request
    is_complete: bool = True  # whether no stop request has ended the race
    sizes: Sizes | None = None  # with two objectives, the second one a cost: finalists were chosen for each of its caps


def check_final(config: FinalConfig, task: GFNTask) -> None:
    """Raise UserError for a number of epochs where trainings have none."""
    if config.epochs is not None and not task.max_fidelity:
        raise UserError(
            f"final.epochs: expected null with {type(task).__name__}, whose evaluations have no number of epochs or "
            f"steps, got {config.epochs}"
        )


def ranked(architectures: Iterable[TopArchitecture]) -> tuple[TopArchitecture, ...]:
    """Return the architectures by posterior mean, best first; ties go to the smaller model, then to the earlier row.

    Architectures without a new seed come last.
    """

    def key(architecture: TopArchitecture) -> tuple[bool, float, float]:
        value = architecture.mean if architecture.posterior is None else architecture.posterior
        return not architecture.scores, *_rank(value, architecture.record)

    return tuple(sorted(architectures, key=key))


def _rank(mean: float, record: EvaluationRecord) -> tuple[float, float]:
    """Return the key of a mean score, rounded so that the order of a sum does not break a tie."""
    return -round(mean, 12), math.inf if record.num_parameters is None else record.num_parameters


def with_test_scores(
    records: Sequence[EvaluationRecord],
    *,
    dispatcher: Dispatcher,
    from_dict: Callable[[dict[str, Any]], Candidate],
    step: int,
) -> tuple[TopArchitecture, ...]:
    """Return the architectures of rows with their test scores on the seed of the search, trained again with it.

    Raises:
        EvaluationStoppedError: a stop request.
    """
    task = dispatcher.task
    if not task.has_test:
        return tuple(TopArchitecture(record) for record in records)
    fidelity = task.max_fidelity or None
    requests = [Request(from_dict(json.loads(record.graph)), fidelity=fidelity, tests=True) for record in records]
    try:
        futures = dispatcher.complete(requests, step=step)
    except EvaluationStoppedError:
        raise
    except Exception as error:  # of the executor: the report is written without test scores
        return tuple(TopArchitecture(record, test_error=describe(error)) for record in records)
    outcomes = [future.outcome for future in futures]
    return tuple(
        TopArchitecture(record, tests=(outcome.test,), test_error=outcome.test_error or outcome.error)
        for record, outcome in zip(records, outcomes, strict=True)
        if outcome is not None
    )


_OK = EvaluationStatus.OK
_WAIT_S = 0.2
# Seeds of one finalist that train side by side: of four, each takes .36 to .7 of its time alone.
_SEEDS_AT_ONCE = 4

# Receives the name of a stage, its completed and its whole work, and the rows of all finished trainings; called often.
FinalProgress = Callable[[str, int, int, Sequence[EvaluationRecord]], None]


@dataclass(frozen=True)
class Finalists:
    """The best of a search, or of random architectures, and the plan of their race."""

    records: Sequence[EvaluationRecord]  # best first
    prior: Callable[[float], NormalMeans]  # noise of one training -> mean scores before the race
    guess: float  # noise before any repeated training
    num_trainings: int  # of the race, and of the comparison of its winner
    num_choice: int = 0  # of these for the race
    num_before: int = 0  # trainings of an earlier process
    offset: int = 0  # added to the numbers of the new seeds
    seconds: float = math.inf  # for trainings, summed over them


@dataclass
class _RaceTrainings:
    """The trainings of a race, and of the comparison of its winner."""

    finalists: Finalists
    race: Race
    graphs: Sequence[Candidate]  # of the finalists
    num_left: int  # trainings that no earlier process has done
    seconds_left: float
    rounds: Iterator[list[tuple[int, int]]] = field(init=False)
    # The current one: finalists and their trainings.
    round: list[tuple[int, EvaluationFuture]] = field(default_factory=list)
    is_over: bool = False
    futures: list[list[EvaluationFuture]] = field(init=False)  # of each finalist
    means: NormalMeans | None = None  # when the winner was chosen; None before
    winner: int = 0  # the chosen finalist
    num_choice: int = 0  # its trainings before

    def __post_init__(self) -> None:
        self.rounds = self.race.rounds()
        self.futures = [[] for _ in self.finalists.records]

    def all_futures(self) -> Iterator[EvaluationFuture]:
        """Yield the trainings so far."""
        yield from chain(*self.futures)
        yield from (future for _, future in self.round)

    def end_round(self) -> None:
        """Add the finished trainings of the round."""
        for finalist, future in self.round:
            if future.record is None:
                continue
            self.futures[finalist].append(future)
            self.race.scores[finalist].append(future.record.score)
            if future.record.status is not EvaluationStatus.OK:
                self.race.failed.add(finalist)
            if future.outcome is not None:
                self.num_left -= 1
                self.seconds_left -= future.outcome.seconds
        self.round = []

    def choose(self) -> Winner:
        """Choose the finalist with the best posterior mean, one with a failed training last; ties as in `ranked`."""
        self.means = means = self.race.means
        self.winner = min(range(len(self.race)), key=self.key)
        self.num_choice = len(self.race.scores[self.winner])
        return Winner(float(means.mean[self.winner]), float(means.std[self.winner]), self.race.noise)

    def key(self, finalist: int) -> tuple[bool, float, float]:
        """Return the rank of a finalist among others of its side, before its winners are compared."""
        mean = float((self.means or self.race.means).mean[finalist])
        return finalist in self.race.failed, *_rank(mean, self.finalists.records[finalist])

    def size(self, sizes: Sizes | None) -> float:
        """Return the cost of the winner, 0 without ranges."""
        return self.finalists.records[self.winner].metrics[sizes.metric] if sizes else 0.0

    def architectures(self, weights: WeightFolder | None) -> Iterator[TopArchitecture]:
        """Yield the finalists with their trainings, the kept weights of the first, and posterior means."""
        means = (self.means or self.race.means).mean.tolist()
        for finalist, (record, futures, mean) in enumerate(
            zip(self.finalists.records, self.futures, means, strict=True)
        ):
            rows = [future.record for future in futures if future.record is not None]
            problems = (future.outcome.test_error for future in futures if future.outcome is not None)
            yield TopArchitecture(
                record,
                scores=tuple(row.score for row in rows),
                tests=tuple(row.metrics.get(TEST_METRIC) for row in rows),
                errors=tuple(row.error or row.status.value for row in rows if row.status is not EvaluationStatus.OK),
                test_error=next(filter(None, problems), None),
                weights=weights.read(rows[0]) if weights is not None and rows else None,
                posterior=mean,
                num_choice=self.num_choice if finalist == self.winner else 0,
            )


def _pairs(
    races: Sequence[_RaceTrainings], others: Sequence[_RaceTrainings], sizes: Sizes | None
) -> list[tuple[int | None, int | None]]:
    """Return the races of both sides that have the best winner within each cap, the largest cap first."""

    def best(side: Sequence[_RaceTrainings], cap: float) -> int | None:
        keys = {place: each.key(each.winner) for place, each in enumerate(side) if each.size(sizes) <= cap}
        return min(keys, key=lambda place: keys[place], default=None)

    caps = [math.inf] if sizes is None else reversed(sizes.caps)
    return list(dict.fromkeys((best(races, cap), best(others, cap)) for cap in caps))


@dataclass
class FinalTrainings:
    """Trains architectures on new seeds. A stop request ends it; finished trainings are in the store and the result."""

    dispatcher: Dispatcher  # without limits of the number of evaluations
    references: Dispatcher  # of the reference methods, which have no rows
    config: FinalConfig
    from_dict: Callable[[dict[str, Any]], Candidate]  # builds a terminal object from node-link data
    report_line: Callable[[str], None]
    report_progress: FinalProgress = lambda stage, done, total, rows: None
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self._task = self.dispatcher.task
        self._notes: list[str] = []
        self._singles: list[EvaluationFuture] = []  # of random architectures
        self._methods: list[EvaluationFuture] = []  # of each reference method and seed

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
        finalists: Sequence[Finalists],
        *,
        step: int,
        random_finalists: Callable[[Sequence[EvaluationRecord]], Sequence[Finalists]] = lambda records: (),
        num_planned: int = 0,
        sizes: Sizes | None = None,
    ) -> FinalStage:
        """Race the finalists of the search and of random architectures, then compare the winners on further seeds.

        Comes after `begin`. `sizes`: there is a race for each range; None: one. `random_finalists` returns the races of
        the successful random candidates. `num_planned` are their trainings; 0: one of each. `step` is that of the
        search.
        """
        num_random = len(self._singles)
        num_compared, num_own = num_planned or num_random, sum(each.num_trainings for each in finalists)
        compared = f"{counted(num_random, 'random architecture')}, {counted(num_compared, 'training')}"
        num_finalists = sum(len(each.records) for each in finalists)
        raced = f"{counted(num_finalists, 'finalist')}, {counted(num_own, 'training')}"
        self.report_line(f"final stage: {raced} on new seeds; {compared}")
        races, random_races = list(map(self._race, finalists)), list[_RaceTrainings]()
        is_drawn = is_chosen = False  # whether the random finalists, and the winners of all races, are known
        while not self.is_stopped:
            if not is_drawn and all(future.record is not None for future in self._singles):
                chosen, is_drawn = random_finalists([row for row in self._random_rows() if row.status is _OK]), True
                random_races += map(self._race, chosen)
            is_missing = self._proceed([*races, *random_races], step, num_own + num_compared)
            if is_drawn and not is_chosen and all(race.is_over for race in (*races, *random_races)):
                self._compare(races, random_races, step, sizes)
                is_missing = is_chosen = True
            if not is_missing and is_chosen:
                break
            self.advance(timeout=_WAIT_S)
        for race in (*races, *random_races):
            race.end_round()
        for dispatcher in (self.dispatcher, self.references):
            dispatcher.flush()
        rows, is_complete, weights = self._random_rows(), not self.is_stopped, self.dispatcher.weights
        sides = (races, random_races)
        top, random_top = ([each for race in side for each in race.architectures(weights)] for side in sides)
        complete = [each for each in top if each.scores and not each.errors] if self.has_other_length else []
        correlation = rank_correlation([(each.record.score, each.mean) for each in complete])
        return FinalStage(
            ranked(top),
            num_seeds=self.config.num_seeds,
            fidelity=self.fidelity,
            random_top=ranked(random_top) if is_complete else (),
            num_random=len(rows),
            num_random_trainings=len(rows) + sum(each.race.num_done for each in random_races),
            correlation=None if math.isnan(correlation) else correlation,
            references=self._references(),
            notes=tuple(self._notes),
            is_stopped=self.is_stopped,
            is_complete=is_complete,
        )

    def _random_rows(self) -> list[EvaluationRecord]:
        return [future.record for future in self._singles if future.record is not None]

    def _race(self, finalists: Finalists) -> _RaceTrainings:
        race = Race(
            finalists.prior,
            len(finalists.records),
            num_trainings=finalists.num_choice,
            num_seeds=self.config.num_seeds,
            guess=finalists.guess,
            num_at_once=_SEEDS_AT_ONCE if self._task.trains_seeds_together else 1,
            is_shifted=self.has_other_length,
        )
        graphs = [self.from_dict(json.loads(record.graph)) for record in finalists.records]
        num_left = finalists.num_trainings - finalists.num_before
        return _RaceTrainings(finalists, race, graphs, num_left, finalists.seconds)

    def _compare(
        self, races: Sequence[_RaceTrainings], others: Sequence[_RaceTrainings], step: int, sizes: Sizes | None
    ) -> None:
        """Choose the winner of each race, and start the trainings that compare the best of both sides."""
        sides = races, others
        winners = [[race.choose() for race in side] for side in sides]
        num_left = [max(sum(each.finalists.num_trainings - each.race.num_done for each in side), 0) for side in sides]
        most = MOST_MEASURED * self.config.num_seeds
        counts = seeds_to_compare(winners, _pairs(races, others, sizes), num_left, most=most)
        for side, numbers in zip(sides, counts, strict=True):
            wanted = sorted(
                (seed, place, race.num_choice + seed)
                for place, (race, number) in enumerate(zip(side, numbers, strict=True))
                for seed in range(1, number + 1)
            )
            trainings = [(side[place], side[place].winner, seed) for _, place, seed in wanted]
            chosen = self._affordable(trainings, side)
            futures = self.dispatcher.submit([request for *_, request in chosen], step=step)
            for (race, finalist, _), future in zip(chosen, futures, strict=True):
                race.round.append((finalist, future))

    def _proceed(self, races: Sequence[_RaceTrainings], step: int, num_planned: int) -> bool:
        """Start the next round of each race whose last one is finished; return whether any result is missing.

        The races do not wait for each other.
        """
        for race in races:
            while not race.is_over and all(future.record is not None for _, future in race.round):
                race.end_round()
                trainings = [(race, finalist, seed) for finalist, seed in next(race.rounds, ())]
                chosen = self._affordable(trainings, [race])
                futures = self.dispatcher.submit([request for *_, request in chosen], step=step)
                race.round = [(finalist, future) for (_, finalist, _), future in zip(chosen, futures, strict=True)]
                race.is_over = not chosen
        futures = [*self._singles, *(future for race in races for future in race.all_futures())]
        rows = [future.record for future in futures if future.record is not None]
        methods = self._methods
        num_done, is_missing = sum(future.record is not None for future in methods), len(rows) < len(futures)
        if is_missing or num_done == len(methods):
            self.report_progress("final stage, trainings", len(rows), max(len(rows), num_planned), rows)
        else:
            self.report_progress("final stage, references", num_done, len(methods), rows)
        return is_missing or num_done < len(methods)

    def _affordable(
        self, trainings: Sequence[tuple[_RaceTrainings, int, int]], races: Sequence[_RaceTrainings]
    ) -> list[tuple[_RaceTrainings, int, Request]]:
        """Return trainings within the plan of races: a race, the number of a finalist, and its seed each.

        The store has those of earlier processes.
        """
        length = self.fidelity
        wanted = [
            (
                race,
                finalist,
                Request(race.graphs[finalist], repeat=race.finalists.offset + seed, fidelity=length, tests=True),
            )
            for race, finalist, seed in trainings
        ]
        known = self.dispatcher.store.find_many([request.identity for *_, request in wanted])
        records = [record for race in races for record in race.finalists.records]
        whole = self._task.max_fidelity or 1  # epochs or steps in the search; fewer with inherited weights
        seconds = math.fsum(each.seconds * whole / each.metrics.get(EPOCHS, whole) for each in records)
        seconds *= (length or 1) / whole / max(len(records), 1)
        num_left, seconds_left = sum(race.num_left for race in races), sum(race.seconds_left for race in races)
        num_new, chosen = min(num_left, seconds_left / max(seconds, 1e-9)), []
        for each, row in zip(wanted, known, strict=True):
            if row is not None or num_new >= 1:
                chosen.append(each)
                num_new -= row is None
        return chosen

    def begin(self, random_candidates: Callable[[], Sequence[Candidate]], *, step: int) -> None:
        """Start what depends on no result of the search: the reference methods, and random candidates.

        Random candidates are trained as in the search, with another seed. `step` is that of their rows.
        """
        try:
            names = [ReferenceName(method.name) for method in self._task.reference_methods()]
        except Exception as error:
            names = []
            self._notes.append(f"no reference: {describe(error)}")
        seeds = range(1, 1 + self.config.num_seeds)
        requests = [Request(name, repeat=k) for name in names for k in seeds]
        self._methods = self.references.submit(requests, step=step)
        requests = [Request(candidate, repeat=RANDOM_REPEAT) for candidate in random_candidates()]
        self._singles = self.dispatcher.submit(requests, step=step)

    def advance(self, *, timeout: float = 0.0) -> None:
        """Wait for a finished training, and start the next ones."""
        try:
            if self.dispatcher.num_in_flight:
                self.dispatcher.advance(timeout=timeout)
            if self.references.num_in_flight:
                self.references.advance(timeout=0.0 if self.dispatcher.num_in_flight else timeout)
        except BaseException as error:
            self.dispatcher.close()  # gives back its claims
            self.references.close()
            if not isinstance(error, EvaluationStoppedError):
                raise
            self.is_stopped = True

    def _references(self) -> tuple[Reference, ...]:
        """Return the results of the reference methods; an error becomes a note."""
        if self.is_stopped:
            return ()
        references = list[Reference]()
        for name, futures in groupby(self._methods, lambda future: future.request.candidate.canonical_key()):
            outcomes = [future.outcome for future in futures if future.outcome is not None]
            results = [outcome.reference for outcome in outcomes if outcome.reference is not None]
            if failed := next((outcome for outcome in outcomes if outcome.reference is None), None):
                self._notes.append(f"no reference {name}: {failed.error or failed.status.value}")
            elif any(result.name for result in results):
                references.append(joined(results))
        return tuple(references)
