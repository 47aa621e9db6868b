"""Bounded cache of generated classes by structural key. It holds no parameters: models share none."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any

MAX_ENTRIES = 1024


class TranslationCache:
    """Thread-safe LRU cache with hit counts."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self.is_enabled = True
        self.max_entries = max_entries
        self._entries: OrderedDict[Hashable, Any] = OrderedDict()
        self._hits = 0
        self._misses = 0
        self._lock = Lock()

    def get(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Return the entry of `key`, built on first use."""
        with self._lock:
            if key in self._entries:
                self._hits += 1
                self._entries.move_to_end(key)
                return self._entries[key]
            self._misses += 1
        entry = build()
        with self._lock:
            self._entries[key] = entry
            while len(self._entries) > self.max_entries:
                self._entries.popitem(last=False)
        return entry

    def count(self, *, is_hit: bool) -> None:
        """Count a parameter that a node of a model takes from another (a hit) or has as the first of its derivation."""
        with self._lock:
            self._hits, self._misses = self._hits + is_hit, self._misses + (not is_hit)

    def clear(self) -> None:
        """Remove all entries and reset the counters."""
        with self._lock:
            self._entries.clear()
            self._hits = self._misses = 0

    def metrics(self) -> dict[str, int]:
        """Return the counts of hits, misses and entries."""
        with self._lock:
            return {"hits": self._hits, "misses": self._misses, "entries": len(self._entries)}


CACHE = TranslationCache()


def set_translation_cache_enabled(enabled: bool) -> None:
    """Switch the cache on or off for models without enable_translation_cache; outputs do not change."""
    CACHE.is_enabled = bool(enabled)


def clear_translation_cache() -> None:
    """Empty the cache and set its metrics to 0."""
    CACHE.clear()


def get_translation_cache_metrics() -> dict[str, int]:
    """Return the metrics: hits and misses of classes and of parameters of derivations, and the number of classes."""
    return CACHE.metrics()
