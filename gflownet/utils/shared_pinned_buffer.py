"""The name of `gflownet.workers.packing` in earlier versions."""

from gflownet.workers.packing import MessageTooLarge, SharedPinnedBuffer

__all__ = ["MessageTooLarge", "SharedPinnedBuffer"]
