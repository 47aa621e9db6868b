"""Scores are read by canonical hash, tables that do not fit are refused in one line, and the asset is complete."""

import csv
import gzip
from pathlib import Path
from typing import Any

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.config import load_config, with_task_options
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.task import TRAINING_SECONDS, Cost, Score
from gflownet.mdp.environment import Environment
from gflownet.operations.tensor_shape import Layout, Shape
from gflownet.training.random_states import candidate_seed
from scripts.record_space import recording_config
from tasks.digits import DigitsTask
from tasks.recorded import MIN_HASH_LENGTH, RecordedConfig, RecordedTask, random_candidates
from tests.recorded_space import RECORDED_DIGITS, RECORDED_MNIST1D

# Graphs of at most three nodes of two colours.
GRAPHS = ("env.name=coloured_graph", "env.coloured_graph.max_nodes=3")
HEADER = "hash,score,test_score,seconds,num_parameters,flops"
# Scores of one training differ by 1e-7 between the instruction sets of one processor; they spread by 0.15.
TOLERANCE = 5e-3


def config_of(table: Path, *overrides: str) -> Any:
    config = load_config(None, ["task=recorded", *GRAPHS, f"task_options.table={table}", *overrides])
    return with_task_options(config, RecordedConfig)


def make_task(table: Path, *overrides: str) -> RecordedTask:
    return RecordedTask(config_of(table, *overrides))


def candidates_of(config: Any, *, input_sizes: tuple[Any, ...] = (), output_sizes: tuple[int, ...] = ()) -> list[Any]:
    context: Any = ENVIRONMENTS.load(config.env.name)
    env: Environment = context.build_env(config.env, input_sizes=input_sizes, output_sizes=output_sizes)
    graph = enumerate_states(env)
    return [env.terminal(graph.states, index) for index in graph.terminal.tolist()]


@pytest.fixture(scope="module")
def graphs() -> list[Any]:
    return candidates_of(load_config(None, GRAPHS))


@pytest.fixture
def table(graphs, tmp_path) -> Path:
    """A table of all graphs but for the last; the score is a hundredth of the row, the first row has no cell but it."""
    path = tmp_path / "table.csv"
    rows = [f"{graph.canonical_hash()},{i / 100},{i / 50},{i},{10 * i},{20 * i}" for i, graph in enumerate(graphs)]
    rows[0] = f"{graphs[0].canonical_hash()},0.5,,,,"
    path.write_text("\n".join([HEADER, *rows[:-1]]) + "\n")
    return path


def test_score_of_one_training_is_chosen_by_the_seed(graphs, tmp_path):
    table = tmp_path / "trainings.csv"
    rows = [f"{graph.canonical_hash()},{i},{i - 0.25},{i + 0.25}" for i, graph in enumerate(graphs, start=1)]
    table.write_text("\n".join(["hash,score,first,second", *rows]) + "\n")
    task = make_task(table, "task_options.seed_columns=[first,second]")
    assert task.is_noisy
    assert [task.evaluate(graphs[3], seed=seed).value for seed in (4, 5, 6)] == [3.75, 4.25, 3.75]
    assert {task.evaluate(graphs[3], seed=candidate_seed(0, "g", k)).value for k in range(20)} == {3.75, 4.25}
    assert not make_task(table).is_noisy
    assert task.fingerprint() != make_task(table).fingerprint()


def test_input_shapes_have_a_layout(table):
    options = ("task_options.input_sizes=[[1,40],3]", "task_options.input_layout=signal")
    assert make_task(table, *options).input_sizes == (Shape((1, 40), Layout.SIGNAL), 3)
    with pytest.raises(UserError, match=r"input_sizes: expected widths or shapes.*got \[\[1, 40\]\] and 'image'"):
        make_task(table, "task_options.input_sizes=[[1,40]]", "task_options.input_layout=image")


def test_scores_sizes_and_seconds_are_those_of_the_row(table, graphs):
    task = make_task(table)
    score = task.evaluate(graphs[3], seed=0)
    assert score == Score(0.03, 30, {TRAINING_SECONDS: 3.0})
    assert task.test(graphs[3], seed=0) == 0.06
    assert task.cost(graphs[3]) == Cost(30, 60)


def test_first_characters_of_hashes_suffice(table, graphs):
    rows = table.read_text().splitlines()
    table.write_text("\n".join([rows[0], *(row[:MIN_HASH_LENGTH] + row[row.index(",") :] for row in rows[1:])]))
    assert make_task(table).evaluate(graphs[3], seed=0).value == 0.03


def test_empty_cells_and_missing_columns_are_unknown_values(table, graphs):
    task = make_task(table)
    assert task.evaluate(graphs[0], seed=0) == Score(0.5)
    check_nothing_else_is_known(task, graphs[0])
    table.write_text("\n".join(",".join(row.split(",")[:2]) for row in table.read_text().splitlines()))
    for overrides in (), ("task_options.test_column=''", "task_options.seconds_column=''"):
        task = make_task(table, *overrides)
        assert task.evaluate(graphs[3], seed=0) == Score(0.03)
        check_nothing_else_is_known(task, graphs[3])


def check_nothing_else_is_known(task: RecordedTask, graph: Any) -> None:
    assert (task.test(graph, seed=0), task.cost(graph)) == (None, None)


def test_candidate_without_row_or_score_raises(table, graphs):
    table.write_text(table.read_text().replace(",0.03,", ",,"))
    task = make_task(table)
    with pytest.raises(ValueError, match=rf"table\.csv: expected a row of {graphs[-1].canonical_hash()}, got none"):
        task.evaluate(graphs[-1], seed=0)
    with pytest.raises(ValueError, match=rf"expected a score of {graphs[3].canonical_hash()}, got an empty cell"):
        task.evaluate(graphs[3], seed=0)
    assert task.cost(graphs[-1]) is None


