"""Byte data sets of text files, split by file: the source of the Python standard library, or files of the user."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path

import torch
from torch import Tensor

# Shares of the files and of the bytes; the remainder is the test part.
TRAIN_SHARE, VALIDATION_SHARE = 0.8, 0.1
# Folders of the standard library that are skipped: other packages, or missing in some distributions of Python.
_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "idlelib", "lib2to3"}
_MEGABYTE = 10**6


@dataclass(frozen=True)
class ByteText:
    """Three texts without common files."""

    train: Tensor  # [N] uint8, as are the others
    validation: Tensor
    test: Tensor


@lru_cache(maxsize=4)
def read_bytes(source: str, *, megabytes: float, split_seed: int, key: str = "text") -> ByteText:
    """Return the bytes of a file, of the files in a folder, or of the source of the standard library.

    A hash of its name assigns each file to a part and orders the files in it, so that a truncated part is a random
    sample of its files. A single file, or too few for three parts, are cut into three pieces. Results are cached.

    Args:
        source: path of a file or a folder; empty for the standard library.
        megabytes: maximum size of all parts together.
        split_seed: of the hash.
        key: name of the option in error messages.

    Raises:
        ValueError: no such file or folder, or an empty part.
    """
    parts = _parts_of(source, split_seed=split_seed, key=key)
    shares = TRAIN_SHARE, VALIDATION_SHARE, 1 - TRAIN_SHARE - VALIDATION_SHARE
    texts = [
        _joined(part, max_bytes=int(megabytes * _MEGABYTE * share)) for part, share in zip(parts, shares, strict=True)
    ]
    if not all(texts):
        train, validation, test = map(len, texts)
        got = f"{train:,}, {validation:,} and {test:,} bytes of it in {source!r}"
        raise ValueError(f"{key}: expected UTF-8 text for train, validation and test, got {got}")
    return ByteText(*(torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in texts))


def _parts_of(source: str, *, split_seed: int, key: str) -> list[list[Iterable[bytes]]]:
    """Return the contents of each part; files are read when iterated."""
    folder = Path(source or sysconfig.get_path("stdlib"))
    if folder.is_file():
        return _cut(folder)
    if not folder.is_dir():
        raise ValueError(f"{key}: no such file or folder: {source}")
    parts: list[list[tuple[str, Path]]] = [[], [], []]
    for name in _files_in(folder, is_library=not source):
        digest = hashlib.sha256(f"{split_seed}:{name.relative_to(folder).as_posix()}".encode()).hexdigest()
        place = int(digest[:8], 16) / 16**8
        parts[(place >= TRAIN_SHARE) + (place >= TRAIN_SHARE + VALIDATION_SHARE)].append((digest, name))
    if not all(parts):  # few files
        return _cut(*(name for _, name in sorted(chain(*parts))))
    return [[_contents(name) for _, name in sorted(part)] for part in parts]


def _files_in(folder: Path, *, is_library: bool) -> Iterator[Path]:
    """Yield the files below a folder, without hidden ones; of the standard library the source, but for `_SKIPPED`."""
    for parent, folders, names in os.walk(folder):  # looks into no folder that is skipped
        folders[:] = [each for each in folders if each not in _SKIPPED] if is_library else _not_hidden(folders)
        names = [each for each in names if each.endswith(".py")] if is_library else _not_hidden(names)
        yield from (path for name in names if (path := Path(parent, name)).is_file())


def _not_hidden(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]


def _cut(*files: Path) -> list[list[Iterable[bytes]]]:
    """Return a section of some files for each part."""
    text = b"".join(chain(*map(_contents, files)))
    ends = [0, int(len(text) * TRAIN_SHARE), int(len(text) * (TRAIN_SHARE + VALIDATION_SHARE)), len(text)]
    return [[[text[first:last]]] for first, last in pairwise(ends)]


def _contents(path: Path) -> Iterator[bytes]:
    text = path.read_bytes()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return
    yield text


def _joined(contents: Iterable[Iterable[bytes]], *, max_bytes: int) -> bytes:
    """Return the first `max_bytes` bytes of the concatenated texts, reading only the files needed."""
    joined = bytearray()
    for texts in contents:
        for text in texts:
            joined += text
        if len(joined) >= max_bytes:
            break
    return bytes(joined[:max_bytes])
