"""The name of `gflownet.workers.buffer` in earlier versions."""

from gflownet.workers.buffer import MessageTooLarge, SharedPinnedBuffer

__all__ = ["MessageTooLarge", "SharedPinnedBuffer"]
