"""The gate in front of data: one line per mistake, before training, with the setting that takes the data."""

import re
from pathlib import Path

import numpy as np
import pytest

from gflownet.config import load_config, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation.candidates.tensor_task import TensorTask
from tasks.choices import ChoicesTask, ChoicesTaskConfig
from tasks.images import ImagesConfig, ImagesTask
from tasks.table import TableConfig, TableTask
from tests.evaluation.table_data import write_rows

TASKS: dict[str, tuple[type[TensorTask], type]] = {
    "table": (TableTask, TableConfig),
    "images": (ImagesTask, ImagesConfig),
    "choices": (ChoicesTask, ChoicesTaskConfig),
}
NUM = 60
CLASSES = np.arange(NUM) % 3


def make_task(name: str, path: Path, *overrides: str) -> TensorTask:
    task, schema = TASKS[name]
    options = [f"task_options.data={path}", *overrides]
    if name == "choices":
        options += ["task_options.score=''", "task_options.build=builtins:dict"]
    return task(with_task_options(load_config(name, options), schema))


def inputs_of(task: str) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(NUM, 4) if task == "table" else (NUM, 4, 4))


def two_labels() -> np.ndarray:
    return (np.random.default_rng(1).random((NUM, 3)) < 0.5).astype(int)


@pytest.mark.parametrize("task", ["table", pytest.param("images", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("targets", "message", "setting"),
    [
        (CLASSES * 0, "expected different targets, got only 0", ""),
        (CLASSES * 0 + 2.5, "expected different targets, got only 2.5", ""),
        (np.arange(NUM), "expected classes that repeat, got 60 in 60 examples", "kind=numbers"),
        (CLASSES**2 + (CLASSES == 2), "expected all classes from 0 to 5, got none with 2", "kind=classes"),
        (two_labels(), "expected one class per example, got 3 labels (multi-label)", "kind=numbers"),
        (np.random.default_rng(1).integers(0, 4, (NUM, 3, 4)), "got classes [3, 4]; task", ""),
        (np.ones((NUM, 3, 2)), "expected targets [N] or [N, K], got [36, 3, 2]; targets.reshape(len(", ""),
    ],
)
def test_targets_that_do_not_fit_raise(tmp_path, task, targets, message, setting):
    np.savez(tmp_path / "a.npz", x=inputs_of(task), y=targets)
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        make_task(task, tmp_path / "a.npz")
    assert str(raised.value).startswith("task_options.data: ")
    assert "\n" not in str(raised.value)
    assert f"task_options.{setting}" in str(raised.value) or not setting
    assert "task_options.target" not in str(raised.value)  # of columns with names
    if setting:
        taken = make_task(task, tmp_path / "a.npz", f"task_options.{setting}")
        assert len(taken.train) == 36
        assert taken.train.targets.is_floating_point() == (setting == "kind=numbers")
    if "reshape" in message:
        np.savez(tmp_path / "a.npz", x=inputs_of(task), y=targets.reshape(NUM, -1))
        assert make_task(task, tmp_path / "a.npz").num_outputs == 6


def test_classes_that_occur_are_numbered(tmp_path):
    np.savez(tmp_path / "a.npz", x=inputs_of("table"), y=np.array([0, 1, 5] * 20))
    task = make_task("table", tmp_path / "a.npz", "task_options.kind=classes")
    assert task.num_outputs == 3
    columns = task.splits_in_use.columns
    assert columns is not None
    assert columns.predictions(np.eye(3)).tolist() == [0, 1, 5]


def test_targets_per_pixel_are_taken_by_choices(tmp_path):
    targets = np.random.default_rng(1).integers(0, 4, (NUM, 4, 4))
    np.savez(tmp_path / "a.npz", x=inputs_of("images"), y=targets)
    assert make_task("choices", tmp_path / "a.npz").train.targets.shape == (36, 4, 4)


def test_single_class_of_a_column_names_the_target_option(tmp_path):
    path = write_rows(tmp_path / "a.csv", ("x", "z", "y"), [[k, "pq"[k % 2], "yes"] for k in range(20)])
    with pytest.raises(UserError, match=r"got only yes; task_options.target takes another column$"):
        make_task("table", path)
    assert make_task("table", path, "task_options.target=z").num_outputs == 2


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([f"t{k}" for k in range(20)], "expected classes that repeat, got 20 in 20 examples; .*target another column$"),
        (["inf", *(k * 0.5 for k in range(20))], "column y: row 2: expected a finite number, got inf$"),
        ([*(k * 0.5 for k in range(20)), "many"], "column y: row 22: .* got many; task_options.kind=classes takes it$"),
    ],
)
def test_target_columns_that_do_not_fit_raise(tmp_path, cells, message):
    path = write_rows(tmp_path / "a.csv", ("x", "y"), [[k, cell] for k, cell in enumerate(cells)])
    with pytest.raises(UserError, match=f"^task_options.data: .*{message}"):
        make_task("table", path)


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_equal_rows_are_in_one_split_or_refused(tmp_path, kind):
    inputs = np.random.default_rng(0).normal(size=(30, 3)).round(2)
    path = tmp_path / f"a.{kind}"
    if kind == "npz":
        np.savez(path, x=np.tile(inputs, (4, 1)), y=np.arange(120) % 30 % 2)
    else:
        write_rows(
            path, ("a", "b", "t", "y"), [[*row[:2], "pq"[k % 2], "ab"[k % 2]] for k, row in enumerate(inputs)] * 4
        )
    message = r"got \d\d of 48 that are in both; task_options.duplicates=together keeps equal rows in one split, =keep"
    with pytest.raises(UserError, match=message):
        make_task("table", path, "task_options.duplicates=refuse")
    assert len(make_task("table", path, "task_options.duplicates=keep").train) == 72
    task = make_task("table", path)
    assert any(
        "90 of 120 rows are equal to another one in all inputs; they are in its split" in x for x in task.summary
    )
    parts = [{tuple(row) for row in part.inputs.tolist()} for part in task.splits_in_use]
    assert parts[0] & (parts[1] | parts[2]) == set()


