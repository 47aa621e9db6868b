"""Tables in memory and in files: DataFrames, masks, sparse matrices, codes, months, weights, several targets."""

import json
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, r2_score, roc_auc_score
from sklearn.tree import DecisionTreeRegressor

from gflownet.errors import UserError
from gflownet.evaluation.candidates.metrics import METRICS, build_loss, weighted
from gflownet.evaluation.candidates.references import estimator_method
from gflownet.evaluation.candidates.trainer import Length, ModelTraining, build_measure
from gflownet.evaluation.config import TrainingConfig
from gflownet.evaluation.data.datasets import load_splits, with_standard_targets
from gflownet.evaluation.data.examples import Split, Splits
from gflownet.translation import table_columns
from gflownet.translation.table_columns import TableColumns
from tests.evaluation.table_data import columns_of, make_task, write_rows

NUM = 100
RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(NUM, 3))
NAMES = np.where(VALUES[:, 0] > 0, "up", "down")
DAYS = RNG.permutation(NUM)


def loaded(monkeypatch: pytest.MonkeyPatch, data: Any, **options: Any) -> Splits:
    """Return the splits of data that a callable returns."""
    monkeypatch.setattr("tests.evaluation.data_sources.number", lambda: data)
    return load_splits("tests.evaluation.data_sources:number", key="task_options.data", seed=0, **options)


def frame() -> pd.DataFrame:
    """Return cells of many dtypes: categories, nullable and Arrow integers, dates, texts, gaps."""
    cells = pd.DataFrame(VALUES.round(3), columns=list("abc"))
    cells["kind"] = pd.Categorical(np.where(np.arange(NUM) % 3, "r", "g"))
    cells["count"] = pd.array(np.arange(NUM) % 7, dtype="Int64")
    cells.loc[::9, "count"] = pd.NA
    cells["arrow"] = pd.array(np.arange(NUM) % 5, dtype="int64[pyarrow]")
    cells["flag"] = pd.array([[True, False, None][k % 3] for k in range(NUM)], dtype="boolean")
    cells["day"] = pd.date_range("2024", periods=NUM)[DAYS]
    return cells


def same(one: Splits, other: Splits) -> bool:
    return all(
        torch.equal(a.inputs, b.inputs) and torch.equal(a.targets, b.targets) for a, b in zip(one, other, strict=True)
    )


def test_frame_in_memory_equals_its_file(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    whole = frame().assign(target=NAMES)
    whole.to_csv(tmp_path / "a.csv", index=False)
    whole.to_parquet(tmp_path / "a.parquet")
    splits = load_splits(str(tmp_path / "a.csv"), key="task_options.data", seed=0)
    for target in (NAMES, pd.Series(NAMES), pd.Series(NAMES, dtype="category"), NAMES.astype(object)):
        assert same(splits, loaded(monkeypatch, (frame(), target)))
    assert same(splits, loaded(monkeypatch, whole))
    assert same(splits, load_splits(str(tmp_path / "a.parquet"), key="task_options.data", seed=0))
    assert np.array_equal(
        columns_of(splits).encoded(frame()), columns_of(splits).encoded(pd.read_csv(tmp_path / "a.csv"))
    )


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        (VALUES.astype(object), NAMES),
        (scipy.sparse.csr_matrix(VALUES), pd.Series(NAMES)),
        (torch.tensor(VALUES).to_sparse(), pd.Series(NAMES, dtype="category")),
        (VALUES, pd.Series(NAMES, dtype="string[pyarrow]")),
        (VALUES, np.ma.array(NAMES)),
    ],
)
def test_arrays_in_memory_equal_plain_ones(monkeypatch, inputs, targets):
    splits = loaded(monkeypatch, (inputs, targets))
    assert same(splits, loaded(monkeypatch, (VALUES, NAMES)))
    assert list(columns_of(splits).target.labels) == ["down", "up"]
    assert np.allclose(columns_of(splits).encoded(inputs), VALUES)


