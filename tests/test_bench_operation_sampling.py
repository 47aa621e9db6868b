"""scripts/bench_operation_sampling.py at its smallest size."""

import pytest

from scripts.bench_operation_sampling import GOAL, computation_graphs, operation_graphs, sampling_rows


@pytest.mark.slow
def test_rows_compare_graphs_of_equal_size():
    ours, other = operation_graphs(), computation_graphs()
    assert ours.vocabulary.max_nodes == other.vocabulary.max_nodes == 12
    assert ours.max_edges == other.max_edges
    rows = sampling_rows([2], num_rounds=1)
    assert [row.unit for row in rows] == ["us per state"] * 2 + ["x"] + ["us per trajectory"] * 2 + ["x"]
    assert [row.goal for row in rows if row.unit == "x"] == [f"<= {GOAL}"] * 2
    assert all(row.value > 0 for row in rows)
