"""Labelled examples from CSV and Parquet files, read by pandas."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gflownet.errors import UserError, counted, with_summary
from gflownet.evaluation.data.examples import IGNORED
from gflownet.evaluation.data.labelled_arrays import LabelledArrays, checked_weights, class_numbers
from gflownet.evaluation.data.table_fitting import ORDER, RawTable, find_columns, is_plain, is_typed, summary_of
from gflownet.files import read_bytes
from gflownet.options import leaves
from gflownet.translation.table_columns import (
    YES_NO,
    Column,
    ColumnKind,
    check_cells,
    formats_of,
    frame_of,
    is_missing,
    is_number,
    number_of,
    parsed,
    text_of,
)

DataFrame = Series = Any  # of pandas, which only tables import
# Columns of whole numbers with at most this many different values are classes.
MAX_CLASSES = 50
_SEPARATORS = "\t;|,"
_NUM_SNIFFED, _NUM_TYPED = 50, 1000  # lines in which the separator is found, and rows in which the header is
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True)
class Reading:
    """How a file is read, for all of its kinds."""

    target: str = ""  # column, or several of numbers with commas; empty: the last
    kind: str = "auto"  # of the target: classes, numbers or auto
    header: str = "auto"  # whether the first row has the names: yes, no or auto
    encoding: str = ""  # of a text file; empty: UTF-8, UTF-16 with a mark, or cp1252
    columns: Mapping[str, Any] = field(default_factory=dict)  # kinds of columns by name, see ColumnKind
    group: str = ""  # column whose equal values stay in one split
    time: str = ""  # column in whose order the rows are split
    weights: str = ""  # column, or array of an npz file, of the weights of the examples in loss and metrics
    target_transform: str = "auto"  # of numbers before they are standardised: log1p, none or auto
    duplicates: str = "together"  # equal examples: together in one split, keep, or refuse them in several
    size: int = 0  # side of the images of a folder; 0: as they are
    alpha: str = "white"  # colour behind transparent pixels, or keep
    ignored: int = IGNORED  # class of positions without a target


def read_table(path: Path, *, key: str, reading: Reading, train: LabelledArrays | None) -> LabelledArrays:
    """Return the examples of a CSV or Parquet file.

    Args:
        path: with or without .gz.
        key: option that names it, for errors.
        reading: target and kinds of columns.
        train: training examples, whose columns, classes and kinds these have; None: these are the training examples.

    Raises:
        UserError: missing or other columns, values that do not fit, or a class that the training examples lack.
    """
    lines, where, group = list[str](), f"{key}: {path}", key.rpartition(".")[0]
    expected = () if train is None or not train.columns else (*train.columns, *train.target_names)
    with with_summary(lines):
        frame, mark = _frame(path, where, group, reading, expected, lines)
        return examples_of(frame, where=where, reading=reading, train=train, lines=lines, mark=mark)


def examples_of(
    frame: DataFrame,
    *,
    where: str,
    reading: Reading,
    train: LabelledArrays | None = None,
    lines: Sequence[str] = (),
    mark: str = ".",
) -> LabelledArrays:
    """Return the examples of a table: of a file, or from memory.

    Args:
        frame: cells by column; its index has the numbers of the rows.
        where: option and source, for errors.
        reading: as for `read_table`, as `train`, and its errors.
        lines: of the summary.
        mark: decimal mark, see `find_columns`.
    """
    group, lines = where.partition(":")[0].rpartition(".")[0], list(lines)
    with with_summary(lines):
        targets, inputs = _names(frame, where, reading, train)
        for target in targets:
            frame = _with_target(frame, target, where, lines)
        ignored = {name for name, kind in leaves(reading.columns) if kind == ColumnKind.IGNORED}
        hint = f"give each entry its own column, {group}.columns.NAME=ignored leaves it out"
        check_cells(frame[[name for name in inputs if name not in ignored]], where=where, hint=hint)
        check_cells(frame[targets], where=where, hint=f"{group}.target takes another column")
        table = frame[inputs]
        raw = _parsed(table, where=where, group=group, kinds=reading.columns, train=train, mark=mark)
        with with_summary(summary_of(raw)):
            raw, order = _ordered(raw, reading, where=where) if train is None else (raw, {})
            options: Any = {"group": group, "train": train, "mark": mark}
            found = _targets(frame[targets], where, kind=reading.kind, **options)
            for target, written in zip(targets, found.get("target_formats", ()), strict=False):
                lines += [f"{where}: column {target}: numbers are written as {written}"] * bool(written)
            if reading.weights in frame:
                cells = frame[[reading.weights]]
                weights = _targets(cells, where, kind="numbers", group=group, train=None, mark=mark)["targets"]
                order["weights"] = checked_weights(weights, where=f"{where}: column {reading.weights}")
                lines.append(f"{where}: column {reading.weights}: weights of the rows in loss and metrics")
    numbers = np.stack([*raw.values()], axis=1) if is_plain(raw) else np.zeros((len(frame), 0))
    found |= {"columns": tuple(inputs), "target": ",".join(targets), "table": raw, "summary": tuple(lines)}
    return LabelledArrays(numbers, **found, **order)


def _names(frame: DataFrame, where: str, reading: Reading, train: LabelledArrays | None) -> tuple[list[str], list[str]]:
    """Return the names of the targets and of the inputs of a table. Raises UserError for missing or other columns."""
    names, weights = list(frame.columns), reading.weights
    if repeated := [name for name, num in Counter(names).items() if num > 1]:
        raise UserError(f"{where}: expected different names of columns, got {repeated[0]!r} twice")
    rest = [name for name in names if name != weights]
    if len(rest) < 2:
        raise UserError(f"{where}: expected two or more columns, got one")
    if train is not None and train.columns:
        targets, inputs = list(train.target_names), list(train.columns)
        if sorted(rest) != sorted([*inputs, *targets]):
            got = f"{', '.join([*inputs, *targets])}, got {', '.join(rest)}"
            raise UserError(f"{where}: expected the columns of the training file, {got}")
        return targets, inputs
    target = reading.target or rest[-1]
    targets = [target] if target in names else [name.strip() for name in target.split(",")]
    for name in filter(None, (*targets, reading.group, reading.time, weights)):
        if name not in names:
            raise UserError(f"{where}: expected a column {name!r}, got {', '.join(names)}")
    return targets, [name for name in rest if name not in targets]


def joined(inputs: Any, targets: Any, order: Mapping[str, Any]) -> tuple[DataFrame, dict[str, str]]:
    """Return a table of inputs, targets [N] or [N, K], groups and weights, and the fields of Reading that name these.

    Targets are a column of the inputs without any. Raises ValueError for other numbers of them than of rows.
    """
    import pandas

    frame, names = frame_of(inputs), dict[str, str]()

    def added(cells: Any, name: str) -> str:
        while name in frame:
            name += "_"
        frame[name] = pandas.Series(cells).set_axis(frame.index)
        return name

    if isinstance(targets, pandas.DataFrame) or np.ndim(targets) == 2:
        columns = pandas.DataFrame(targets).items()
        names["target"] = ",".join([added(x, n if isinstance(n, str) else f"target {n}") for n, x in columns])
    elif targets is not None:
        names["target"] = added(targets, str(getattr(targets, "name", None) or "target"))
    for option, each in order.items():
        names |= {} if each is None else {option: added(each, option)}
    return frame, names


def _parsed(
    frame: DataFrame, *, where: str, group: str, kinds: Mapping[str, Any], train: LabelledArrays | None, mark: str
) -> RawTable:
    """Return the parsed cells of the inputs, by the columns of the training table, else by those of the cells."""
    columns = None if train is None or train.table is None else list(train.table)
    if columns is None:
        named = dict(leaves(kinds)) if train is None else {}
        columns = find_columns(frame, kinds=named, group=group, where=where, mark=mark)
    raw = {c: parsed(frame[c.name].tolist(), c, where=where, rows=frame.index) for c in columns}
    if train is not None and train.table is None and not is_plain(raw):
        raise UserError(f"{where}: expected numbers without gaps, as in the training examples")
    return raw


def _ordered(table: RawTable, reading: Reading, *, where: str) -> tuple[RawTable, dict[str, Any]]:
    """Return a table without the columns that split its rows, and the groups and times of the rows.

    Of dates in whose order the rows are split, only the day number is no input.

    Raises:
        UserError: the column is no input, a row without a value, or times that are neither numbers nor dates.
    """
    order, columns = dict[str, Any](), {column.name: column for column in table}
    words = {"groups": "equal values are in one split", "times": ORDER}
    for kind, name in (("groups", reading.group), ("times", reading.time)):
        column = columns.get(name)
        if name and (column is None or column.kind is ColumnKind.IGNORED):
            raise UserError(f"{where}: expected a column of {kind} that is an input, got {name}")
        if column is None:
            continue
        cells, is_text = table[column], column.kind is ColumnKind.TEXT
        if is_text and kind == "times":
            raise UserError(f"{where}: column {name}: expected numbers or dates as times, got texts such as {cells[0]}")
        if (cells == "").any() if is_text else np.isnan(cells).any():
            raise UserError(f"{where}: column {name}: expected a value in every row, to split by its {kind}")
        order[kind] = np.unique(cells.astype(str) if is_text else cells, return_inverse=True)[1]
        is_kept = kind == "times" and column.kind is ColumnKind.DATE
        columns[name] = replace(column, kind=column.kind if is_kept else ColumnKind.IGNORED, words=words[kind])
    return dict(zip(columns.values(), table.values(), strict=True)), order


def _frame(
    path: Path, where: str, group: str, reading: Reading, expected: Sequence[str], lines: list[str]
) -> tuple[DataFrame, str]:
    """Return the cells of a file, by column and number of row, and its decimal mark; `lines` gets what was found."""
    import pandas

    if ".parquet" in path.name:
        try:
            frame = pandas.read_parquet(path)
        except ImportError:
            hint = "pip install 'gflownet[parquet]'"
            raise UserError(f"{where}: expected the package pyarrow, got none: {hint}") from None
        return frame_of(frame), "."
    text = _decoded(read_bytes(path), where, group, reading.encoding, lines)
    named = re.match(r'"?sep=([^\n])"?\n', text)
    text = text[named.end() :] if named else text
    separator = named[1] if named else _separator(text)
    try:
        options: Any = {"header": None, "dtype": str, "na_filter": False, "skipinitialspace": True}
        frame = pandas.read_csv(io.StringIO(text), sep=separator, **options)
    except pandas.errors.EmptyDataError:
        frame = pandas.DataFrame()
    except pandas.errors.ParserError as error:
        raise _other_length(text, separator, where) or error from None
    if len(frame) < 2:
        raise UserError(f"{where}: expected two or more rows, got {len(frame)}")
    if (frame.iloc[:, -1] == "").any() and (error := _other_length(text, separator, where)):
        raise error  # pandas fills short rows
    frame.index = range(1, len(frame) + 1)
    return _with_names(frame, where, group, reading.header, expected, lines), "," if separator == ";" else "."


def _decoded(content: bytes, where: str, group: str, encoding: str, lines: list[str]) -> str:
    """Return a text in the named encoding, else UTF-8, UTF-16 with its mark, or cp1252. Raises UserError."""
    marked = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "")
    names, error = [encoding] if encoding else [marked] if marked else ["utf-8", "cp1252"], None
    for name in names:
        try:
            text = content.decode(name)
        except (UnicodeDecodeError, LookupError) as reason:
            error = error or " ".join(str(reason).split())
            continue
        if "\0" in text:
            raise UserError(f"{where}: expected text, got null characters; {group}.encoding=utf-16-le takes UTF-16")
        if error:
            word = next(word for word in re.split(r"[\s,;]+", text) if not word.isascii())
            lines.append(f"{where}: not UTF-8, read as {name} (such as {word}); {group}.encoding names another")
        return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = f"expected text in {' or '.join(names)}, got {error}"
    raise UserError(f"{where}: {text}; {group}.encoding=latin1 is another encoding")


def _separator(text: str) -> str:
    """Return the separator that divides most of the first lines into equal numbers of columns, two or more."""
    lines = [line for line in text.split("\n", _NUM_SNIFFED)[:_NUM_SNIFFED] if line.strip()]
    counts = {mark: Counter(len(row) for row in csv.reader(lines, delimiter=mark) if row) for mark in _SEPARATORS}
    sizes = {mark: (num > 1, rows, num) for mark, each in counts.items() for num, rows in each.most_common(1)}
    return max(sizes, key=lambda mark: sizes[mark], default=",")


def _other_length(text: str, separator: str, where: str) -> UserError | None:
    """Return the error of the first row with another number of cells than the first one, if there is one."""
    rows = [row for row in csv.reader(io.StringIO(text), delimiter=separator) if row]
    wrong = next((number for number, row in enumerate(rows, start=1) if len(row) != len(rows[0])), None)
    if wrong is None:
        return None
    return UserError(f"{where}: row {wrong}: expected {len(rows[0])} columns, got {len(rows[wrong - 1])}")


def _with_names(
    frame: DataFrame, where: str, group: str, header: str, expected: Sequence[str], lines: list[str]
) -> DataFrame:
    """Return cells with the names of the first row, or 0, 1, 2, ..."""
    first = [cell.strip() for cell in frame.iloc[0]]
    is_known = header != "auto" or sorted(first) == sorted(expected)
    has_names = header != "no" if is_known else _is_header(frame)
    if not has_names:
        found = f"the first row has no names, columns are 0 to {len(first) - 1}; {group}.header=yes reads names"
        lines += [f"{where}: {found}"] * (not is_known)
        return frame.set_axis(list(map(str, range(len(first)))), axis=1)
    if not is_known and any(map(is_number, first)):
        lines.append(f"{where}: the first row has the names {', '.join(first)}; {group}.header=no reads it as data")
    names = [name or f"Unnamed: {place}" for place, name in enumerate(first)]  # as in pandas
    frame = frame.iloc[1:].set_axis(names, axis=1)
    return frame.loc[:, [bool(old) or not frame.iloc[:, n].map(is_missing).all() for n, old in enumerate(first)]]


def _is_header(frame: DataFrame) -> bool:
    """Return whether the first row has names, by the cells below it.

    It has where a text is above numbers or dates, or where no text is one of the repeated ones below. A row of numbers
    has names where they count up, such as years, and are outside of their columns.
    """
    votes, numbers, is_outside = list[bool](), list[float](), True
    for _, cells in frame.iloc[:_NUM_TYPED].items():
        head, *texts = (cell.strip() for cell in cells)
        texts = [text for text in texts if not is_missing(text)]
        if (number := number_of(head)) is not None:
            below = [each for text in texts if (each := number_of(text)) is not None]
            is_outside &= bool(below) and not min(below) <= number <= max(below)
            numbers.append(number)
        elif texts and not is_missing(head) and not formats_of([head, *texts]):
            if is_typed(texts):
                return True
            votes += [head not in texts] * (len({*texts}) <= len(texts) / 2)
    if votes:
        return all(votes)
    counts_up = numbers == [numbers[0] + place for place in range(frame.shape[1])] if numbers else True
    return counts_up and is_outside


def _with_target(frame: DataFrame, target: str, where: str, lines: list[str]) -> DataFrame:
    """Return the rows with a target."""
    is_empty = frame[target].map(is_missing)
    if is_empty.any():
        marks = Counter("nothing" if str(cell).strip() == "" else str(cell).strip() for cell in frame[target][is_empty])
        words = ", ".join(f"{mark} {num:,}" for mark, num in marks.most_common(5))
        rows = counted(int(is_empty.sum()), "row")
        lines.append(f"{where}: column {target}: {rows} of {len(frame):,} without a value left out ({words})")
    return frame[~is_empty]


def _targets(
    frame: DataFrame, where: str, *, group: str, kind: str, train: LabelledArrays | None, mark: str
) -> dict[str, Any]:
    """Return columns as classes, with their texts, or as numbers, with their format; fields of LabelledArrays.

    With `kind` auto: text is classes; whole numbers are classes if at most MAX_CLASSES different ones occur. Several
    columns are numbers.
    """
    columns = [Column(name, ColumnKind.NUMBER) for name in frame]
    if len(columns) > 1 and kind == "classes":
        raise UserError(f"{where}: expected one target of classes, got {', '.join(frame)}; {group}.kind=numbers")
    kind = "numbers" if len(columns) > 1 else kind
    if train is not None:
        kind, formats = "classes" if train.has_classes else "numbers", train.target_formats or [""] * len(columns)
        columns = [replace(column, format=each) for column, each in zip(columns, formats, strict=True)]
    elif kind != "classes":
        found = find_columns(frame, kinds={}, group=group, where=where, mark=mark, is_target=True)
        is_number = [each.kind is ColumnKind.NUMBER and each.format != YES_NO for each in found]
        columns = [
            replace(each, kind=ColumnKind.NUMBER, format=each.format * use)
            for each, use in zip(found, is_number, strict=True)
        ]
        kind = "classes" if kind == "auto" and not all(is_number) else kind
    if kind != "classes":
        numbers = [parsed(frame[each.name].tolist(), each, where=where, rows=frame.index) for each in columns]
        targets = numbers[0] if len(numbers) == 1 else np.stack(numbers, axis=1)
        if kind == "numbers" or (targets % 1).any() or len(np.unique(targets)) > MAX_CLASSES:
            return {"targets": targets, "target_formats": tuple(each.format for each in columns)}
    # The classes of other data than tables are whole numbers.
    labels = None if train is None else train.labels or tuple(map(str, range(int(train.targets.max()) + 1)))
    texts, where = [*map(text_of, frame.iloc[:, 0])], f"{where}: column {columns[0].name}"
    targets, labels = class_numbers(texts, where=where, rows=frame.index, labels=labels)
    return {"targets": targets, "labels": labels}