def test_fingerprint_depends_on_scores_and_hashes(table):
    first = make_task(table).fingerprint()
    assert make_task(table).fingerprint() == first
    text = table.read_text()
    table.write_text(text.replace(",0.03,", ",0.04,"))
    assert make_task(table).fingerprint() != first
    table.write_text(text.replace("\ng1-", "\ng2-", 1))
    assert make_task(table).fingerprint() != first


@pytest.mark.parametrize(
    ("old", "new", "overrides", "message"),
    [
        ("hash,", "code,", (), r"task_options\.table: expected a column hash in .*table\.csv, got code, score"),
        ("", "", ("task_options.column=accuracy",), r"task_options\.column: expected one of hash, .*got 'accuracy'"),
        ("", "", ("task_options.test_column=x",), r"task_options\.test_column: expected one of hash, .*got 'x'"),
        (",0.03,", ",high,", (), r"line 5, column score: expected a number of at least 0, got 'high'"),
        ("\ng1-", "\ng1-0", (), r"line 3: expected hashes of one length of at least 12 characters, got 'g1-"),
        ("", "", ("env.name=hypergrid",), r"expected candidates of env\.name=hypergrid in .*got none of 16 random"),
    ],
)
def test_table_that_does_not_fit_is_refused_in_one_line(table, old, new, overrides, message):
    table.write_text(table.read_text().replace(old, new, 1) if old else table.read_text())
    with pytest.raises(ValueError, match=message) as error:
        make_task(table, *overrides)
    assert "\n" not in str(error.value)


def test_hash_twice_and_column_without_scores_are_refused(table):
    text = table.read_text()
    table.write_text(text + text.splitlines()[2] + "\n")
    with pytest.raises(ValueError, match=r"line \d+: expected each hash once, got 'g1-[0-9a-f]+' again"):
        make_task(table)
    lines = [",".join([*row.split(",")[:1], "", *row.split(",")[2:]]) for row in text.splitlines()[1:]]
    table.write_text("\n".join([HEADER, *lines]))
    with pytest.raises(ValueError, match=r"task_options\.column: expected scores in .*, got the empty column score"):
        make_task(table)


@pytest.fixture(scope="module")
def digits_task() -> RecordedTask:
    config = load_config("recorded_digits", [f"task_options.table={RECORDED_DIGITS}"])
    return RecordedTask(with_task_options(config, RecordedConfig))


def test_asset_has_the_candidates_of_random_trajectories(digits_task):
    config: Any = digits_task.config
    context: Any = ENVIRONMENTS.load(config.env.name)
    env = context.build_env(config.env, input_sizes=digits_task.input_sizes, output_sizes=digits_task.output_sizes)
    candidates = random_candidates(env, 20, generator=torch.Generator().manual_seed(1))
    assert len({candidate.canonical_key() for candidate in candidates}) > 10
    for candidate in candidates:
        assert 0 < digits_task.evaluate(candidate, seed=0).value < 1
        assert 0 < (digits_task.test(candidate, seed=0) or 0) < 1


@pytest.mark.slow
def test_asset_has_one_row_per_candidate_of_the_space(digits_task):
    candidates = candidates_of(digits_task.config, input_sizes=(64,), output_sizes=(10,))
    rows = {digits_task.recording.row(candidate) for candidate in candidates}
    assert rows == set(range(len(digits_task.recording.scores)))
    assert len(rows) == len(candidates) == 17_683


@pytest.mark.slow
def test_asset_of_mnist1d_has_three_trainings_of_each_candidate():
    config = load_config("recorded_mnist1d", [f"task_options.table={RECORDED_MNIST1D}"])
    task = RecordedTask(with_task_options(config, RecordedConfig))
    candidates = candidates_of(task.config, input_sizes=task.input_sizes, output_sizes=task.output_sizes)
    assert {task.recording.row(candidate) for candidate in candidates} == set(range(1_776))
    costs = [task.cost(candidate) for candidate in candidates]
    assert max(cost.num_parameters for cost in costs if cost is not None) <= 1_000
    for candidate in candidates[::200]:
        scores = {task.evaluate(candidate, seed=seed).value for seed in range(3)}
        assert len(scores) == 3
        assert sum(scores) / 3 == pytest.approx(task.test(candidate, seed=0), abs=1e-4)


def test_asset_is_reproduced_by_trainings(digits_task):
    """Networks of up to two hidden nodes: their nodes have the same order as in the space of six."""
    config = recording_config("recorded_digits", "digits", ["env.max_hidden_nodes=2"])
    task = DigitsTask(config)
    candidates = candidates_of(config, input_sizes=(64,), output_sizes=(10,))[5::9][:4]
    assert len(candidates) == 4
    with gzip.open(RECORDED_DIGITS, "rt", newline="") as file:
        recorded = list(csv.DictReader(file))
    seeds = [candidate_seed(config.seed, candidate.canonical_hash()) for candidate in candidates]
    outcomes = task.train_many(candidates, seeds=seeds, fidelity=4, schedule=4, states=[None] * 4)
    for candidate, training in zip(candidates, outcomes, strict=True):
        assert not isinstance(training, Exception)
        row = recorded[digits_task.recording.row_of[candidate.canonical_hash()[:19]]]
        assert training.score().value == pytest.approx(float(row["score_seed0"]), abs=TOLERANCE)
        assert digits_task.cost(candidate) == task.cost(candidate)
