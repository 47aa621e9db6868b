"""Memory that a process has used stays with it, so that a timing shows its work and not the kernel's."""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3). Where the first is set, the C library no longer raises the second by itself.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST = 2**31 - 1, 32 << 20


def keep_freed_memory() -> None:
    """Make the C library keep what is freed, where it is glibc; call it before the first large allocation.

    Otherwise each large tensor is given back to the kernel when it is freed and faulted in anew when the next one is
    made: on a virtual machine whose memory is not all backed yet, up to thirty times the work that was to be timed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _LARGEST)
