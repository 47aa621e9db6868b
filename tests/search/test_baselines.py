"""Regularised evolution and local search."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest

from gflownet.evaluation.task import Cost
from gflownet.mdp.states import GraphStates
from gflownet.run.final_stage import random_candidates
from gflownet.search.method import Candidates
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
    first = cast(GraphStates, method.propose(2, 3))
    history.start(first)
    second = cast(GraphStates, method.propose(3, 8))
    assert not set(values_of(trainer, first)) & set(values_of(trainer, second))
    assert len(second) == 5


class Sized(FailsOrRefuses):
    """The same settings with sizes, of which large ones are rare."""

    def evaluate(self, graph, *, seed):
        return super(FailsOrRefuses, self).evaluate(graph, seed=seed)

    def cost(self, graph) -> Cost:
        return Cost(10 ** sum(map(int, graph.values)), 1)


def test_random_search_and_reference_are_even_over_sizes():
    options = (f"task={__name__}:{Sized.__name__}", "budget.parameters=1000000")
    shares = []
    for share in (0.0, 1.0):
        trainer = build("random", *options, f"search.random.even_share={share}")
        states = Candidates.of(method_of(trainer)[0].propose(1, 600)).states
        candidates, even_share = random_candidates(trainer.config, trainer.env, trainer.task, 30)
        assert (len(candidates), even_share) == (30, share)
        drawn: tuple[list[Any], list[Any]] = [assignment(trainer, states, i) for i in range(len(states))], candidates
        for graphs in drawn:
            sums = [sum(map(int, graph.values)) for graph in graphs]
            assert max(sums) <= 6, "larger ones are refused"
            shares.append(sum(each in (0, 1, 6) for each in sums) / len(sums))
    assert shares[0] == pytest.approx(15 / 76, abs=0.05)
    of_sizes, of_logarithms = (1 + 5 / 50) / 3, 3 / 7  # sums of at most 4 are in one of three bins of sizes
    assert shares[2] == pytest.approx((of_sizes + of_logarithms) / 2, abs=0.06)
    assert shares[1] < shares[3]
