"""Digest of the data of a task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from torch import Tensor

_DIGITS = 32


def data_digest(values: Iterable[Tensor | np.ndarray | bytes | str]) -> str:
    """Return a digest of arrays and texts, for `GFNTask.fingerprint`."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, bytes):
            array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            value = array.tobytes()
        digest.update(len(value).to_bytes(8, "big"))
        digest.update(value)
    return digest.hexdigest()[:_DIGITS]
