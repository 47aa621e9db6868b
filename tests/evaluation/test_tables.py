"""Tables with gaps, texts, dates and booleans: what is fitted, on which rows, and how raw rows are predicted."""

import json
import re
import subprocess
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from gflownet.errors import UserError
from gflownet.evaluation.data.datasets import load_splits, standardised, with_standard_targets
from gflownet.evaluation.data.examples import Splits
from gflownet.evaluation.data.table_fitting import MAX_VALUES, MIN_ROWS, find_columns, fitted
from gflownet.translation.table_columns import ColumnKind, TableColumns, Target, parsed
from tests.evaluation.table_data import FORMS, HOUSE_COLUMNS, columns_of, houses, make_task, write_houses, write_rows

TARGET = Target("y", has_classes=False)


def load(path: Path, **options: Any) -> Splits:
    return load_splits(str(path), **{"key": "task_options.data", "seed": 0} | options)


def fit(cells: dict[str, list[Any]], rows: Any = slice(None), **kinds: str) -> tuple[TableColumns, np.ndarray]:
    """Return the columns fitted on some rows, and the inputs of all rows."""
    frame = pandas.DataFrame(cells, dtype=object)
    table = {
        column: parsed(cells[column.name], column, where="data: t.csv", rows=range(len(frame)))
        for column in find_columns(frame, kinds=kinds, group="task_options", where="data: t.csv")
    }
    num = len(next(iter(cells.values())))
    columns = fitted(table, np.arange(num)[rows], TARGET)
    return columns, columns.features({column.name: each for column, each in table.items()})


def test_kinds_of_columns_are_found(tmp_path):
    columns = columns_of(load(write_houses(tmp_path / "houses.csv")))
    kinds = {column.name: (str(column.kind), column.has_mark) for column in columns.columns}
    assert kinds == {
        "rooms": ("number", True),
        "city": ("text", False),
        "sold": ("date", False),
        "garden": ("number", True),
        "area": ("number", False),
    }
    assert columns.columns[1].values == ("", "Berlin", "Paris", "Rome")
    assert re.match(r"number, \d+(\.\d+)? % missing: median \d(\.5)? and a mark$", columns.columns[0].words)


def test_inputs_equal_those_of_a_column_transformer():
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random((300, 2)) < 0.2, np.nan, rng.normal(size=(300, 2)))
    texts = rng.choice([f"t{k:02}" for k in range(40)] + [""], 300, p=[0.5, *[0.01] * 39, 0.11]).tolist()
    cells = {"a": numbers[:, 0].tolist(), "b": numbers[:, 1].tolist(), "t": texts}
    columns, inputs = fit(cells, slice(200))
    raw = np.stack([*numbers.T.astype(object), np.array(texts, dtype=object)], axis=1)
    encoder = OneHotEncoder(
        max_categories=MAX_VALUES + 1, min_frequency=MIN_ROWS, handle_unknown="infrequent_if_exist", sparse_output=False
    )
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    transformer: Any = ColumnTransformer([("numbers", imputer, [0, 1]), ("texts", encoder, [2])], sparse_threshold=0)
    transformer.fit(raw[:200])
    expected = transformer.transform(raw).astype(np.float32)  # a, b, mark of a, mark of b, texts
    assert np.array_equal(inputs, expected[:, [0, 2, 1, 3, *range(4, expected.shape[1])]])
    assert 1 < len(columns.columns[2].values) <= MAX_VALUES
    assert columns.columns[2].has_others


def test_nothing_is_fitted_on_validation_and_test_rows(tmp_path):
    rows = houses()
    splits = load(write_rows(tmp_path / "a.csv", HOUSE_COLUMNS, rows))
    in_training = {round(float(area), 2) for area in splits.train.inputs[:, -1]}
    assert len(in_training) > 100
    for row in rows:  # other cells in all rows that are not trained on
        if round(float(np.float32(row[4])), 2) not in in_training:
            row[:4] = ["9999", "Atlantis", "1900-01-01", "yes"]
    other = load(write_rows(tmp_path / "b.csv", HOUSE_COLUMNS, rows))
    assert splits.columns == other.columns
    assert torch.equal(splits.train.inputs, other.train.inputs)
    assert not torch.equal(splits.test.inputs, other.test.inputs)
    cells = {name: [row[place] for row in rows] for place, name in enumerate(HOUSE_COLUMNS[:-1])}
    assert fit(cells)[0].columns != columns_of(splits).columns  # fitted on all rows


