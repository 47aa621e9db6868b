"""Text as bytes in three parts, split by file: the Python standard library's own source, or the user's."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

# Shares of the files, and of the bytes that are kept; the rest is the test part.
TRAIN_SHARE, VALIDATION_SHARE = 0.8, 0.1
# Of the standard library left out: not its source, or not there in every distribution of Python.
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "idlelib", "lib2to3"}
_MEGABYTE = 10**6


@dataclass(frozen=True)
class ByteText:
    """Three texts that share no file."""

    train: Tensor  # [N] uint8, as are the others
    validation: Tensor
    test: Tensor


@lru_cache(maxsize=4)
def read_bytes(source: str, *, megabytes: float, split_seed: int, key: str = "text") -> ByteText:
    """Return the bytes of a file, of all files in a folder, or of the standard library's source, at most so many.

    Files go to a part by a hash of their name, in an order of the hash, so that a part that is cut is a random sample
    of its files; one file alone is cut into three pieces. What is read is kept for later calls.

    Args:
        source: path of a file or a folder; empty for the standard library.
        megabytes: of all parts together.
        split_seed: another one makes another split.
        key: what to call the source in an error.

    Raises:
        ValueError: no such file or folder, or a part without a byte.
    """
    parts = _parts_of(source, split_seed=split_seed, key=key)
    shares = TRAIN_SHARE, VALIDATION_SHARE, 1 - TRAIN_SHARE - VALIDATION_SHARE
    texts = [_joined(part, most=int(megabytes * _MEGABYTE * share)) for part, share in zip(parts, shares, strict=True)]
    for name, text in zip(("train", "validation", "test"), texts, strict=True):
        if not text:
            raise ValueError(f"{key}: expected text for all of three parts, got none for {name} in {source!r}")
    return ByteText(*(torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in texts))


def _parts_of(source: str, *, split_seed: int, key: str) -> list[list[Iterable[bytes]]]:
    """Return the contents of each part, files as they are read."""
    folder = Path(source or sysconfig.get_path("stdlib"))
    if folder.is_file():
        text = folder.read_bytes()
        ends = [0, int(len(text) * TRAIN_SHARE), int(len(text) * (TRAIN_SHARE + VALIDATION_SHARE)), len(text)]
        return [[[text[first:last]]] for first, last in pairwise(ends)]
    if not folder.is_dir():
        raise ValueError(f"{key}: expected the path of a file or a folder, got {source!r}, which is none")
    names = _library_files(folder) if not source else _text_files(folder)
    parts: list[list[tuple[str, Path]]] = [[], [], []]
    for name in names:
        digest = hashlib.sha256(f"{split_seed}:{name.relative_to(folder).as_posix()}".encode()).hexdigest()
        place = int(digest[:8], 16) / 16**8
        parts[(place >= TRAIN_SHARE) + (place >= TRAIN_SHARE + VALIDATION_SHARE)].append((digest, name))
    return [[_contents(name) for _, name in sorted(part)] for part in parts]


def _library_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*.py") if not _LEFT_OUT & set(path.relative_to(folder).parts))


def _text_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, hidden ones left out."""
    for path in folder.rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _contents(path: Path) -> Iterator[bytes]:
    """Yield what a file holds if that is text."""
    text = path.read_bytes()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return
    yield text


def _joined(contents: Iterable[Iterable[bytes]], *, most: int) -> bytes:
    """Return texts one after the other, the first `most` bytes of them; no file is read that is not needed."""
    joined = bytearray()
    for texts in contents:
        for text in texts:
            joined += text
        if len(joined) >= most:
            break
    return bytes(joined[:most])