def test_few_repeated_rows_are_taken(tmp_path):
    rows = [[k, k % 7, "ab"[k % 2]] for k in range(200)]
    rows[1] = rows[0]
    assert len(make_task("table", write_rows(tmp_path / "a.csv", ("x", "z", "y"), rows)).train) > 100


def test_constant_column_is_named_in_the_table_of_columns(tmp_path):
    rows = [[3, "same", k, "ab"[k % 2]] for k in range(40)]
    path = write_rows(tmp_path / "a.csv", ("c", "t", "x", "y"), rows)
    lines = make_task("table", path).summary
    assert [line.split() for line in lines[1:3]] == [
        ["c", "number,", "constant"],
        ["t", "text,", "1", "value,", "constant"],
    ]
    task = make_task("table", path, "task_options.columns={c: ignored, t: ignored}")
    assert task.input_sizes == (1,)


def test_unbalanced_classes_are_named_with_the_metric_that_fits(tmp_path):
    rows = [[k, 0.5 * k, "yes" if k % 10 == 0 else "no"] for k in range(100)]
    path = write_rows(tmp_path / "a.csv", ("x", "z", "y"), rows)
    (line,) = [line for line in make_task("table", path).remarks() if "unbalanced" in line]
    assert line.startswith(
        "unbalanced classes: 90 % no, 10 % yes; evaluation.training.metric=balanced_accuracy or f1 or"
    )
    quiet = make_task("table", path, "evaluation.training.metric=f1", "evaluation.training.class_weights=balanced")
    assert not any("unbalanced" in line for line in quiet.remarks())
    assert not any("unbalanced" in line for line in make_task("table", Path("wine")).remarks())
