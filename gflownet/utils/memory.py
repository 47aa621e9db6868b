"""Reuse of freed memory."""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3). Where the first is set, the C library no longer raises the second by itself.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST = 2**31 - 1, 32 << 20


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse; call it before the first large allocation.

    Otherwise each large tensor goes back to the kernel when it is freed, and the next one is faulted in page by page:
    a tenth of a training step's time, and far more on machines whose memory is not all backed yet.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
