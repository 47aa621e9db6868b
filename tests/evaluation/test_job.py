"""The queue of evaluations: seeds of one graph share a job, divided among the places."""

from gflownet.evaluation.job import JobQueue, Request, Ticket
from tests.evaluation.candidates import StubCandidate, StubTask


class SeedsTask(StubTask):
    trains_seeds_together = True  # pyright: ignore[reportAssignmentType]


def queue_of(graphs: str, *, num_seeds: int, task_class: type[StubTask] = SeedsTask) -> tuple[JobQueue, list[Ticket]]:
    queue = JobQueue(task_class({}), seed=0, deadline=10.0)
    queue.measure(1.0)
    requests = [Request(StubCandidate(key), repeat=2 + k, fidelity=3) for key in graphs for k in range(num_seeds)]
    tickets = [Ticket(request, 0) for request in requests]
    queue.extend(tickets)
    return queue, tickets


def jobs_of(queue: JobQueue, *, num_places: int) -> list[tuple[str, int, float | None]]:
    """Return the graph, the number of seeds and the deadline of each job."""
    jobs = []
    while queue:
        job, deadline, tickets = queue.pop_job(num_places)
        (key,) = {ticket.request.candidate.canonical_key() for ticket in tickets}
        assert len(set(job.seeds)) == len(tickets)
        jobs.append((key, len(tickets), deadline))
    return jobs


def test_seeds_of_a_graph_share_a_job_and_every_place_has_one():
    queue, _ = queue_of("abc", num_seeds=4)
    keys = [StubCandidate(key).canonical_key() for key in "abc"]
    sizes = [(0, 4), (1, 4), (2, 2), (2, 2)]
    assert jobs_of(queue, num_places=2) == [(keys[k], num, 10.0 * num) for k, num in sizes]


def test_seeds_train_alone_after_a_lost_job_and_without_a_task_for_it():
    queue, tickets = queue_of("a", num_seeds=3)
    queue.pop_job(1)
    queue.repeat_alone(tickets)
    assert [num for _, num, _ in jobs_of(queue, num_places=1)] == [1, 1, 1]
    queue, _ = queue_of("a", num_seeds=3, task_class=StubTask)
    assert [num for _, num, _ in jobs_of(queue, num_places=1)] == [1, 1, 1]


def test_first_seed_saves_its_training_in_a_separate_job():
    queue, _ = queue_of("a", num_seeds=2)
    queue.extend([Ticket(Request(StubCandidate("a"), repeat=9, fidelity=3, saves_training=True), 0)])
    assert [num for _, num, _ in jobs_of(queue, num_places=1)] == [2, 1]