def test_rare_and_unknown_texts_share_an_input():
    columns, inputs = fit({"t": ["a"] * 5 + ["b"] * 5 + ["c"], "x": list(range(11))})
    assert inputs[[0, 5, 10], :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    with pytest.warns(UserWarning, match=r"^1 of 2 values of t are unknown to the training rows, such as never seen$"):
        encoded = columns.encoded([{"t": "never seen", "x": 1}, {"t": "c", "x": 1}])
    assert encoded[:, :3].tolist() == [[0, 0, 1]] * 2


def test_missing_dates_are_marked_with_the_median():
    columns, inputs = fit({"d": ["2020-01-01", "", "2020-01-03", "2020-01-05"], "x": [1, 2, 3, 4]})
    assert columns.columns[0].words == "date: day, year, week, 25 % missing: median 2020-01-03 and a mark"
    assert inputs[:, 5].tolist() == [0, 1, 0, 0]
    assert inputs[1, 0] == inputs[2, 0]


def test_columns_without_use_are_left_out():
    cells = {"id": [f"n{k}" for k in range(20)], "none": [""] * 20, "x": list(range(20)), "zip": list(range(20))}
    columns, inputs = fit(cells, zip="ignored")
    words = {column.name: column.words for column in columns.columns if column.kind is ColumnKind.IGNORED}
    assert words["id"] == "20 different texts, none of them in 3 rows"
    assert (words["none"], words["zip"]) == ("no value in any row", "by the options")
    assert columns.words()[-2:] == [("zip", "left out: by the options"), ("y", "target: number")]
    assert inputs.shape == (20, 1)


@pytest.mark.parametrize(
    ("cells", "format"),
    [
        (["2020-01-31", "2020-02-01 12:00"], "iso"),
        (["31.01.2020", "01.02.2020"], "%d.%m.%Y"),
        (["01/31/2020", "02/01/2020"], "%m/%d/%Y"),
        (["31/01/2020", "01/02/2020"], "%d/%m/%Y"),
        ([date(2020, 1, 31), datetime(2020, 2, 1, tzinfo=UTC)], "iso"),
    ],
)
def test_formats_of_dates(cells, format):
    columns, inputs = fit({"d": cells})
    assert (columns.columns[0].format, columns.columns[0].kind) == (format, "date")
    assert inputs[0, 0] == 18292
    assert int(inputs[1, 0]) == 18293


def test_predictions_are_in_the_units_of_the_table(tmp_path):
    splits = with_standard_targets(standardised(load(write_houses(tmp_path / "houses.csv"))))
    columns = TableColumns.from_dict(json.loads(json.dumps(columns_of(splits).to_dict())))
    assert json.dumps(columns.to_dict()) == json.dumps(columns_of(splits).to_dict())
    prices = columns.predictions(splits.test.targets[:, None].numpy())
    expected = {float(row[5]) for row in houses()}
    assert all(min(abs(price - each) for each in expected) < 1e-3 for price in prices.tolist())
    rows = [dict(zip(HOUSE_COLUMNS, row, strict=True)) for row in houses()]
    encoded = {tuple(row) for row in columns.encoded(rows).tolist()}
    assert all(tuple(row) in encoded for part in splits for row in part.inputs.tolist())


def test_rows_of_all_kinds_have_equal_inputs(tmp_path):
    columns = columns_of(load(write_houses(tmp_path / "houses.csv")))
    row = {"rooms": None, "city": "Rome", "sold": date(2020, 1, 5), "garden": True, "area": 80}
    variants: list[Any] = [[row], iter([row]), [list(row.values())]]
    variants.append([{"rooms": "?", "city": "Rome", "sold": "2020-01-05", "garden": "yes", "area": "80.0", "price": 1}])
    assert len({tuple(columns.encoded(rows)[0].tolist()) for rows in variants}) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"rooms": "many", "city": "", "sold": "", "garden": "", "area": 1}],
            "rows: column rooms: row 0: expected a fin",
        ),
        (
            [{"rooms": 1, "city": "", "sold": "soon", "garden": "", "area": 1}],
            "column sold: row 0: expected a date (iso)",
        ),
        ([{"rooms": 1, "city": ""}], "rows: expected a column 'sold', got rooms, city"),
        ([], "rows: expected a column 'rooms', got none"),
        ([[1, 2]], "rows: expected mappings, or sequences of the 5 columns rooms, city, sold, garden, area"),
    ],
)
def test_rows_that_do_not_fit_raise(tmp_path, rows, message):
    columns = columns_of(load(write_houses(tmp_path / "houses.csv")))
    with pytest.raises(ValueError, match=re.escape(message)):
        columns.encoded(rows)


