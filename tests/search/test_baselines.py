"""Random search and regularised evolution."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gflownet.evaluation.task import Cost
from gflownet.run.final_stage import random_candidates
from gflownet.search.method import Candidates
from tests.search.searches import FailsOrRefuses, assignment, build, method_of, proposals, values_of

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
        candidates, even_share = random_candidates(trainer, 30)
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
