"""Scores of cells are the accuracies of a table, and a table that does not fit is named in one line."""

import gzip
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from gflownet.config import load_config, with_task_options
from gflownet.envs.cell_networks import Cell
from gflownet.envs.cells import CELLS, NAS_BENCH_201, NAS_BENCH_MACRO
from gflownet.errors import UserError
from gflownet.evaluation.config import BudgetConfig
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.task import TRAINING_SECONDS, Cost
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from tasks.cells import CellsConfig, CellsTask
from tests.benchmark_tables import nb201_lines, real_table, write_nb201
from tests.evaluation.candidates import dispatcher_of

NB101 = "space,adjacency_rowmajor,op_labels,val_acc_4ep,test_acc_4ep\n"
DIAMOND = {(0, 1): "edge", (0, 2): "edge", (1, 3): "edge", (2, 3): "edge"}


def make_task(table: Path, *overrides: str) -> CellsTask:
    config = load_config("cells", [f"task_options.table={table}", *overrides])
    return CellsTask(with_task_options(config, CellsConfig))


def cell_201(code: str) -> Assignment:
    return Assignment(NAS_BENCH_201.places, tuple(NAS_BENCH_201.operations[int(digit)] for digit in code))


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return write_nb201(tmp_path_factory.mktemp("table") / "table.csv")


LINES = ("code,acc,acc_seed0,params,flops", "00,50,60,7,8", "01,51,61,7,8", "10,52,62,7,8", "11,53,63,7,8")


@pytest.fixture
def small(monkeypatch, tmp_path) -> Callable[..., CellsTask]:
    """Return the task of four cells, from a table in place of `LINES`."""
    monkeypatch.setitem(CELLS, "nb_macro", Cell(("a", "b"), ("skip", "conv")))

    def make(text: str = "\n".join(LINES), *overrides: str) -> CellsTask:
        table = tmp_path / "small.csv"
        table.write_text(text)
        columns = ("env.cells.name=nb_macro", "task_options.column=acc", "task_options.test_column=''")
        return make_task(table, *columns, *overrides)

    return make


def changed(line: int, *replacements: str) -> str:
    """Return `LINES` with other lines in place of one, counted from 1."""
    return "\n".join([*LINES[: line - 1], *replacements, *LINES[line:]])


def test_scores_of_places_are_percents_of_their_row(table):
    task = make_task(table)
    assert task.evaluate(cell_201("102340"), seed=0).value == pytest.approx(0.4)
    assert task.test(cell_201("102340"), seed=0) == pytest.approx(0.45)
    assert task.evaluate(cell_201("000000"), seed=0).value == pytest.approx(0.1)
    assert task.cost(cell_201("102340")) == Cost(2000, 2 * 110_000)


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


COSTS = "evaluation.objectives=[accuracy,edgegpu_latency,parameters,c10_edgegpu_energy]"


def test_objectives_are_columns_with_targets(table):
    """The sum of digits is s: a latency of 2 + s / 4, 1000 + 100 s parameters, an energy of 30 + s."""
    options = ("task_options.targets={edgegpu_latency: 8.0, parameters: 1200}", "task_options.test_column=''")
    task = make_task(table, COSTS, *options)
    score = task.evaluate(cell_201("102340"), seed=0)
    metrics = {"accuracy": 0.4, "edgegpu_latency": 4.5, "parameters": 2000, "c10_edgegpu_energy": 40}
    assert score.metrics == pytest.approx(metrics)
    assert score.num_parameters == 2000
    # The median sum is 12: the default target of the energy is 42.
    assert task.utilities(score) == pytest.approx((0.4, 8 / 12.5, 1200 / 3200, 42 / 82))
    assert task.test(cell_201("102340"), seed=0) is None
    assert task.refusal(cell_201("000343")) is None
    assert task.refusal(cell_201("000344")) == (
        "expected a value of c10_edgegpu_energy for cell 000344 with evaluation.objectives, got none"
    )


def test_cells_over_a_cap_or_without_a_value_are_refused(small):
    table = changed(5, "11,53,63,9,").replace("flops", "latency").replace("10,52,62,7,8", "10,52,62,7,9.5")
    task = small(table, "task_options.max={latency: 9}")
    refusals = [task.refusal(Assignment(("a", "b"), cell)) for cell in product(("skip", "conv"), repeat=2)]
    missing = "expected a value of latency for cell 11 with task_options.max, got none"
    assert refusals == [None, None, "expected at most 9 of latency (task_options.max), got 9.5", missing]


