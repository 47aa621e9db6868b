"""Columns of a table as inputs of a model, and its outputs as classes or numbers; stored as JSON, never as a pickle.

N: rows, F: inputs of the model, O: outputs.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from gflownet.errors import UserError

# Texts of a cell without a value, those of pandas among them, and texts of 1 and 0; upper and lower case are alike.
MISSING = {"", "na", "n/a", "nan", "-nan", "nat", "<na>", "null", "none", "nil", "?", "-", "--", ".", "#n/a", "#na"}
BOOLEANS = {"true": 1.0, "yes": 1.0, "t": 1.0, "y": 1.0, "false": 0.0, "no": 0.0, "f": 0.0, "n": 0.0}
# Ways of writing numbers, by an example: decimal mark and mark of thousands.
WRITTEN = {
    "1234.5": (".", ""),
    "1,234.5": (".", ","),
    "1234,5": (",", ""),
    "1.234,5": (",", "."),
    "1 234.5": (".", " "),
    "1 234,5": (",", " "),
    "1'234.5": (".", "'"),
}
PLAIN, YES_NO, _IN = "1234.5", "yes or no", " in "
_UNITS = re.compile(r"US\$|R\$|[$€£¥₹₽₩₺₫฿₴%]|\b(?:USD|EUR|GBP|CHF|JPY|CNY|SEK|NOK|DKK|PLN|kr|zł|Rs)\b\.?")
_SPACES = str.maketrans({"\xa0": " ", "\u202f": " ", "\u2009": " ", "\u2212": "-", "\u2019": "'"})
ISO = "iso"
_DAYS = ("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y", "%d.%m.%y", "%m/%d/%y", "%d/%m/%y")
_DAYS += ("%d %b %Y", "%d-%b-%Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S %z", " %I:%M %p", " %I:%M:%S %p")
_MONTHS = ("%Y-%m", "%Y/%m", "%m/%Y", "%b %Y", "%b-%Y", "%B %Y")
DATE_FORMATS = (ISO, *map("".join, product(_DAYS, _TIMES)), *_MONTHS)
# Periods of a date in days, each of which is two inputs, sine and cosine.
_PERIODS = {"year": 365.2425, "week": 7.0, "hour": 1.0}
_EPOCH = datetime(1970, 1, 1)
_MAX_SHOWN = 10  # classes in the table of columns
NUM_WORDS = 128  # inputs of a column of words
_NESTED = (list, tuple, set, frozenset, Mapping, np.ndarray)  # cells of several values
_MAX_BYTES = 2 * 10**9  # of a sparse matrix as a dense one


class ColumnKind(StrEnum):
    """How the cells of a column are read."""

    NUMBER = "number"
    DATE = "date"
    TEXT = "text"
    WORDS = "words"
    IGNORED = "ignored"


@dataclass(frozen=True)
class Column:
    """A column, as fitted on the training rows."""

    name: str
    kind: ColumnKind
    fill: float = 0.0  # number, date in days since 1970: the median, in place of a missing value
    has_mark: bool = False  # whether one more input marks missing values
    values: Sequence[str] = ()  # text: each is one input; the empty text is a missing value
    has_others: bool = False  # text: whether one more input marks all other values
    rare: Sequence[str] = ()  # text: the other values of the training rows, unless they are too many
    width: int = 0  # text: digits of codes of one length, such as 007, which the number 7 is, too; 0: other texts
    parts: Sequence[str] = ()  # date: day (its number) and names of periods
    format: str = ""  # of numbers (see `formats_of`) or dates
    skips_others: bool = False  # number: other texts are missing values
    words: str = ""  # for the table of columns

    def features(self, cells: np.ndarray) -> np.ndarray:
        """Return the inputs [N, f] of cells [N], the result of `parsed`; indicators last."""
        if self.kind is ColumnKind.TEXT:
            places = {value: place for place, value in enumerate(self.values)}
            codes = np.array([places.get(cell, len(places)) for cell in cells], dtype=np.int64)
            return np.eye(len(places) + 1)[codes][:, : len(places) + self.has_others]
        if self.kind is ColumnKind.WORDS:
            return _hashed_words(cells)
        filled = np.where(np.isnan(cells), self.fill, cells)
        values = [filled] if self.kind is ColumnKind.NUMBER else [x for part in self.parts for x in _part(filled, part)]
        return np.stack([*values, *[np.isnan(cells)] * self.has_mark], axis=1)

    @property
    def is_indicator(self) -> list[bool]:
        """Whether each input is 0 or 1 and therefore not standardised."""
        num = (
            NUM_WORDS
            if self.kind is ColumnKind.WORDS
            else self.kind is ColumnKind.NUMBER or sum(1 if part == "day" else 2 for part in self.parts)
        )
        return [False] * num + [True] * (len(self.values) + self.has_others + self.has_mark)


@dataclass(frozen=True)
class Target:
    """The target of a table."""

    name: str  # empty without a file
    has_classes: bool
    labels: Sequence[Any] = ()  # of the classes; empty: their numbers
    mean: Sequence[float] = ()  # [O] of numbers; empty: predicted as they are
    deviation: Sequence[float] = ()
    transform: str = ""  # of numbers before they are standardised: log1p; empty: none

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Return the classes [N] of logits [N, O], or the numbers [N] or [N, O], in the units of the data."""
        if self.has_classes:
            classes = outputs.argmax(axis=1)
            return np.array(self.labels)[classes] if self.labels else classes
        numbers = outputs * np.array(self.deviation) + np.array(self.mean) if self.mean else outputs
        numbers = np.maximum(np.expm1(numbers), 0) if self.transform else numbers
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table in the order of its file, without the target."""

    columns: Sequence[Column]
    target: Target
    mean: Sequence[float] = ()  # [F] of the training rows; empty: inputs are not standardised
    deviation: Sequence[float] = ()  # [F], 0 for a constant input

    @property
    def inputs(self) -> list[Column]:
        """The columns that are inputs of the model."""
        return [column for column in self.columns if column.kind is not ColumnKind.IGNORED]

    def encoded(self, rows: Any) -> np.ndarray:
        """Return raw rows as inputs [N, F] of the model, float32.

        Args:
            rows: a pandas DataFrame or Series, mappings by name, one mapping of values or of lists, or sequences or an
                array, also sparse or masked, with the columns in their order.

        Raises:
            ValueError: a missing column, or a cell that its column cannot hold.
        """
        frame = frame_of(rows, [column.name for column in self.columns])
        names = list(frame.columns)
        if missing := [column.name for column in self.inputs if column.name not in names]:
            raise ValueError(f"rows: expected a column {missing[0]!r}, got {', '.join(names) or 'none'}")
        check_cells(frame[[column.name for column in self.inputs]], where="rows")
        cells = [(column, frame.iloc[:, names.index(column.name)].tolist()) for column in self.inputs]
        table = {c.name: parsed(each, c, where="rows", rows=range(len(each))) for c, each in cells}
        for line in self.unknown(table):
            warnings.warn(line, stacklevel=3)
        return self.features(table)

    def features(self, cells: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the parsed cells of columns by name as inputs [N, F], float32."""
        inputs = np.concatenate([column.features(cells[column.name]) for column in self.inputs], axis=1)
        inputs = inputs.astype(np.float32)
        if not self.mean:
            return inputs
        deviation = np.array(self.deviation, dtype=np.float32)
        return (inputs - np.array(self.mean, dtype=np.float32)) / np.where(deviation > 0, deviation, np.float32("inf"))

    def unknown(self, cells: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Yield a line for each column of texts about the values that the training rows do not have."""
        for column in self.columns:
            if column.kind is ColumnKind.TEXT and (column.rare or not column.has_others):
                known, texts = {*column.values, *column.rare}, [text for text in cells[column.name] if text]
                if new := [text for text in texts if text not in known]:
                    num = f"{len(new):,} of {len(texts):,}"
                    yield f"{num} values of {column.name} are unknown to the training rows, such as {new[0]}"

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Return the classes or numbers of outputs, see `Target`."""
        return self.target.predictions(outputs)

    def words(self) -> list[tuple[str, str]]:
        """Return the name of each column and a description; the target is last."""
        labels = [*map(str, self.target.labels[:_MAX_SHOWN]), *["..."] * (len(self.target.labels) > _MAX_SHOWN)]
        target = f"target: {'classes' if self.target.has_classes else 'number'} {', '.join(labels)}".strip()
        left_out = {ColumnKind.IGNORED: "left out: "}
        rows = [*((c.name, left_out.get(c.kind, "") + c.words) for c in self.columns)]
        return [*rows, (self.target.name or "target", target)]

    def summary(self) -> Iterator[str]:
        """Yield the table of columns as lines; numbers without gaps share one."""
        rows = [row for row in self.words() if row[1] != "number"]
        width = max(len(name) for name, _ in rows)
        yield "columns, fitted on the training rows and standardised; the others are numbers without gaps:"
        yield from (f"  {name:<{width}}  {words}" for name, words in rows)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data of which `from_dict` makes the same columns."""
        columns = [{name: value for name, value in asdict(column).items() if value} for column in self.columns]
        return {**asdict(self), "columns": columns}

    @classmethod
    def from_dict(cls, data: Any) -> TableColumns:
        """Return the columns of JSON data. Raises ValueError for other data."""
        try:
            columns = [Column(**{**each, "kind": ColumnKind(each["kind"])}) for each in data["columns"]]
            return cls(columns, Target(**data["target"]), data["mean"], data["deviation"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected the columns of a table, got {type(error).__name__}: {error}") from None


def dense(values: Any) -> Any:
    """Return a sparse matrix of SciPy or torch as an array. Raises ValueError for more than _MAX_BYTES."""
    is_scipy = type(values).__module__.startswith("scipy.sparse")
    if not is_scipy and not getattr(values, "is_sparse", False):
        return values
    size = math.prod(values.shape) * values.dtype.itemsize
    if size > _MAX_BYTES:
        limit = f"expected a sparse matrix of at most {_MAX_BYTES / 1e9:g} GB as a dense one"
        raise ValueError(f"{limit}, got {list(values.shape)} ({size / 1e9:.3g} GB)")
    return values.toarray() if is_scipy else values.to_dense().numpy()


def is_frame(values: Any) -> bool:
    """Return whether values are a DataFrame or a Series of pandas, which nothing else here imports."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(values, pandas.DataFrame | pandas.Series)


def frame_of(rows: Any, names: Sequence[str] = ()) -> Any:
    """Return rows, see `TableColumns.encoded`, as a DataFrame numbered from 1 with texts as names.

    Named levels of an index are columns. Sequences have the columns in the order of `names`; empty: 0, 1, 2, ...

    Raises:
        ValueError: rows of another length.
    """
    import pandas

    rows = dense(rows)
    if isinstance(rows, pandas.Series):
        rows = pandas.DataFrame([rows]) if set(names) & set(map(str, rows.index)) else rows.to_frame()
    elif isinstance(rows, Mapping):
        is_row = all(map(pandas.api.types.is_scalar, rows.values()))
        rows = pandas.DataFrame([rows] if is_row else dict(rows), dtype=object)
    elif not isinstance(rows, pandas.DataFrame | np.ma.MaskedArray):
        rows = [dict(row) if isinstance(row, Mapping | pandas.Series) else row for row in rows]
        if all(isinstance(row, Mapping) for row in rows):
            names = ()
        elif not all(np.ndim(row) == 1 and len(row) == (len(names) or len(rows[0])) for row in rows):
            raise ValueError(f"rows: expected mappings, or sequences of the {len(names)} columns {', '.join(names)}")
        rows = pandas.DataFrame(rows, columns=list(names) or None, dtype=object)
    elif isinstance(rows, np.ma.MaskedArray):
        rows = pandas.DataFrame(rows, columns=list(names) or None)
    frame = pandas.DataFrame(rows)
    levels = [name for name in frame.index.names if name is not None and name not in frame]
    frame = (frame.reset_index(levels) if levels else frame).reset_index(drop=True)
    return frame.set_axis(list(map(str, frame)), axis=1).set_axis(range(1, len(frame) + 1))


def check_cells(frame: Any, *, where: str, hint: str = "give each entry its own column") -> None:
    """Raise UserError for a column of a DataFrame whose cells hold several values, such as a list or a struct.

    The hint has NAME in place of the column.
    """
    for name, cells in frame.items():
        nested = next((cell for cell in cells.tolist() if isinstance(cell, _NESTED)), None)
        if nested is not None:
            got = f"a {type(nested).__name__} such as {' '.join(str(nested).split())[:40]}"
            raise UserError(
                f"{where}: column {name}: expected one value in a cell, got {got}; {hint.replace('NAME', name)}"
            )


def _hashed_words(cells: np.ndarray) -> np.ndarray:
    """Return bags of words [N, NUM_WORDS] without a vocabulary, of length 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    bags: Any = HashingVectorizer(n_features=NUM_WORDS, alternate_sign=False).transform(cells)
    return bags.toarray()


@cache
def _pattern(format: str) -> re.Pattern[str]:
    """Return the pattern of numbers written in a format, with the groups minus, whole, fraction and exponent."""
    written, _, unit = format.partition(_IN)
    decimal, thousands = map(re.escape, WRITTEN[written])
    grouped = rf"[1-9]\d{{0,2}}(?:{thousands}\d{{3}})+|" if thousands else ""
    # Codes are no numbers: 007, 1_2, 2E3, +491512345678, digits beyond the precision of a float.
    digits = rf"(?={decimal}?\d)(?P<whole>{grouped}0|[1-9]\d{{0,14}})?(?:{decimal}(?P<fraction>\d*))?"
    unit = rf"\s*(?:{re.escape(unit)})?\s*" if unit else ""
    number = rf"(?:[+](?!\d{{7}}))?{unit}(?P<minus>-?){unit}{digits}(?P<exponent>(?(fraction)e[-+]?|e[-+])\d+)?{unit}"
    return re.compile(number, re.ASCII | re.IGNORECASE)


def _written_number(text: str, format: str) -> float | None:
    """Return the number of a text, None for other texts: the one definition of a number in files."""
    if format == PLAIN and _pattern(PLAIN).fullmatch(text):
        return float(text)
    text = text if text.isascii() else text.translate(_SPACES)
    text = f"-{text[1:-1]}" if text[:1] == "(" and text[-1:] == ")" else text
    match = _pattern(format).fullmatch(text)
    if match is None:
        infinite = text.lower().lstrip("+-") in ("inf", "infinity")
        return float(text) if infinite else None
    whole = re.sub(r"\D", "", match["whole"] or "0")
    return float(f"{match['minus']}{whole}.{match['fraction'] or 0}{match['exponent'] or ''}")


def formats_of(values: Sequence[str]) -> list[str]:
    """Return the formats in which all values are numbers: a key of WRITTEN, "KEY in UNIT", or YES_NO."""

    def fits(format: str) -> bool:
        return all(_written_number(value, format) is not None for value in values)

    if fits(PLAIN):
        return [PLAIN] + ["1.234,5"] * (any("." in value for value in values) and fits("1.234,5")) if values else []
    units = {unit for value in values for unit in _UNITS.findall(value)}
    if len(units) > 1 or ("%" in units and not all("%" in value for value in values)):
        return []
    end = f"{_IN}{unit}" if (unit := "".join(units)) else ""
    fitting = [written + end for written in WRITTEN if fits(written + end)]
    return fitting or [YES_NO] * all(value.lower() in BOOLEANS for value in values)


def decimal_mark(formats: Sequence[str]) -> str:
    """Return the decimal mark that all formats of numbers have, empty without one."""
    marks = {WRITTEN[each.partition(_IN)[0]][0] for each in formats if each != YES_NO}
    return marks.pop() if len(marks) == 1 else ""


def is_number(cell: str) -> bool:
    """Return whether a text is a number, infinite ones included."""
    return _written_number(cell.strip(), PLAIN) is not None


def is_missing(cell: Any) -> bool:
    """Return whether a cell holds no value."""
    return cell is None or str(cell).strip().lower() in MISSING


def parsed(cells: Sequence[Any], column: Column, *, where: str, rows: Sequence[int]) -> np.ndarray:
    """Return cells as floats or texts, NaN or empty where missing.

    Args:
        cells: [N].
        column: its kind and format.
        where: for errors.
        rows: number of each row, for errors.

    Raises:
        UserError: a cell of another kind.
    """
    if column.kind is ColumnKind.IGNORED:
        return np.zeros(len(cells))
    if column.kind in (ColumnKind.TEXT, ColumnKind.WORDS):
        texts = ["" if is_missing(cell) else text_of(cell) for cell in cells]
        return np.array([with_width(text, column.width) for text in texts], dtype=object)
    values, is_date = np.full(len(cells), math.nan), column.kind is ColumnKind.DATE
    for place, cell in enumerate(cells):
        if is_missing(cell):
            continue
        value = days_of(cell, column.format) if is_date else number_of(cell, column.format)
        if value is None and column.skips_others:
            continue
        if value is None or not math.isfinite(value):
            expected = f"a date ({column.format})" if is_date else "a finite number"
            expected += f" written as {column.format}" if column.format and not is_date else ""
            row = f"column {column.name}: row {rows[place]}"
            group, format = where.partition(":")[0].rpartition(".")[0], next(iter(formats_of_dates([cell])), "%Y-%m")
            hint = f"; {group}.columns.{column.name}={format} names a format" if is_date and group else ""
            raise UserError(f"{where}: {row}: expected {expected}, got {str(cell).strip()}{hint}")
        values[place] = value
    return values


def code_width(texts: Sequence[str]) -> int:
    """Return the number of digits of texts that are codes of one length, 0 for other texts."""
    widths = {len(text) if text.isascii() and text.isdecimal() else 0 for text in texts}
    return widths.pop() if len(widths) == 1 else 0


def with_width(text: str, width: int) -> str:
    """Return a code with a number of digits, such as 007 for 7 and 7.0; other texts as they are."""
    whole = text.partition(".")[0] if width and re.fullmatch(r"\d+(\.0+)?", text, re.ASCII) else ""
    return whole.zfill(width) if whole else text


def text_of(cell: Any) -> str:
    """Return the text of a cell; a whole number has no decimal point."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def number_of(cell: Any, format: str = "") -> float | None:
    """Return the number of a cell, 1 or 0 for true or false, None for other cells."""
    if not isinstance(cell, str):
        is_known = isinstance(cell, int | float | np.number | np.bool_)
        number = float(cell) if is_known else _written_number(str(cell), PLAIN)
        return None if format == YES_NO and number not in (0, 1) else number
    text = cell.strip()
    if format == YES_NO and text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    return _written_number(text, PLAIN if format in ("", YES_NO) else format)


def days_of(cell: Any, format: str) -> float | None:
    """Return the days since 1970 of a date, None for other cells."""
    if not isinstance(cell, date):
        try:
            text = re.sub(r" (UTC|GMT)$", "+00:00" if format == ISO else " +0000", str(cell).strip())
            cell = datetime.fromisoformat(text) if format == ISO else datetime.strptime(text, format)
        except ValueError:
            return None
    moment = cell if isinstance(cell, datetime) else datetime(cell.year, cell.month, cell.day)
    moment = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH) / timedelta(days=1)


def formats_of_dates(texts: Sequence[Any]) -> list[str]:
    """Return the formats in which all texts are dates."""
    return [each for each in DATE_FORMATS if texts and all(days_of(text, each) is not None for text in texts)]


def date_parts(days: np.ndarray) -> tuple[str, ...]:
    """Return the parts of dates: day, year and week, and the hour where not all are at midnight."""
    return ("day", "year", "week", *(("hour",) if (days[~np.isnan(days)] % 1).any() else ()))


def _part(days: np.ndarray, part: str) -> list[np.ndarray]:
    angles = 2 * np.pi * days / _PERIODS.get(part, 1.0)
    return [days] if part == "day" else [np.sin(angles), np.cos(angles)]
