"""Columns of a table: kinds found from their cells, and values fitted on the training rows. N: rows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gflownet.errors import UserError, counted, with_summary
from gflownet.translation.table_columns import (
    BOOLEANS,
    DATE_FORMATS,
    NUM_WORDS,
    PLAIN,
    Column,
    ColumnKind,
    TableColumns,
    Target,
    code_width,
    date_parts,
    days_of,
    decimal_mark,
    formats_of,
    formats_of_dates,
    is_missing,
    is_number,
    text_of,
)

DataFrame = Series = Any  # of pandas, which only tables import
# Values of a text column that are inputs; the others, and values in fewer than MIN_ROWS training rows, share one.
MAX_VALUES, MIN_ROWS = 20, 3
_MAX_RARE = 10_000  # of the others that are stored, to tell them from unknown ones
# A column with this share of numbers is taken for a damaged column of numbers, not for text.
_MOSTLY = 0.9
_FREE_TEXT_WORDS = 4  # mean of a column of free text, whose texts hardly repeat
_CENSORED = re.compile(r"[<>≤≥~]=?.*\d.*")  # below or above a limit of detection
_CODE = re.compile(r"[-+]?0\d+|[\d_]*\d")  # read as a number by other programs

ORDER = "order of the splits"  # words about a column of times

# The cells [N] of each input column, see `parsed`, before anything is fitted.
RawTable = Mapping[Column, np.ndarray]


def is_plain(table: RawTable) -> bool:
    """Return whether all columns are numbers without gaps."""
    return all(column.kind is ColumnKind.NUMBER and not np.isnan(cells).any() for column, cells in table.items())


def setting(key: str, name: str, kind: str) -> str:
    """Return the option that sets the kind of a column, as it is typed in a shell."""
    is_word = re.fullmatch(r"\w[\w-]*", name)
    pair = f".{name}={kind}" if is_word else f"={{{json.dumps(name, ensure_ascii=False)}: {json.dumps(kind)}}}"
    return shlex.quote(key + pair)


def find_columns(
    frame: DataFrame, *, kinds: Mapping[str, Any], group: str, where: str, mark: str = ".", is_target: bool = False
) -> list[Column]:
    """Return the columns of the cells of a file, with the named kinds, else those of their cells.

    Args:
        frame: cells by column; its index has the numbers of the rows.
        kinds: by column, a kind or the format of a date.
        group: of the options.
        where: option and file, for errors.
        mark: decimal mark of columns that may have two, such as 1,234, where no other column decides.
        is_target: whether the column is the target.

    Raises:
        UserError: an unknown column or kind, or a damaged column of numbers, after the table of columns.
    """
    key = f"{group}.columns"
    for name, kind in kinds.items():
        if name not in frame or not (str(kind) in [*ColumnKind] or "%" in str(kind)):
            expected, got = ("kind", kind) if name in frame else ("column", name)
            names = ", ".join(ColumnKind if name in frame else frame)
            raise UserError(f"{key}.{name}: expected a {expected} out of {names}, got {got}")
    texts = {name: _texts(cells) for name, cells in frame.items()}
    formats = {name: [PLAIN] if frame[name].dtype.kind in "iuf" else formats_of(texts[name]) for name in texts}
    marks = {decimal_mark(formats[name]) for name in texts if any({*text} & {".", ","} for text in texts[name])} - {""}
    columns = []
    for name, each in formats.items():
        # Without a decision of another column, a number that is one without conversion stays.
        wanted = next(iter(marks)) if len(marks) == 1 else "." if PLAIN in each else mark
        format = next((one for one in each if decimal_mark([one]) == wanted), next(iter(each), ""))
        repeats = len(texts[name]) <= len(frame) / 2
        columns.append(_column(str(name), texts[name], kinds.get(name), format, key, repeats=repeats))
    for column in columns:
        wrong = "" if column.name in kinds or column.kind is not ColumnKind.TEXT else _wrong(texts[column.name])
        if wrong:
            row = next(row for row, cell in frame[column.name].items() if text_of(cell) == wrong)
            number, text, ignored = (setting(key, column.name, kind) for kind in ("number", "text", "ignored"))
            hint = f"{text} takes texts, {number} takes other texts as missing, {ignored} leaves the column out"
            hint = f"{group}.kind=classes takes it" if is_target else hint
            got = f"column {column.name}: row {row}: expected a number, as in most rows, got {wrong}"
            with with_summary(summary_of({each: frame[each.name].map(is_missing) for each in columns})):
                raise UserError(f"{where}: {got}; {hint}")
    return columns


def _wrong(texts: Sequence[str]) -> str:
    """Return the text that damages a column of numbers; empty without one, and for codes such as 007 and 1_2."""
    wrong = [text for text in texts if not formats_of([text]) or text.lower() in BOOLEANS]
    num, is_censored = len(texts) - len(wrong), all(map(_CENSORED.fullmatch, wrong))
    is_damaged = bool(wrong) and (num >= _MOSTLY * len(texts) or (is_censored and num > 0))
    return wrong[0] if is_damaged and not any(map(_CODE.fullmatch, wrong)) else ""


def summary_of(table: Mapping[Column, Any]) -> list[str]:
    """Return the table of columns as they were read, a line each, of their cells or of whether these are missing."""
    width, lines = max((len(column.name) for column in table), default=0), ["columns as they were read:"]
    for column, cells in table.items():
        values = np.asarray(cells)
        missing = values == "" if values.dtype == object else values if values.dtype == bool else np.isnan(values)
        words = [f"{column.kind} {column.words}".strip(), f"{_percent(missing)} missing" if missing.any() else ""]
        lines.append(f"  {column.name:<{width}}  {', '.join(filter(None, words))}")
    return lines


def _texts(cells: Series) -> list[str]:
    """Return the different texts of cells with a value."""
    return list(dict.fromkeys(text_of(cell) for cell in cells.tolist() if not is_missing(cell)))


def _column(name: str, texts: Sequence[str], kind: Any, format: str, key: str, *, repeats: bool) -> Column:
    """Return the kind of a column: the named one, else the kind of its texts; `format` is that of numbers, if any."""
    dates = [] if format and kind is None else formats_of_dates(texts)
    words = "" if format in ("", PLAIN) else f"written as {format}"
    number = Column(name, ColumnKind.NUMBER, format="" if format == PLAIN else format, words=words)
    if kind is not None and "%" in str(kind):
        return Column(name, ColumnKind.DATE, format=str(kind))
    match None if kind is None else ColumnKind(str(kind)):
        case ColumnKind.NUMBER if format or not texts:
            return number
        case ColumnKind.NUMBER:
            wrong = [text for text in texts if not formats_of([text])]
            formats = [each for each in formats_of([text for text in texts if text not in wrong]) if each != PLAIN]
            words = f"texts such as {wrong[0]} are missing" if wrong else ""
            return replace(number, format=(*formats, "")[0], skips_others=True, words=words)
        case ColumnKind.DATE:
            return Column(name, ColumnKind.DATE, format=(*dates, DATE_FORMATS[0])[0])
        case ColumnKind() as other:
            return Column(name, other, width=code_width(texts))
    if not texts:
        return Column(name, ColumnKind.IGNORED, words="no value in any row")
    if format:
        return number
    if dates:
        days = [days_of(text, dates[0]) for text in texts]
        other = next((each for each in dates[1:] if days != [days_of(text, each) for text in texts]), "")
        words = f"{dates[0]}, or {other} by {setting(key, name, other)}" if other else ""
        return Column(name, ColumnKind.DATE, format=dates[0], words=words)
    if not repeats and float(np.mean([len(text.split()) for text in texts])) >= _FREE_TEXT_WORDS:
        return Column(name, ColumnKind.IGNORED, words=f"free text; {setting(key, name, 'words')} takes its words")
    return Column(name, ColumnKind.TEXT, width=code_width(texts))


def is_typed(texts: Sequence[str]) -> bool:
    """Return whether texts are numbers, most of them at least, or dates."""
    return bool(formats_of(texts) or formats_of_dates(texts)) or sum(map(is_number, texts)) > _MOSTLY * len(texts)


def table_of_numbers(inputs: np.ndarray) -> RawTable | None:
    """Return vectors [N, F] as columns with numbers as names, None for other inputs."""
    if inputs.ndim != 2 or inputs.dtype.kind != "f" or not inputs.shape[1]:
        return None
    return {Column(str(place), ColumnKind.NUMBER): cells for place, cells in enumerate(inputs.T)}


def fitted(table: RawTable, rows: np.ndarray, target: Target) -> TableColumns:
    """Return the columns of a table, fitted on some of its rows. Raises UserError if no column holds a value."""
    columns = tuple(_fitted(column, cells[rows]) for column, cells in table.items())
    if all(column.kind is ColumnKind.IGNORED for column in columns):
        got = ", ".join(f"{column.name} ({column.words})" for column in columns)
        raise UserError(f"expected a column of inputs with values, got {got}")
    return TableColumns(columns, target)


def _fitted(column: Column, cells: np.ndarray) -> Column:
    """Return a column, fitted on its training cells; ignored where they hold no value, or no text often enough."""
    match column.kind:
        case ColumnKind.IGNORED:
            return replace(column, words=column.words or "by the options")
        case ColumnKind.WORDS:
            return replace(column, words=f"words of a text, {NUM_WORDS} inputs")
        case ColumnKind.TEXT:
            return _of_texts(column, cells)
    if np.isnan(cells).all():
        return replace(column, kind=ColumnKind.IGNORED, words="no value in the training rows")
    return _of_numbers(column, cells, float(np.nanmedian(cells)), bool(np.isnan(cells).any()))


def _of_numbers(column: Column, cells: np.ndarray, fill: float, has_mark: bool) -> Column:
    """Return a column of numbers or dates with its median; `has_mark`: whether values are missing."""
    # A time that orders the splits is always later than in training.
    parts = date_parts(cells)[column.words.startswith(ORDER) :] if column.kind is ColumnKind.DATE else ()
    words = f"date: {', '.join(parts)}" if parts else "number"
    words = f"{column.words}; {words}" if column.words and parts else f"{words} {column.words}".strip()
    words += ", constant" if len(np.unique(cells)) == 1 else ""
    median = str(np.datetime64(int(fill), "D")) if parts else f"{fill:.6g}"
    words += f", {_percent(np.isnan(cells))} missing: median {median} and a mark" if has_mark else ""
    return replace(column, fill=fill, has_mark=has_mark, parts=parts, words=words)


def _of_texts(column: Column, cells: np.ndarray) -> Column:
    """Return a column of texts with its frequent values, as scikit-learn's OneHotEncoder finds them."""
    values, counts = np.unique(cells.astype(str), return_counts=True)
    if counts.max() < MIN_ROWS:
        words = f"{len(values)} different texts, none of them in {MIN_ROWS} rows"
        return replace(column, kind=ColumnKind.IGNORED, words=words)
    order = np.argsort(counts, kind="stable")[-MAX_VALUES:]
    frequent = tuple(values[sorted(place for place in order if counts[place] >= MIN_ROWS)].tolist())
    num_rare = len(values) - len(frequent)
    words = f"text, {counted(len(frequent), 'value')}"
    words += f" and {num_rare} rarer ones together" if num_rare else ""
    words += ", constant" if len(values) == 1 else ""
    words += f", {_percent(cells == '')} missing" if "" in values else ""
    rare = tuple(text for text in values.tolist() if text not in frequent) if num_rare <= _MAX_RARE else ()
    return replace(column, values=frequent, has_others=bool(num_rare), rare=rare, words=words)


def _percent(is_true: np.ndarray) -> str:
    return f"{100 * float(np.mean(is_true)):.3g} %"
