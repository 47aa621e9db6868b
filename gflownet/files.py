"""Atomic file writes, which leave the old file unchanged on failure, reading of text, and the cache of a user."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import gzip
import hashlib
import io
import json
import logging
import math
import os
import pickle
import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from gflownet.errors import UserError

TEMPORARY_SUFFIX = ".tmp"
# Limits of everything that is read: levels of brackets, bytes of a YAML file, and of other texts, also unzipped ones.
MAX_DEPTH = 100
MAX_YAML_BYTES = 2**24
MAX_BYTES = 2**30
CHECKSUM = "checksum"  # last field of the objects in run.json, status.json, metrics.jsonl, top_architectures.json
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
T = TypeVar("T")
_log = logging.getLogger(__name__)


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Release files, connections and processes."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_whole(path: Path, content: bytes | str) -> None:
    """Replace a file of a run atomically and durably, and create missing folders; a link at `path` is not followed.

    The folder belongs to the run: a file with the temporary name, left by a killed process, is replaced. One process
    at a time may write a path, see `locked_folder`.

    Raises:
        UserError: the file cannot be written, for example on a full disk; the old file is unchanged.
    """
    _replace(path, content, temporary=temporary_of(path))


def save_whole(path: Path, content: bytes | str) -> None:
    """Replace a file in a folder of the user like `write_whole`; the temporary name is new, so other files stay."""
    _replace(path, content, temporary=path.with_name(f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"))


def cached(name: str, key: str, *, compute: Callable[[], bytes], parse: Callable[[bytes], T]) -> T:
    """Return a result from the cache folder of the user, or compute and keep it.

    `name` is folder and suffix of the file, data.npz; `key` has everything that the result depends on. `compute`
    returns the content of the file, `parse` the result in it; an exception: the file is damaged, and is replaced.
    """
    folder, dot, suffix = name.partition(".")
    path = cache_folder() / folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}{dot}{suffix}"
    with contextlib.suppress(Exception):  # missing or damaged
        return parse(path.read_bytes())
    content, temporary = compute(), path.with_name(f".{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")
    with contextlib.suppress(OSError):  # no place for the file: each process computes
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    with contextlib.suppress(OSError):
        temporary.unlink(missing_ok=True)
    return parse(content)


def cache_folder() -> Path:
    """Return the folder of this user for results that can be computed again; without a home one where none is kept."""
    return user_folder("XDG_CACHE_HOME", "~/.cache") or Path(os.devnull) / "gflownet"


def user_folder(variable: str, default: str) -> Path | None:
    """Return this package's folder in the one that a variable names, else in a default one; None without a home."""
    home = os.environ.get(variable) or os.path.expanduser(default)
    if not home.startswith("~"):
        return Path(home) / "gflownet"
    _warn_without_home()  # neither HOME nor a line in the passwd file
    return None


@functools.cache
def _warn_without_home() -> None:
    _log.warning("no home directory: nothing is cached, and run folders may need --trust later; set HOME to a folder")


def json_text(content: Any, *, indent: int | None = None) -> str:
    """Return a line of JSON, or an indented text; NaN and infinity become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def locked_folder(folder: Path, *, refusal: str = "") -> Iterator[None]:
    """Let one process at a time run the block; without effect where folders have no locks, as on some networks.

    `refusal` is the error where another process has the lock; empty: wait for it.

    Raises:
        UserError: another process has the lock.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # the block will report it
        yield
        return
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal else 0))
            except BlockingIOError:
                raise UserError(refusal) from None
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also of a forked process that has a copy
        os.close(descriptor)


def _replace(path: Path, content: bytes | str, *, temporary: Path) -> None:
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def append_whole(file: FileIO, line: bytes) -> None:
    """Append a line to an unbuffered file, or nothing. Raises OSError, for example on a full disk."""
    size = file.seek(0, os.SEEK_END)
    try:
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(size)
        raise


