"""Regularised evolution: random start, tournament, ageing."""

from itertools import pairwise

import pytest

from gflownet.errors import UserError
from tests.search.searches import build, method_of, proposals, values_of

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


def test_former_option_of_undone_steps_is_refused():
    build("evolution", "search.options.max_undone=0")  # as stored in run folders of earlier versions
    with pytest.raises(UserError, match="max_undone: a mutation is one local move"):
        build("evolution", "search.options.max_undone=3")