def test_sparse_matrix_above_the_limit_raises(monkeypatch):
    monkeypatch.setattr(table_columns, "_MAX_BYTES", 1_000)
    message = r"expected a sparse matrix of at most 1e-06 GB as a dense one, got \[100, 3\] \(2.4e-06 GB\)$"
    with pytest.raises(UserError, match=message):
        loaded(monkeypatch, (scipy.sparse.csr_matrix(VALUES), NAMES))


def test_masked_values_are_missing(monkeypatch):
    mask = VALUES > 1
    splits = loaded(monkeypatch, (np.ma.array(VALUES, mask=mask), np.ma.array(NAMES, mask=np.arange(NUM) < 5)))
    assert [column.has_mark for column in columns_of(splits).columns] == [True] * 3
    assert sum(map(len, splits)) == NUM - 5
    assert "column target: 5 rows of 100 without a value left out" in splits.summary[0]
    expected = loaded(monkeypatch, (pd.DataFrame(VALUES).mask(mask), pd.Series(NAMES).mask(np.arange(NUM) < 5)))
    assert same(splits, expected)


def test_labels_of_two_signs_are_classes_as_the_error_names(monkeypatch):
    data = (VALUES, np.where(VALUES[:, 0] > 0, 1, -1))
    with pytest.raises(UserError, match=r"got -1 in the train examples; task_options.kind=classes takes those"):
        loaded(monkeypatch, data)
    splits = loaded(monkeypatch, data, kind="classes")
    assert columns_of(splits).target.predictions(np.eye(2)).tolist() == [-1, 1]


def test_mapping_of_frames_has_the_columns_of_training(monkeypatch):
    parts = {"train": (frame()[:60], NAMES[:60]), "validation": (frame()[60:80], NAMES[60:80])}
    parts["test"] = (frame()[80:], NAMES[80:])
    splits = loaded(monkeypatch, parts)
    assert np.array_equal(columns_of(splits).encoded(frame()[80:]), splits.test.inputs.numpy())


