"""Regularised evolution and local search."""

from __future__ import annotations

from itertools import pairwise

from tests.search.searches import FailsOrRefuses, assignment, build, method_of, proposals, score_of, values_of

SMALL = ("search.options.population=6", "search.options.tournament=40")


def differences(first: tuple, second: tuple) -> int:
    return sum(a != b for a, b in zip(first, second, strict=True))


def test_children_are_mutations_of_the_best_of_the_youngest():
    trainer = build("evolution", *SMALL)  # 40 of 6 members: the best one misses a tournament in 7 of 10,000 cases
    values = [values_of(trainer, states)[0] for states in proposals(trainer, 50)]
    scores = [proposal.score for proposal in method_of(trainer)[1].proposals]
    for number in range(6, 50):
        best = max(range(number - 6, number), key=scores.__getitem__)
        assert differences(values[number], values[best]) == 1
    assert max(differences(*pair) for pair in pairwise(values[:6])) > 1, "the first population is random"


def test_batch_is_mutated_together():
    trainer = build("evolution", *SMALL)
    sizes = {len(states) for states in proposals(trainer, 8, batch_size=3)}
    assert sizes == {3}


def test_first_improvement_climbs_from_neighbour_to_neighbour():
    trainer = build("local_search")
    current, tried, num_starts = None, set(), 0
    for states in proposals(trainer, 60):
        graph = assignment(trainer, states, 0)
        if current is None or len(tried) == 8:  # 8 neighbours: 4 places with 2 other values
            current, tried, num_starts = graph, set(), num_starts + 1
            continue
        assert differences(graph.values, current.values) == 1
        assert graph.values not in tried
        tried.add(graph.values)
        if score_of(graph) > score_of(current):
            current, tried = graph, set()
    assert num_starts > 2


def test_batch_of_neighbours_are_of_one_architecture():
    trainer = build("local_search")
    batches = [values_of(trainer, states) for states in proposals(trainer, 12, batch_size=4)]
    start = max(batches[0], key=lambda values: dict(zip(batches[0], scores(trainer, batches), strict=True))[values])
    assert [differences(start, values) for values in batches[1]] == [1] * 4
    assert len(set(batches[1])) == 4


def scores(trainer, batches) -> list[float]:
    return [proposal.score for proposal in method_of(trainer)[1].proposals[: len(batches[0])]]


def test_refused_neighbours_are_left_out():
    trainer = build("local_search", f"task={__package__}.searches:{FailsOrRefuses.__name__}")
    seen = {values for states in proposals(trainer, 80) for values in values_of(trainer, states)}
    assert not any(values[3] == 2 for values in seen)
    assert any(values[0] == 0 for values in seen), "failed evaluations are proposals"


def test_neighbours_in_flight_are_not_proposed_again():
    method, history = method_of(trainer := build("local_search"))
    list(proposals(trainer, 1))
    first = method.propose(2, 3)
    history.start(first)
    second = method.propose(3, 8)
    assert not set(values_of(trainer, first)) & set(values_of(trainer, second))
    assert len(second) == 5


def test_restored_state_continues_the_same_climb():
    trainer, other, num_calls = build("local_search"), build("local_search"), 23
    list(proposals(trainer, num_calls))
    (method, history), (other_method, other_history) = method_of(trainer), method_of(other)
    other_history.load_state_dict(history.state_dict())
    other_method.load_state_dict(method.state_dict())
    states, other_states = method.propose(num_calls + 1, 4), other_method.propose(num_calls + 1, 4)
    assert bool(states.equals(other_states).all())
    assert other_method.state_dict() == method.state_dict()