@pytest.mark.parametrize("data", [None, {}, {"columns": [{"name": "a", "kind": "pickle"}], "target": {}}, []])
def test_other_json_raises(data):
    with pytest.raises(ValueError, match=r"^expected the columns of a table, got "):
        TableColumns.from_dict(data)


def test_decimal_commas_between_semicolons(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;t;y\n" + "".join(f"{k},5;x, {k % 2};{k},25\n" for k in range(30)))
    splits = load(path)
    assert sorted(x for part in splits for x in part.inputs[:, 0].tolist()) == [k + 0.5 for k in range(30)]
    assert columns_of(splits).columns[1].values == ("x, 0", "x, 1")


def test_equal_rows_of_few_kinds_are_split_and_counted(tmp_path):
    path = write_rows(tmp_path / "a.csv", ("x", "z", "y"), [[k % 2, k % 3, k % 2] for k in range(60)])
    splits = load(path)
    assert [len(part) for part in splits] == [36, 12, 12]
    assert any("54 of 60 rows are equal to another one in all inputs; too few different" in x for x in splits.summary)


def test_header_by_option(tmp_path):
    rows = [[colour, size, kind] for colour in ("red", "blue") for size in ("big", "small") for kind in ("a", "b")] * 5
    path = write_rows(tmp_path / "a.csv", (), rows)
    assert sum(len(part) for part in load(path, duplicates="keep")) == 40
    assert sum(len(part) for part in load(path, header="yes", duplicates="keep")) == 39


def test_header_above_a_column_with_gaps(tmp_path):
    path = write_rows(tmp_path / "a.csv", ("1999", "size", "y"), [[k, "" if k % 3 else k, k % 2] for k in range(20)])
    columns = columns_of(load(path))
    assert [column.name for column in columns.columns] == ["1999", "size"]


def test_groups_stay_in_one_split(tmp_path):
    rows = [[k % 20, k, "ab"[k % 20 % 2]] for k in range(200)]
    path = write_rows(tmp_path / "a.csv", ("patient", "x", "y"), rows)

    def patients(splits: Splits) -> list[set[int]]:
        return [{int(x) % 20 for x in part.inputs[:, -1].tolist()} for part in splits]

    train, validation, test = patients(load(path, group="patient"))
    assert [train & validation, train & test, validation & test] == [set(), set(), set()]
    assert [len(train), len(validation), len(test)] == [12, 4, 4]
    assert patients(load(path, group="patient", seed=1)) != [train, validation, test]
    assert all(len(each) > 12 for each in patients(load(path)))  # patients are in several splits
    splits = load(path, group="patient")
    assert splits.train.inputs.shape[1] == 1
    assert all(part.targets.unique().numel() == 2 for part in splits)


def test_time_orders_the_splits(tmp_path):
    days = np.random.default_rng(0).permutation(100)
    rows = [[datetime.fromtimestamp(86400 * int(day), UTC).date().isoformat(), day, day * 0.5] for day in days]
    splits = load(write_rows(tmp_path / "a.csv", ("when", "x", "y"), rows), time="when")
    parts = [sorted((2 * part.targets).int().tolist()) for part in splits]
    assert parts == [list(range(60)), list(range(60, 80)), list(range(80, 100))]
    assert columns_of(splits).columns[0].parts == ("year", "week")  # the day number is always larger than in training


def test_test_file_has_the_kinds_of_the_training_file(tmp_path):
    train = write_rows(tmp_path / "a.csv", ("x", "t", "y"), [[k, "pq"[k % 2], k * 0.5] for k in range(40)])
    test = write_rows(tmp_path / "b.csv", ("x", "t", "y"), [["", "7", 1.5], [3, "p", 2.5]])
    splits = load(train, test=str(test))
    assert splits.test.inputs.tolist() == [[columns_of(splits).columns[0].fill, 0, 0], [3, 1, 0]]


@pytest.mark.parametrize(
    ("cells", "options", "message"),
    [
        ([*range(30), "many"], {}, "column x: row 32: expected a number, as in most rows, got many; "),
        ([*range(30), "<30"] * 2, {}, "column x: row 32: expected a number, as in most rows, got <30; "),
        (range(30), {"columns": {"z": "text"}}, "task_options.columns.z: expected a column out of x, t, got z"),
        (
            range(30),
            {"columns": {"x": "txt"}},
            "columns.x: expected a kind out of number, date, text, words, ignored, got",
        ),
        (range(30), {"columns": {"t": "date"}}, "column t: row 2: expected a date (iso), got p"),
        (range(30), {"group": "z"}, "expected a column 'z', got x, t, y"),
        (range(30), {"time": "t"}, "column t: expected numbers or dates as times, got texts such as p"),
        ([*range(30), ""], {"time": "x"}, "column x: expected a value in every row, to split by its times"),
        (range(30), {"group": "y"}, "expected a column of groups that is an input, got y"),
        (["inf", *range(30)], {}, "column x: row 2: expected a finite number, got inf"),
        ([*range(-1, 30)], {"weights": "x"}, "column x: expected weights of 0 or more, got -1.0"),
        ([*range(30), ""], {"weights": "x"}, "column x: expected weights of 0 or more, got nan"),
        (range(30), {"weights": "t"}, "column t: row 2: expected a finite number, got p"),
        (
            range(30),
            {"columns": {"x": "ignored", "t": "ignored"}},
            "expected a column of inputs with values, got x (by the options), t (",
        ),
        ([*range(3)], {"group": "x"}, "expected 5 or more groups, got 3"),
    ],
)
def test_columns_that_do_not_fit_raise(tmp_path, cells, options, message):
    rows = [[cell, "pq"[k % 2], k * 0.5] for k, cell in enumerate([*cells] * (1 if len(cells) > 5 else 10))]
    path = write_rows(tmp_path / "a.csv", ("x", "t", "y"), rows)
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        load(path, **options)
    assert str(raised.value).startswith("task_options.")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [("numbers", "b1a3d7ad13ca628693a6ac9862c86fa7"), ("classes", "8b88d002e5ecff6985bb576e982724b7")],
)
def test_fingerprint_of_a_table_of_numbers_is_that_of_earlier_versions(tmp_path, name, fingerprint):
    rng = np.random.default_rng(0)
    with (tmp_path / "numbers.csv").open("w") as file:
        file.write("a,b,c,y\n")
        for i in range(300):
            a, b = rng.normal(size=2) * [1, 1000] + [5, 1e6]
            file.write(f"{a:.4f},{b:.2f},{i % 7},{a * 2 + b / 500 + rng.normal():.3f}\n")
    with (tmp_path / "classes.csv").open("w") as file:
        for _ in range(300):
            a, b = rng.normal(size=2)
            file.write(f"{a:.4f},{b:.2f},3,{'xy'[int(a + b > 0)]}\n")
    assert make_task(tmp_path / f"{name}.csv").fingerprint() == fingerprint


