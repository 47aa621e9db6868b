"""Scores of cells are the accuracies of a table, and a table that does not fit is named in one line."""

import gzip
from pathlib import Path

import pytest

from gflownet.config import load_config, with_task_options
from gflownet.envs.cell_design import NAS_BENCH_201, NAS_BENCH_MACRO
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from tasks.cells import CellsConfig, CellsTask, read_rows
from tests.benchmark_tables import real_table, write_nb201

NB101 = "space,adjacency_rowmajor,op_labels,val_acc_4ep,test_acc_4ep\n"
DIAMOND = {(0, 1): "edge", (0, 2): "edge", (1, 3): "edge", (2, 3): "edge"}


def make_task(table: Path, *overrides: str) -> CellsTask:
    config = load_config("cells", [f"task_options.table={table}", *overrides])
    return CellsTask(with_task_options(config, CellsConfig))


def cell_201(code: str) -> Assignment:
    return Assignment(NAS_BENCH_201.places, tuple(NAS_BENCH_201.operations[int(digit)] for digit in code))


def test_scores_of_places_are_percents_of_their_row(tmp_path):
    task = make_task(write_nb201(tmp_path / "table.csv"))
    assert task.evaluate(cell_201("102340"), seed=0).value == pytest.approx(0.4)
    assert task.test(cell_201("102340"), seed=0) == pytest.approx(0.45)
    assert task.evaluate(cell_201("000000"), seed=0).value == pytest.approx(0.1)


def test_scores_of_graphs_are_means_over_their_isomorphism_class(tmp_path):
    table = tmp_path / "table.csv.gz"
    rows = "4V9E,0110000100010000,-1 0 2 -2,0.2,0.3\n4V9E,0110000100010000,-1 2 0 -2,0.4,\n"
    with gzip.open(table, "wt") as file:
        file.write(NB101 + rows)
    columns = ("task_options.column=val_acc_4ep", "task_options.test_column=test_acc_4ep")
    task = make_task(table, "env.cells.name=nb101", *columns)
    graph = ColouredGraph(("input", "maxpool3x3", "conv3x3-bn-relu", "output"), DIAMOND)
    assert task.evaluate(graph, seed=0).value == pytest.approx(0.3)
    assert task.test(graph, seed=0) == pytest.approx(0.3)
    other = ColouredGraph(("input", "maxpool3x3", "conv1x1-bn-relu", "output"), DIAMOND)
    with pytest.raises(ValueError, match=r"table\.csv\.gz: expected a row of cell .* with val_acc_4ep, got none"):
        task.evaluate(other, seed=0)


def test_no_test_column_no_test_score(tmp_path):
    task = make_task(write_nb201(tmp_path / "table.csv"), "task_options.test_column=''")
    assert task.test(cell_201("000000"), seed=0) is None


def test_rows_without_a_value_count_as_missing(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("code,c10_val12,c10_test200\n000000,50,60\n000001,,60\n")
    task = make_task(table)
    with pytest.raises(ValueError, match=r"expected a row of cell 000001 with c10_val12, got none"):
        task.evaluate(cell_201("000001"), seed=0)


@pytest.mark.parametrize(
    ("text", "option", "message"),
    [
        ("", "", r"task_options\.table: expected a column code in .*, got no rows"),
        ("cell,acc\na,1\n", "", r"task_options\.table: expected a column code in .*, got cell, acc"),
        ("code,c10_val12\n00,1\n", "", r"expected codes of 6 digits with env\.cells\.name=nb201, got '00'"),
        ("code,acc\n000000,1\n", "", r"task_options\.column: expected one of code, acc, got 'c10_val12'"),
        ("code,c10_val12\n000000,101\n", "", r"task_options\.column: expected accuracies from 0 to 100, got '101'"),
        ("code,c10_val12\n000000,high\n", "", r"task_options\.column: expected accuracies .*, got 'high'"),
        (
            "code,c10_val12\n000000,1\n",
            "task_options.test_column=c",
            r"task_options\.test_column: expected one of code",
        ),
        ("code,c10_val12\n000000,1\n", "env.name=hypergrid", r"env\.name: expected cells with this task"),
        ("code,c10_val12\n000000,1\n", "env.cells.name=nb101", r"expected a column adjacency_rowmajor in"),
    ],
)
def test_a_table_that_does_not_fit_is_named(text, option, message, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(text)
    with pytest.raises(ValueError, match=message):
        make_task(table, *([option] if option else []))


def test_a_table_that_is_none_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"task_options\.table: expected the path of a table of cells, got .*no file"):
        make_task(tmp_path / "absent.csv")
    with pytest.raises(
        ValueError, match=r"task_options\.table: expected the path of a table of cells, got '', no file"
    ):
        read_rows("", key="code")
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"task_options\.table: expected a CSV file, got .*broken\.csv\.gz"):
        make_task(broken)


def test_real_tables_are_read():
    """Published optima: 94.37 and 93.13 % (shared/data/README.md), and the best of all 91 graphs by hand."""
    task = make_task(real_table("nb201.csv.gz"))
    assert len(task.scores) == len(task.test_scores) == 15_625
    assert max(task.scores.values()) == pytest.approx(0.84892)
    assert max(task.test_scores.values()) == pytest.approx(0.943733)
    columns = ("task_options.column=acc_mean", "task_options.test_column=acc_seed0")
    task = make_task(real_table("nb_macro.csv.gz"), "env.cells.name=nb_macro", *columns)
    best = Assignment(NAS_BENCH_MACRO.places, tuple(NAS_BENCH_MACRO.operations[int(digit)] for digit in "22212220"))
    assert task.evaluate(best, seed=0).value == max(task.scores.values()) == pytest.approx(0.931267)
    columns = ("task_options.column=val_acc_4ep", "task_options.test_column=test_acc_4ep")
    task = make_task(real_table("nb101_ec_4epochs.csv.gz"), "env.cells.name=nb101", *columns)
    graph = ColouredGraph(("input", "maxpool3x3", "maxpool3x3", "output"), {**DIAMOND})
    assert 0 < task.evaluate(graph, seed=0).value < 1
    assert min(task.scores.values()) > task.config.evaluation.floor_score