def test_refused_cells_cost_no_evaluation(small, tmp_path):
    task = small(changed(5, "11,53,63,9,8"), "task_options.max={params: 7}")
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        dispatcher = dispatcher_of(task, store, budget=BudgetConfig(evaluations=1))
        cells = [Assignment(("a", "b"), values) for values in (("conv", "conv"), ("skip", "skip"))]
        refused, accepted = dispatcher.evaluate(cells, step=1)
        assert dispatcher.budget.num_evaluated == 1
    assert (refused.status, refused.score) == (EvaluationStatus.REFUSED, task.config.evaluation.floor_score)
    assert accepted.score == pytest.approx(0.5)


def test_cost_without_columns_is_that_of_the_network(tmp_path):
    without_costs = tmp_path / "table.csv"
    without_costs.write_text("\n".join(",".join(line.split(",")[:3]) for line in nb201_lines()))
    cost = make_task(without_costs).cost(cell_201("334131"))
    assert cost.num_parameters == 802_426  # as in the real table
    assert cost.flops == pytest.approx(2 * 116_692_672, rel=0.03)  # which counts pooling and batch norm, too


def test_invalid_sizes_and_seconds_raise(small):
    for place, column in ((3, "params"), (4, "flops")):
        cells = ["10", "52", "62", "7", "8"]
        cells[place] = "abc"
        with pytest.raises(UserError, match=rf"table: .*line 4, column {column}: expected a number .*'abc'"):
            small(changed(4, ",".join(cells)))
    with pytest.raises(UserError, match=r"table: .*line 4, column train_seconds: expected a number .*'-1'"):
        small(changed(4, "10,52,62,7,-1").replace("flops", "train_seconds"))


def test_training_seconds_are_a_metric(small):
    cell, text = Assignment(("a", "b"), ("skip", "conv")), "\n".join(LINES)
    assert TRAINING_SECONDS not in small().evaluate(cell, seed=0).metrics
    for task in small(text.replace("flops", "train_seconds")), small(text, "task_options.seconds_column=flops"):
        assert task.evaluate(cell, seed=0).metrics[TRAINING_SECONDS] == 8


def test_column_named_parameters_is_an_objective(small):
    task = small("\n".join(LINES).replace("params", "parameters"), "evaluation.objectives=[accuracy,parameters]")
    assert task.utility("parameters", 7) == 0.5