def goods_file(encoding: str = "cp1252", num: int = 60) -> bytes:
    goods = [("Möl", 56.5), ("brövd", 95.25), ("Mål", 16.75)]
    rows = [f"{good};{k},5;{str(price + k).replace('.', ',')}" for k, (good, price) in enumerate(goods * (num // 3))]
    return "\r\n".join(["vara;vikt;pris", *rows, ""]).encode(encoding)


@pytest.mark.parametrize(
    ("encoding", "option", "line"),
    [
        ("cp1252", "", "not UTF-8, read as cp1252 (such as Möl); task_options.encoding names another"),
        ("utf-16", "", ""),
        ("utf-8-sig", "", ""),
        ("utf-16-le", "utf-16-le", ""),
        ("cp850", "cp850", ""),
    ],
)
def test_encodings_of_texts(tmp_path, encoding, option, line):
    (tmp_path / "a.csv").write_bytes(goods_file(encoding))
    splits = load(tmp_path / "a.csv", encoding=option)
    assert columns_of(splits).columns[0].values == ("Mål", "Möl", "brövd")
    assert sorted(x for part in splits for x in part.inputs[:, 3].tolist()) == [k + 0.5 for k in range(60)]
    assert splits.train.targets.is_floating_point()
    assert any(line in each for each in splits.summary)
    assert line or not any("cp1252" in each for each in splits.summary)


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (goods_file("utf-16-le"), "", "expected text, got null characters; task_options.encoding=utf-16-le takes"),
        (goods_file("cp850"), "utf-8", "expected text in utf-8, got 'utf-8' codec can't decode"),
        (
            goods_file(),
            "cp9999",
            "expected text in cp9999, got unknown encoding: cp9999; task_options.encoding=latin1 is",
        ),
        (
            goods_file() + b"\x81;1,5;2,5\n",
            "",
            "expected text in utf-8 or cp1252, got 'utf-8' codec can't decode byte 0xf6",
        ),
    ],
)
def test_undecodable_text_raises(tmp_path, content, encoding, message):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)):
        load(tmp_path / "a.csv", encoding=encoding)


