"""Assignments: identity, JSON and errors."""

import json
import pickle

import pytest

from gflownet.graphs.assignment import Assignment


def test_assignment_json_round_trip_in_any_order():
    one = Assignment(("a", "b", "c"), (3, "none", "1/7"))
    data = json.loads(json.dumps(one.to_dict()))
    assert Assignment.from_dict(data) == one
    assert Assignment.from_dict({**data, "nodes": data["nodes"][::-1]}) == one
    assert pickle.loads(pickle.dumps(one)) == one


def test_assignment_key_contains_names_values_and_types():
    different = [
        Assignment(("a", "b"), (1, 2)),
        Assignment(("a", "b"), (2, 1)),
        Assignment(("b", "a"), (1, 2)),
        Assignment(("a", "b"), ("1", 2)),
        Assignment(("a", "b"), (12, "")),
        Assignment(("a",), (1,)),
    ]
    for identity in (Assignment.canonical_key, Assignment.canonical_hash):
        assert len(set(map(identity, different))) == len(different)
        assert identity(Assignment(("a", "b"), (1, 2))) == identity(different[0])
    assert [one.num_automorphisms() for one in different] == [1] * len(different)


def test_assignment_value_by_name():
    assert Assignment(("a", "b"), ("x", 5))["b"] == 5


@pytest.mark.parametrize(("names", "values"), [(("a", "a"), (1, 2)), (("a", "b"), (1,)), ((), (1,))])
def test_assignment_invalid_names_raise(names, values):
    with pytest.raises(ValueError, match="assignment: expected a value for each of different names"):
        Assignment(names, values)
