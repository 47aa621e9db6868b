"""Atomic file writes: on failure, the old file is unchanged."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gflownet.errors import UserError

TEMPORARY_SUFFIX = ".tmp"


def write_whole(path: Path, content: bytes | str) -> None:
    """Replace a file atomically and durably, and create missing folders; a link at `path` is replaced, not followed.

    Raises:
        UserError: the file cannot be written, for example on a full disk; the old file is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = temporary_of(path)
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