@pytest.mark.parametrize("mark", ["NA", "?", "-", "nan", "", "None", "#N/A"])
def test_rows_without_target_are_left_out(tmp_path, mark):
    rows = [[k, mark if k % 10 == 3 else str(k % 2)] for k in range(100)]
    splits = load(write_rows(tmp_path / "a.csv", ("age", "outcome"), rows))
    assert (sum(map(len, splits)), splits.num_outputs) == (90, 2)
    assert any(f"10 rows of 100 without a value left out ({mark or 'nothing'} 10)" in line for line in splits.summary)
    tested = load(tmp_path / "a.csv", test=str(tmp_path / "a.csv"))
    assert len(tested.test) == 90


@pytest.mark.parametrize(
    "codes",
    [
        ("1_2", "12", "1_20"),
        ("01234", "12345", "20001"),
        ("007", "7", "12"),
        ("12345678901234567", "1", "2"),
        ("2E3", "2000", "3E1"),
        ("+491512345678", "491512345678", "30"),
    ],
)
def test_codes_that_look_like_numbers_are_texts(tmp_path, codes):
    path = write_rows(tmp_path / "a.csv", ("code", "y"), [[codes[k % 3], codes[k % 3]] for k in range(60)])
    splits = load(path, duplicates="keep")
    assert set(columns_of(splits).columns[0].values) == set(codes)
    assert set(map(str, columns_of(splits).target.labels)) == set(codes)


