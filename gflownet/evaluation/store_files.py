"""Files of exported evaluations: JSON lines and Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sql

from gflownet.errors import UserError
from gflownet.evaluation.store_overview import COLUMNS, Row, batches, check_exported
from gflownet.files import cannot_write, parse_json

SUFFIXES = (".jsonl", ".parquet")
_CHUNK = 1_000


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write exported rows to a new file, whole or not at all, and return their number.

    Raises:
        UserError: the file exists or cannot be written, another suffix, or pyarrow is missing.
    """
    is_parquet = _is_parquet(path)
    if is_parquet:
        _parquet()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.open("xb").close()  # reserves the name
    except FileExistsError:
        raise UserError(f"{path}: expected a new file, got an existing one") from None
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        with temporary.open("xb") as file:
            num_rows = _write_parquet(file, rows) if is_parquet else _write_lines(file, rows)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        path.unlink()
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise
    return num_rows


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, checked.

    Raises:
        UserError: no such file, another format, or a row that does not match its checksum.
    """
    reader = _read_parquet if _is_parquet(path) else _read_lines
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    number = 1
    try:
        for row in reader(path):
            check_exported(row)
            yield row
            number += 1
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}, row {number}: {error}") from error


def _is_parquet(path: Path) -> bool:
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path}: expected a file name that ends in {' or '.join(SUFFIXES)}")
    return path.suffix == ".parquet"


def _write_lines(file: IO[bytes], rows: Iterable[Row]) -> int:
    num_rows = 0
    for row in rows:
        file.write(json.dumps(dict(row)).encode() + b"\n")
        num_rows += 1
    return num_rows


def _read_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield parse_json(line)


def _write_parquet(file: IO[bytes], rows: Iterable[Row]) -> int:
    pyarrow, parquet = _parquet()
    types = {sql.Text: pyarrow.string(), sql.Double: pyarrow.float64(), sql.Boolean: pyarrow.bool_()}
    schema = pyarrow.schema([(c.name, types.get(type(c.type), pyarrow.int64())) for c in COLUMNS])
    num_rows = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for chunk in batches(rows, _CHUNK):
            writer.write_batch(pyarrow.RecordBatch.from_pylist(chunk, schema=schema))
            num_rows += len(chunk)
    return num_rows


def _read_parquet(path: Path) -> Iterator[Any]:
    _, parquet = _parquet()
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_CHUNK):
            yield from batch.to_pylist()


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"Parquet files need pyarrow ({error}): pip install 'gflownet[parquet]'") from error
    return pyarrow, pyarrow.parquet