def test_named_levels_of_an_index_are_columns(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    index = pd.MultiIndex.from_arrays([np.arange(NUM) // 5, np.arange(NUM) % 5], names=["machine", "visit"])
    indexed = pd.DataFrame(VALUES, columns=list("abc"), index=index)
    indexed.to_parquet(tmp_path / "a.parquet")
    splits = load_splits(str(tmp_path / "a.parquet"), key="k.data", seed=0, group="machine")
    assert [column.name for column in columns_of(splits).columns] == ["machine", "visit", "a", "b"]
    assert same(splits, loaded(monkeypatch, indexed, group="machine"))
    assert "  training    60 rows, 12 groups" in splits.summary
    assert np.array_equal(columns_of(splits).encoded(indexed), columns_of(splits).encoded(indexed.reset_index()))
    unnamed = loaded(monkeypatch, indexed.reset_index(drop=True)[VALUES[:, 0] > -1])
    assert [column.name for column in columns_of(unnamed).columns] == ["a", "b"]
    dated = indexed.set_axis(pd.date_range("1949", periods=NUM, freq="MS", name="when"))
    assert len(loaded(monkeypatch, dated, time="when").train) == 60


@pytest.mark.parametrize("cells", [[[1, 2]] * NUM, [{"a": 1}] * NUM, [None] * 99 + [np.ones(2)]])
def test_cells_of_several_values_are_refused_by_column(tmp_path, monkeypatch, cells):
    data = pd.DataFrame({"x": VALUES[:, 0], "tags": cells, "y": NAMES})
    message = (
        "column tags: expected one value in a cell, got a (list|dict|ndarray) such as .*; give each entry its own "
    )
    with pytest.raises(UserError, match=message + "column, task_options.columns.tags=ignored leaves it out$"):
        loaded(monkeypatch, data)
    assert loaded(monkeypatch, data, columns={"tags": "ignored"}).train.inputs.shape[1] == 1
    with pytest.raises(UserError, match=r"column tags: .*; task_options.target takes another column$"):
        loaded(monkeypatch, data, target="tags")


def shops(tmp_path: Any, codes: list[Any], name: str = "a.csv") -> Any:
    rows = [[code, VALUES[k, 0], k * 0.5] for k, code in enumerate(codes)]
    return write_rows(tmp_path / name, ("code", "x", "y"), rows)


def test_codes_of_one_width_match_their_numbers(tmp_path):
    path = shops(tmp_path, ["007", "012", "250", "001"] * 25)
    splits = load_splits(str(path), key="k.data", seed=0, test=str(shops(tmp_path, [7, "12.0", 250, 9], "b.csv")))
    columns = columns_of(splits)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = [{"code": code, "x": 0} for code in ("007", 7, 7.0, "7", np.int64(7), "7.0")]
        assert len(np.unique(columns.encoded(rows), axis=0)) == 1
        assert np.array_equal(columns.encoded(pd.read_csv(path)), columns.encoded(pd.read_csv(path, dtype=str)))
    assert splits.test.inputs[:, :-1].sum(1).tolist() == [1, 1, 1, 0]
    line = "test rows: 1 of 4 values of code are unknown to the training rows, such as 009"
    assert line in splits.summary
    mixed = columns_of(load_splits(str(shops(tmp_path, ["007", "7", "12", "012"] * 25)), key="k.data", seed=0))
    assert len(np.unique(mixed.encoded([{"code": "007", "x": 0}, {"code": 7, "x": 0}]), axis=0)) == 2


def test_class_codes_match_their_numbers(tmp_path):
    train = write_rows(tmp_path / "a.csv", ("x", "y"), [[VALUES[k, 0], f"{k % 3:03}"] for k in range(NUM)])
    test = write_rows(tmp_path / "b.csv", ("x", "y"), [[0.5, 1], [0.2, "2.0"], [0.1, "000"]])
    assert load_splits(str(train), key="k.data", seed=0, test=str(test)).test.targets.tolist() == [1, 2, 0]


@pytest.mark.parametrize("format", ["%Y-%m", "%m/%Y", "%b %Y"])
def test_months_are_dates(tmp_path, format):
    months = pd.date_range("1949-01", periods=NUM, freq="MS")
    path = write_rows(
        tmp_path / "a.csv", ("month", "y"), [[f"{day:{format}}", k * 0.5] for k, day in enumerate(months)]
    )
    splits = load_splits(str(path), key="k.data", seed=0, time="month")
    assert columns_of(splits).columns[0].format == format
    message = f"expected a date (%d.%m.%Y), got {months[0]:{format}}; k.columns.month={format} names a format"
    with pytest.raises(UserError, match=re.escape(message)):
        load_splits(str(path), key="k.data", seed=0, columns={"month": "%d.%m.%Y"})


def test_cell_that_training_could_not_read_names_its_column(tmp_path):
    rows = [["yes" if k % 2 else "no", VALUES[k, 0], k * 0.5] for k in range(NUM)]
    columns = columns_of(
        load_splits(str(write_rows(tmp_path / "a.csv", ("vip", "x", "y"), rows)), key="k.data", seed=0)
    )
    assert len(np.unique(columns.encoded([{"vip": vip, "x": 0} for vip in ("yes", True)]), axis=0)) == 1
    for cells, name in (({"vip": 2, "x": 0}, "vip"), ({"vip": "no", "x": [1]}, "x"), ({"vip": "no", "x": 1j}, "x")):
        with pytest.raises(ValueError, match=f"^rows: column {name}: "):
            columns.encoded([cells])


def test_several_targets_are_standardised_and_predicted(tmp_path):
    rows = [[*VALUES[k], 5 + 100 * VALUES[k, 0], VALUES[k, 1] ** 3] for k in range(NUM)]
    path = write_rows(tmp_path / "a.csv", ("a", "b", "c", "d", "e"), rows)
    splits = with_standard_targets(load_splits(str(path), key="k.data", seed=0, target="d,e", test=str(path)))
    assert splits.train.targets.mean(0).abs().max() < 1e-5
    assert np.allclose(
        columns_of(splits).predictions(splits.test.targets.numpy()), [row[3:] for row in rows], atol=1e-3
    )
    with pytest.raises(UserError, match=r"expected one target of classes, got d, e; k.kind=numbers$"):
        load_splits(str(path), key="k.data", seed=0, target="d,e", kind="classes")


def test_metric_of_several_targets_is_their_mean(tmp_path):
    rows = [[*VALUES[k], 5 + 100 * VALUES[k, 0], VALUES[k, 1]] for k in range(NUM)]
    task = make_task(write_rows(tmp_path / "a.csv", ("a", "b", "c", "d", "e"), rows), "task_options.target=d,e")
    outputs = task.validation.targets + 0.3 * torch.randn(len(task.validation), 2, generator=torch.manual_seed(0))
    constants = task.train.targets.mean(0)
    each = [
        1 - float((outputs - task.validation.targets)[:, k].square().sum() / residual)
        for k, residual in enumerate((task.validation.targets - constants).square().sum(0))
    ]
    assert task.measure.of_targets([(outputs, task.validation.targets)]) == pytest.approx(each)
    assert task.measure.value_of([(outputs, task.validation.targets)]) == pytest.approx(np.mean(each))
    model = torch.nn.Linear(3, 2)
    metrics = task._metrics_of_targets(model)
    assert list(metrics) == ["validation_r2 d", "validation_r2 e"]
    assert np.mean([*metrics.values()]) == pytest.approx(task.measure.value(model))


SKLEARN = {
    "r2": lambda y, outputs, w: r2_score(y, outputs, sample_weight=w),
    "balanced_accuracy": lambda y, logits, w: balanced_accuracy_score(y, logits.argmax(1), sample_weight=w),
    "f1": lambda y, logits, w: f1_score(y, logits.argmax(1), sample_weight=w, average="macro"),
    "accuracy": lambda y, logits, w: float(((logits.argmax(1) == y) * w).sum() / w.sum()),
    "auc": lambda y, logits, w: np.mean(
        [roc_auc_score(y == k, logits.softmax(1)[:, k], sample_weight=w) for k in range(3)]
    ),
}


@pytest.mark.parametrize("name", SKLEARN)
def test_weighted_metrics_match_scikit_learn(name):
    generator = torch.manual_seed(0)
    targets, weights = torch.randint(3, (60,), generator=generator), torch.rand(60, generator=generator)
    outputs = torch.randn(60, 3, generator=generator).round(decimals=1) + torch.nn.functional.one_hot(targets)
    if name == "r2":
        targets, outputs = targets[:, None].float(), outputs[:, :1]
    split = Split(torch.zeros(60, 1), targets, weights)
    measure = build_measure(METRICS[name], split, train=split, num_outputs=3)
    batches = zip(outputs.split(25), targets.split(25), weights.split(25), strict=True)
    assert measure.value_of(batches) == pytest.approx(SKLEARN[name](targets, outputs, weights), rel=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse", "mae", "huber", "quantile"])
def test_example_of_weight_two_is_two_examples_in_the_loss(loss):
    generator, is_classes = torch.manual_seed(0), loss == "cross_entropy"
    outputs, weights = torch.randn(20, 3, generator=generator), torch.arange(20.0) % 3
    targets = torch.randint(3, (20,), generator=generator) if is_classes else torch.randn(20, 3, generator=generator)
    options = TrainingConfig(loss=loss, label_smoothing=0.1 * is_classes)
    each, mean = (build_loss(options, is_classification=is_classes, is_weighted=kind) for kind in (True, False))
    repeated = (x.repeat_interleave(weights.long(), 0) for x in (outputs, targets))
    value = weighted(outputs, targets, weights, loss=each, mean=float(weights.mean())).mean()
    assert float(value) == pytest.approx(float(mean(*repeated).mean()), rel=1e-5)
    with pytest.raises(UserError, match=r"expected one value per example, for the weights of the examples, got th"):
        weighted(outputs, targets, weights, loss=lambda *each: mean(*each).mean(), mean=1.0)


def test_weights_reach_training_and_references(tmp_path):
    """The targets of rows of weight 0 are wrong: no model, no reference and no metric sees them."""
    weights = (RNG.random(NUM) < 0.5) * 3
    rows = [[*VALUES[k], weights[k], VALUES[k, 0] + 50 * (weights[k] == 0)] for k in range(NUM)]
    path = write_rows(tmp_path / "a.csv", ("a", "b", "c", "w", "y"), rows)
    fast = ("evaluation.learning_rate=0.1", "evaluation.training.schedule=constant")
    task, plain = (make_task(path, *fast, f"task_options.weights={name}") for name in ("w", ""))
    assert task.input_sizes == (3,)
    assert task.fingerprint() != plain.fingerprint()
    tree = estimator_method(task, "tree", lambda seed: DecisionTreeRegressor(random_state=seed)).result([0])
    assert tree is not None
    assert tree.test[0] > 0.5
    training = ModelTraining(torch.nn.Linear(3, 1), torch.Generator().manual_seed(0))
    task.trainer.continue_training(training, Length(20, 20, 19), validation=task.measure)
    assert training.values[-1] > 0.5
    assert task.test_measure.value(training.model) > 0.5


def test_weights_and_groups_of_arrays(tmp_path, monkeypatch):
    weights, groups = RNG.random(NUM), np.arange(NUM) // 4
    splits = loaded(monkeypatch, (VALUES, NAMES, groups, weights))
    np.savez(tmp_path / "a.npz", x=VALUES, y=NAMES, weights=weights, groups=groups)
    for other in (splits, load_splits(str(tmp_path / "a.npz"), key="k.data", seed=0)):
        weight_of = dict(zip(map(tuple, VALUES.astype(np.float32)), weights.astype(np.float32), strict=True))
        pairs = [(x, w) for part in other for x, w in zip(part.inputs.tolist(), part.weights.tolist(), strict=True)]
        assert all(weight_of[tuple(x)] == w for x, w in pairs)
    table = loaded(monkeypatch, (pd.DataFrame(VALUES), NAMES, groups, weights))
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(table, splits, strict=True))


def claims(tmp_path: Any) -> Any:
    rows = [[*VALUES[k], np.exp(6 + 2 * VALUES[k, 0] + VALUES[k, 1])] for k in range(NUM)]
    return write_rows(tmp_path / "a.csv", ("a", "b", "c", "claim"), rows)


def test_heavy_tail_is_predicted_by_its_logarithm_and_inverted(tmp_path):
    path = claims(tmp_path)
    splits = with_standard_targets(load_splits(str(path), key="k.data", seed=0))
    assert any("target: a heavy tail" in line and "k.target_transform=none" in line for line in splits.summary)
    columns = TableColumns.from_dict(json.loads(json.dumps(columns_of(splits).to_dict())))
    predicted = np.sort(columns.predictions(np.concatenate([part.targets for part in splits])[:, None]))
    assert np.allclose(predicted, np.sort(pd.read_csv(path)["claim"]), rtol=1e-3)
    assert columns.predictions(np.array([[-100.0]])).tolist() == [0]
    plain = load_splits(str(path), key="k.data", seed=0, target_transform="none")
    assert columns_of(plain).target.transform == ""
    with pytest.raises(UserError, match=r"expected numbers of 0 or more with k.target_transform=log1p, got -"):
        load_splits(str(path), key="k.data", seed=0, target="a", target_transform="log1p")


def test_metric_of_a_transformed_target_is_in_its_units(tmp_path):
    task = make_task(claims(tmp_path))
    targets, target = task.validation.targets, columns_of(task.splits_in_use).target
    outputs = targets + 0.3
    true, predicted = (target.predictions(each.numpy()) for each in (targets, outputs))
    constant = target.predictions(task.train.targets.numpy()).mean()
    expected = 1 - ((true - predicted) ** 2).sum() / ((true - constant) ** 2).sum()
    assert task.measure.value_of([(outputs, targets)]) == pytest.approx(expected, rel=1e-3)
