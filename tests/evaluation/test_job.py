"""The queue of evaluations: seeds of one graph share a job, whatever else is queued."""

import math
from dataclasses import replace

import pytest

from gflownet.evaluation.job import Deadlines, EvaluationFuture, JobQueue, Request
from gflownet.evaluation.racing import RANDOM_REPEAT
from tests.evaluation.candidates import StubCandidate, StubTask


class SeedsTask(StubTask):
    trains_seeds_together = True  # pyright: ignore[reportAssignmentType]


def queue_of(
    graphs: str, *, num_seeds: int, task_class: type[StubTask] = SeedsTask
) -> tuple[JobQueue, list[EvaluationFuture]]:
    queue = JobQueue(task_class({}), seed=0)
    requests = [Request(StubCandidate(key), repeat=2 + k, fidelity=3) for key in graphs for k in range(num_seeds)]
    futures = [EvaluationFuture(request, 0) for request in requests]
    queue.extend(futures)
    return queue, futures


def jobs_of(queue: JobQueue, *, num_places: int) -> list[tuple[str, int]]:
    """Return the graph and the number of seeds of each job."""
    jobs = []
    while queue:
        job, futures = queue.pop_job(num_places)
        (key,) = {future.request.candidate.canonical_key() for future in futures}
        assert len(set(job.seeds)) == len(futures)
        jobs.append((key, len(futures)))
    return jobs


@pytest.mark.parametrize("num_places", [1, 2, 8])
def test_seeds_of_a_graph_share_a_job_whatever_else_is_queued(num_places: int):
    queue, _ = queue_of("abc", num_seeds=4)
    keys = [StubCandidate(key).canonical_key() for key in "abc"]
    assert jobs_of(queue, num_places=num_places) == [(key, 4) for key in keys]


def test_seeds_of_a_finalist_and_of_its_random_twin_train_in_two_jobs():
    queue, _ = queue_of("a", num_seeds=3)
    request = Request(StubCandidate("a"), repeat=RANDOM_REPEAT + 1, fidelity=3)
    queue.extend([EvaluationFuture(request, 0), EvaluationFuture(replace(request, repeat=RANDOM_REPEAT + 2), 0)])
    assert [num for _, num in jobs_of(queue, num_places=1)] == [3, 2]


def test_seeds_train_alone_after_a_lost_job_and_without_a_task_for_it():
    queue, futures = queue_of("a", num_seeds=3)
    queue.pop_job(1)
    queue.repeat_alone(futures)
    assert [num for _, num in jobs_of(queue, num_places=1)] == [1, 1, 1]
    queue, _ = queue_of("a", num_seeds=3, task_class=StubTask)
    assert [num for _, num in jobs_of(queue, num_places=1)] == [1, 1, 1]


def test_first_seed_saves_its_training_in_a_separate_job():
    queue, _ = queue_of("a", num_seeds=2)
    queue.extend([EvaluationFuture(Request(StubCandidate("a"), repeat=9, fidelity=3, saves_training=True), 0)])
    assert [num for _, num in jobs_of(queue, num_places=1)] == [2, 1]


def test_deadline_is_thirty_medians_between_its_bounds():
    deadlines, futures = (
        Deadlines(600.0),
        {n: [EvaluationFuture(Request(StubCandidate("a"), fidelity=n), 0)] for n in (3, 9, None)},
    )
    assert deadlines.of(futures[3]) == 600.0
    for seconds in (5.0, 1.0, 2.0, 0.1):
        deadlines.add(Request(StubCandidate("a"), fidelity=3), seconds)
    deadlines.add(Request(StubCandidate("a"), fidelity=9), 0.1)
    assert [deadlines.of(each) for each in futures.values()] == [30.0, 30.0, 600.0]
    deadlines.add(Request(StubCandidate("a"), fidelity=3), 40.0)
    assert [deadlines.of(num * futures[3]) for num in (1, 2)] == [60.0, 120.0]
    # The first of many are fast: while most are running, nothing is known about them.
    assert [deadlines.of(futures[3], num_running=num) for num in (4, 5)] == [600.0, 600.0]
    assert [deadlines.of(futures[9], num_running=num) for num in (1, 2)] == [30.0, 600.0]
    assert math.isinf(deadlines.measured(futures[9], num_running=2))
    for _ in range(4):
        deadlines.add(Request(StubCandidate("a"), fidelity=3), 40.0)
    assert (deadlines.of(2 * futures[3]), Deadlines(None).of(futures[3])) == (1200.0, None)