@pytest.mark.parametrize(
    ("separator", "price", "share"),
    [
        (",", '"$1,{0}.21"', "60.{0}%"),
        (",", '"1,{0}.21"', "(60.{0})"),
        (";", "1{0},21", "60,{0}"),
        (";", "1.{0},21 €", "60,{0} %"),
        (";", '"1{0}.21"', '"60.{0}"'),
        ("|", "1 {0}.21 USD", "60.{0}"),
        ("\t", "1'{0}.21", "60.{0}"),
        (";", "1.{0}", "60,{0}0"),
    ],
)
def test_formats_of_numbers(tmp_path, separator, price, share):
    path = tmp_path / "a.txt"
    cells = [(str(k), price.format(100 + k), share.format(100 + k), "AB"[k % 2]) for k in range(40)]
    path.write_text("\n".join(map(separator.join, [("qty", "price", "share", "kind"), *cells])), encoding="utf-8")
    splits = load(path)
    inputs = torch.cat([part.inputs for part in splits])
    expected = 1100 + inputs[:, 0] + (0.21 if "21" in price else 0)
    torch.testing.assert_close(inputs[:, 1], expected)
    torch.testing.assert_close(inputs[:, 2].abs(), 60.1 + inputs[:, 0] / 1000)
    columns = columns_of(splits)
    raw = [[part.strip('"') for part in row[:3]] for row in cells]
    assert {tuple(row) for row in columns.encoded(raw).tolist()} == {tuple(row) for row in inputs.tolist()}
    numbers = pandas.DataFrame({"share": [0.5], "price": [1140.25], "qty": [3]})
    assert columns.encoded(numbers).tolist() == [[3, 1140.25, 0.5]]
    assert any("written as" in line for line in splits.summary) or (separator in "\t;" and '"' in price)


def test_separator_line_is_no_row(tmp_path):
    (tmp_path / "a.csv").write_text("sep=;\nqty;kind\n" + "".join(f"{k}.5;{'AB'[k % 2]}\n" for k in range(20)))
    splits = load(tmp_path / "a.csv")
    assert sorted(x for part in splits for x in part.inputs[:, 0].tolist()) == [k + 0.5 for k in range(20)]