def read_text(path: str | Path, *, key: str) -> str:
    """Return the text of a UTF-8 file; a name that ends in .gz is gzipped.

    `key` is the option that names the file, for errors.

    Raises:
        UserError: a missing or unreadable file, a damaged gzip file, or bytes that are not UTF-8.
    """
    if not path or not Path(path).is_file():
        raise UserError(f"{key}: expected the path of a file, got {str(path)!r}, no file")
    try:
        return read_bytes(Path(path)).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{key}: expected UTF-8 text in {path}, got other bytes at {error.start}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{key}: expected a complete gzip file, got {path}, which is damaged: {error}") from None
    except OSError as error:
        raise UserError(f"{key}: {path} cannot be read ({error.strerror or error})") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. Raises UserError for another content, or one that is too large or deep."""
    import yaml
    from omegaconf.errors import OmegaConfBaseException

    try:
        check_size(path, path.stat().st_size, most=MAX_YAML_BYTES)
        text = path.read_text(encoding="utf-8")
        tree = pickle.loads(_pickled_yaml(text))
    except UserError:
        raise
    except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected plain YAML, got an error: {' '.join(str(error).split())}") from None
    except AssertionError:  # of OmegaConf, for a quoted number as the whole text
        tree = text
    if not isinstance(tree, dict):
        raise UserError(f"{path}: expected a mapping of options, got {tree!r:.80}")
    return cast(dict[str, Any], tree)


@functools.lru_cache(maxsize=8)  # the config of a run is read several times: for its options and for its mark
def _pickled_yaml(text: str) -> bytes:
    """Return the content of a YAML text, pickled: a reader may change its copy."""
    from omegaconf import OmegaConf

    check_yaml_depth(text)
    # OmegaConf loads with PyYAML's safe loader and limits the expansion of aliases.
    return pickle.dumps(OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False))


def check_yaml_depth(text: str) -> None:
    """Raise ValueError for YAML with more than MAX_DEPTH levels; its loader, but not its parser, is recursive."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} nested levels")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError for another text, UserError for one too large or deep."""
    text = text if isinstance(text, str) else text.decode()
    check_json(text)
    return json.loads(text)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with a checksum of its other fields as the last one."""
    fields = {name: value for name, value in content.items() if name != CHECKSUM}
    return {**fields, CHECKSUM: _checksum(json.loads(json.dumps(fields)))}


def is_intact(value: Any) -> bool:
    """Return whether a parsed JSON value is no object with another checksum; one without a checksum is intact."""
    if not isinstance(value, dict) or CHECKSUM not in value:
        return True
    return value[CHECKSUM] == _checksum({name: each for name, each in value.items() if name != CHECKSUM})


def parse_sealed(text: str | bytes) -> Any:
    """Return the value of a JSON text like `parse_json`. Raises ValueError also for an object with another checksum."""
    value = parse_json(text)
    if not is_intact(value):
        raise ValueError(f"expected the object of its {CHECKSUM}, got a changed one")
    return value


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows of a file of metrics, and the numbers of damaged lines but for a half-written last one.

    Raises:
        OSError: the file cannot be read.
    """
    rows, damaged = list[dict[str, Any]](), list[int]()
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if (row := parse_row(line)) is not None:
            rows.append(row)
        elif number < len(lines) or line.endswith(b"\n"):
            damaged.append(number)
    return rows, damaged


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line of metrics, None for a damaged one."""
    try:
        row = parse_sealed(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def read_entries(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the intact entries of a file such as top_architectures.json, and the number of damaged ones.

    Raises:
        OSError, ValueError: the file cannot be read, or is no list in JSON.
    """
    entries = parse_json(path.read_bytes())
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected a list of entries")
    intact = [entry for entry in entries if isinstance(entry, dict) and is_intact(entry)]
    return intact, len(entries) - len(intact)


def _checksum(fields: Mapping[str, Any]) -> str:
    """Return a CRC-32 of parsed JSON, whatever its layout; it finds accidental changes."""
    return f"{zlib.crc32(json.dumps(fields, sort_keys=True).encode()):08x}"


def check_json(text: str) -> None:
    """Raise UserError for a JSON text that is too large or deep to parse."""
    check_size("JSON", len(text))
    if text.count("[") + text.count("{") > MAX_DEPTH:
        depth = 0
        for bracket in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
            depth += 1 if bracket in "[{" else -1
            if depth > MAX_DEPTH:
                raise UserError(f"JSON: expected at most {MAX_DEPTH} nested levels, got more")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unzipped if its name ends in .gz.

    Raises:
        UserError: more than MAX_BYTES, zipped or not.
        OSError, EOFError, zlib.error: an unreadable file, or a damaged gzip file.
    """
    check_size(path, path.stat().st_size)
    if path.suffix != ".gz":
        return path.read_bytes()
    with gzip.open(path) as file:
        content = file.read(MAX_BYTES + 1)
    check_size(path, len(content))
    return content


def check_size(name: object, num_bytes: int, *, most: int | None = None) -> None:
    """Raise UserError for more than MAX_BYTES, or `most`."""
    most = MAX_BYTES if most is None else most
    if num_bytes > most:
        raise UserError(f"{name}: expected at most {most:,} bytes, got more")


def temporary_of(path: Path) -> Path:
    """Return the temporary path of a file during its write."""
    return path.with_name(path.name + TEMPORARY_SUFFIX)


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the one-line error for a file that the system refused to write."""
    return UserError(f"{path}: cannot be written ({error.strerror or error})")


def sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
