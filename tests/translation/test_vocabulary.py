"""The names that graphs accept are the names that the translation knows."""

from gflownet.graphs import vocabulary
from gflownet.translation import aggregations, plan


def test_both_know_the_same_names():
    assert {*plan.STATELESS_ACTIVATIONS, *plan.CELLS} == set(vocabulary.ACTIVATIONS)
    assert set(aggregations.AGGREGATIONS) == set(vocabulary.AGGREGATIONS)
    assert set(plan.CELLS) == set(vocabulary.RECURRENT_CELLS)