def test_header_of_years_is_found_and_given(tmp_path):
    rows = [[("EMEA", "APAC")[k // 2 % 2], k % 97, k % 83, ("up", "down")[k % 2]] for k in range(60)]
    path = write_rows(tmp_path / "a.csv", ("region", "2019", "2020", "growth"), rows)
    splits = load(path)
    assert (sum(map(len, splits)), splits.num_outputs) == (60, 2)
    assert "the first row has the names region, 2019, 2020, growth; task_options.header=no" in splits.summary[0]
    task = make_task(
        path, "task_options.header=no", "task_options.columns={'0': ignored}", "task_options.duplicates=keep"
    )
    assert task.num_outputs == 3
    assert make_task(path, "task_options.header=yes", "task_options.target=2020").splits_in_use.columns is not None
    numbers = write_rows(tmp_path / "b.csv", ("2019", "2020", "2021"), [[k, k % 7, k * 0.5] for k in range(60)])
    assert sum(map(len, load(numbers))) == 60


@pytest.mark.parametrize("name", ["Zip=Code", "it's: {x}", "2020"])
def test_printed_options_work_when_pasted(tmp_path, name):
    cells = [*range(20001, 20061), "20007-3413"]
    rows = [[cell, k * 0.5, "ab"[k % 2]] for k, cell in enumerate(cells)]
    path = write_rows(tmp_path / "a.csv", (name, "x", "y"), rows)
    with pytest.raises(UserError, match="got 20007-3413") as raised:
        make_task(path)
    assert [line.split()[-1] for line in raised.value.summary[-2:]] == ["text", "number"]
    words = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {str(raised.value).partition('3413; ')[2]}"],
        capture_output=True,
        text=True,
        check=True,
    )
    options = [word for word in words.stdout.splitlines() if word.startswith("task_options.")]
    assert len(options) == 3
    kinds = [make_task(path, option).splits_in_use.columns.columns[0].kind for option in options]  # type: ignore[union-attr]
    assert kinds == ["ignored", "number", "ignored"]


def test_columns_with_dots_are_named_as_typed(tmp_path):
    path = write_rows(tmp_path / "a.csv", ("Zip.Code", "x", "a=b"), [[20001 + k % 3, k, k % 2] for k in range(60)])
    task = make_task(path, "task_options.columns.Zip.Code=text", "task_options.target=a=b")
    assert task.splits_in_use.columns is not None
    assert [str(column.kind) for column in task.splits_in_use.columns.columns] == ["text", "number"]


def test_free_text_is_left_out_or_a_bag_of_words(tmp_path):
    rows = [[f"the {('good', 'bad')[k % 2]} film of day {k}", k % 7, k % 2] for k in range(60)]
    path = write_rows(tmp_path / "a.csv", ("review", "x", "y"), rows)
    left_out = columns_of(load(path, duplicates="keep")).columns[0]
    assert (left_out.kind, left_out.words) == (
        "ignored",
        "free text; task_options.columns.review=words takes its words",
    )
    task = make_task(path, "task_options.columns.review=words", "task_options.duplicates=keep")
    columns = task.splits_in_use.columns
    assert columns is not None
    assert (task.input_sizes, columns.columns[0].words) == ((129,), "words of a text, 128 inputs")
    texts = columns.encoded([["a good film", 1], ["good film a", 1], ["a bad film", 1]])
    assert (texts[0] == texts[1]).all()
    assert (texts[0] != texts[2]).any()


def test_rows_of_pandas_and_numpy_have_equal_inputs(tmp_path):
    columns = columns_of(load(write_houses(tmp_path / "houses.csv")))
    row = {"rooms": 2, "city": "Rome", "sold": "2020-01-05", "garden": "yes", "area": 80.5}
    frame = pandas.DataFrame([row, row | {"city": "Paris"}])
    expected = columns.encoded([row])
    variants: list[Any] = [frame.iloc[0], frame.iloc[:1], row, {name: [value] for name, value in row.items()}]
    variants += [np.array([[*row.values()]], dtype=object), frame[reversed(row)][:1], frame.assign(price=3)[:1]]
    variants.append([frame.iloc[0]])
    assert all(np.array_equal(columns.encoded(rows), expected) for rows in variants)
    assert columns.encoded(frame).shape == (2, expected.shape[1])


def test_dates_with_zones_are_one_moment(tmp_path):
    moments = ["2020-01-01 12:00 UTC", "2020-01-01T13:00:00+01:00", "2020-01-01T12:00:00Z", "2020-01-01 12:00"]
    rows = [[moments[k % 4], k, k * 0.5] for k in range(40)]
    splits = load(write_rows(tmp_path / "a.csv", ("when", "x", "y"), rows))
    assert splits.train.inputs[:, 0].unique().tolist() == [18262.5]


def test_ambiguous_dates_have_a_line_and_an_option(tmp_path):
    path = write_rows(tmp_path / "a.csv", ("d", "x", "y"), [[f"0{1 + k % 9}/02/2020", k, k * 0.5] for k in range(40)])
    words = columns_of(load(path)).columns[0].words
    assert words.startswith("%m/%d/%Y, or %d/%m/%Y by task_options.columns.d=%d/%m/%Y; date: day")
    column = make_task(path, "task_options.columns.d=%d/%m/%Y").splits_in_use.columns.columns[0]  # type: ignore[union-attr]
    assert column.format == "%d/%m/%Y"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_forms_of_public_files(tmp_path, form):
    (tmp_path / form.name).write_bytes(form.content())
    task = make_task(tmp_path / form.name, *(f"task_options.{name}={value}" for name, value in form.options.items()))
    columns = task.splits_in_use.columns
    assert columns is not None
    kinds = {column.name: str(column.kind) for column in columns.columns} | {columns.target.name: "target"}
    assert kinds == dict(zip(form.names.split(","), form.kinds.split(), strict=True))
    assert [*map(str, columns.target.labels)] == [*form.labels]