def test_lines_of_errors_count_blank_lines(small):
    with pytest.raises(UserError, match=r"line 6, column acc: expected a number from 0 to 100, got '1_0'"):
        small(changed(4, "", "", "10,1_0,2,7,8"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"table: expected a header and rows in .*, got 0 lines"),
        ("cell,acc\na,1\n", r"table: expected a column code in .*, got cell, acc"),
        ("code,code\na,1\n", r"table: expected different names of columns in .*, got 'code' twice"),
        ("code,acc\n00\n", r"table: .*small\.csv, line 2: expected 2 columns, got 1"),
        ('code,acc\n"00,1\n', r"table: expected a CSV file, got .*small\.csv: "),
        (changed(4, "000,1,2,7,8"), r"line 4: expected codes of 2 digits out of 01 with env.*=nb_macro, got '000'"),
        (changed(4, "02,1,2,7,8"), r"line 4: expected codes of 2 digits out of 01 .*, got '02'"),
        (changed(4, LINES[1]), r"line 4: expected one row of 00, got another one in line 2"),
        (changed(4), r"table: expected a row for each of 4 cells in .*, got 3; missing: 10$"),
        (changed(4, "10,,2,7,8"), r"column: .*small\.csv, line 4: expected a number in acc of 10, got none"),
        (changed(4, "10,101,2,7,8"), r"column: .*small\.csv, line 4, column acc: expected a number .* 100, got '101'"),
        (changed(4, "10,high,2,7,8"), r"line 4, column acc: expected a number from 0 to 100, got 'high'"),
        (changed(4, "10,nan,2,7,8"), r"line 4, column acc: expected a number from 0 to 100, got 'nan'"),
        (changed(4, "10,-1,2,7,8"), r"line 4, column acc: expected a number from 0 to 100, got '-1'"),
    ],
)
def test_wrong_tables_raise_one_line(text, message, small):
    with pytest.raises(UserError, match=rf"^task_options\..*{message}") as error:
        small(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task_options.column=score"], r"task_options\.column: expected one of code, acc, .*, got 'score'"),
        (["task_options.test_column=c"], r"task_options\.test_column: expected one of code"),
        (["env.name=hypergrid"], r"env\.name: expected cells with this task"),
        (["env.cells.name=nb101"], r"expected a column adjacency_rowmajor in"),
        (["task_options.max={edgegpu: 1}"], r"task_options\.max: expected one of code, .*got 'edgegpu'"),
        (["task_options.max={params: much}"], r"task_options\.max: expected positive numbers by column, .*much"),
        (["task_options.max={acc_seed0: 90}"], r"task_options\.max: expected a column of costs, .* got acc_seed0"),
        (["evaluation.objectives=[accuracy,c10_test200]"], r"evaluation\.objectives: expected .* got 'c10_test200'"),
        (["task_options.max=5"], r"task_options\.max: expected a group of options, got 5"),
        (["task_options.targets={params: 1}"], r"task_options\.targets: expected some of none, got 'params'"),
        (["evaluation.objectives=[accuracy,speed]"], r"evaluation\.objectives: expected one of .*, got 'speed'"),
        (["evaluation.constraints.speed=3"], r"evaluation\.constraints\.speed: expected one of .*, got 'speed'"),
    ],
)
def test_wrong_options_raise_one_line(overrides, message, small):
    with pytest.raises(ValueError, match=message) as error:
        small("\n".join(LINES), *overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("4V9E,011000010001000,-1 0 2 -2,repeat_1,.2", "line 2: adjacency_rowmajor: expected 16 digits 0 or 1"),
        ("4V9E,0110000100010000,-1 0 7 -2,repeat_1,.2", "line 2: op_labels: expected labels out of .*, got '7'"),
        ("\n".join(["4V9E,0110000100010000,-1 0 2 -2,repeat_1,.2"] * 2), "line 3: expected one row of .*line 2"),
        ("4V9E,0110000100010000,-1 0 2 -2,repeat_1,20", "line 2, column val_acc_4ep: expected a number from 0 to 1,"),
    ],
)
def test_wrong_rows_of_graphs_raise_one_line(row, message, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(f"space,adjacency_rowmajor,op_labels,repeat,val_acc_4ep\n{row}\n")
    columns = ("task_options.column=val_acc_4ep", "task_options.test_column=''")
    with pytest.raises(UserError, match=message):
        make_task(table, "env.cells.name=nb101", *columns)


def test_unreadable_files_raise_one_line(tmp_path):
    with pytest.raises(UserError, match=r"task_options\.table: expected the path of a file, got .*no file"):
        make_task(tmp_path / "absent.csv")
    damaged = tmp_path / "damaged.csv.gz"
    content = gzip.compress("\n".join(nb201_lines()[:2_000]).encode())
    for part in (b"no gzip", content[: len(content) // 2], content[:500] + bytes(40) + content[540:]):
        damaged.write_bytes(part)
        with pytest.raises(UserError, match=r"expected a complete gzip file, got .*damaged\.csv\.gz, which is damaged"):
            make_task(damaged)
    other = tmp_path / "other.csv"
    other.write_bytes(b"code,acc\n\xff\xfe,1\n")
    with pytest.raises(UserError, match=r"expected UTF-8 text in .*other\.csv, got other bytes at 9"):
        make_task(other)


@pytest.mark.slow
def test_real_tables_are_read():
    columns = ("task_options.column=acc_mean", "task_options.test_column=acc_seed0")
    task = make_task(real_table("nb_macro.csv.gz"), "env.cells.name=nb_macro", *columns)
    best = Assignment(NAS_BENCH_MACRO.places, tuple(NAS_BENCH_MACRO.operations[int(digit)] for digit in "22212220"))
    assert task.evaluate(best, seed=0).value == max(task.scores.values()) == pytest.approx(0.931267)
    columns = ("task_options.column=val_acc_4ep", "task_options.test_column=test_acc_4ep")
    task = make_task(real_table("nb101_ec_4epochs.csv.gz"), "env.cells.name=nb101", *columns)
    graph = ColouredGraph(("input", "maxpool3x3", "maxpool3x3", "output"), {**DIAMOND})
    assert 0 < task.evaluate(graph, seed=0).value < 1
    assert min(task.scores.values()) > task.config.evaluation.floor_score


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data_set", "best", "tests"),
    [("c10", 84.892, [94.3733]), ("c100", 61.32, [72.28, 73.09]), ("in16", 38.667, [46.4777])],
)
def test_real_signal_has_the_published_optima(data_set, best, tests):
    """Two cells share the best signal on CIFAR-100."""
    columns = (f"task_options.column={data_set}_val12", f"task_options.test_column={data_set}_test200")
    task = make_task(real_table("nb201.csv.gz"), *columns)
    assert len(task.scores) == len(task.test_scores) == 15_625
    top = max(task.scores.values())
    assert 100 * top == pytest.approx(best, abs=1e-3)
    at_best = sorted(100 * task.test_scores[code] for code, score in task.scores.items() if score == top)
    assert at_best == pytest.approx(tests, abs=0.01)
    latency = make_task(real_table("nb201.csv.gz"), *columns, "evaluation.objectives=[accuracy,edgegpu_latency]")
    assert len(latency.scores) == 15_625
