"""States of requests, and the cache of prefixes: longest match and size limit."""

from __future__ import annotations

import pytest
import torch

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.network import RHN
from gflownet.rhn.serving.cache import PrefixCache

MODEL = RHNDecoder(RHN(RHNConfig(vocabulary_size=3, hidden_size=4, intermediate_size=4, depth=2)))


def state_of(number: int) -> torch.Tensor:
    return torch.full((2, 3), float(number))  # 24 bytes


def test_prefix_cache_lru_eviction() -> None:
    cache = PrefixCache(3 * 24)
    for token in range(3):
        cache.put([token], state_of(token))
    assert cache.longest([0, 9]) is not None
    cache.put([2], state_of(2))
    cache.put([3], state_of(3))
    assert [cache.longest([token, 9]) is not None for token in range(4)] == [True, False, True, True]
    assert (len(cache), cache.num_bytes) == (3, 72)


def test_prefix_cache_of_size_zero_is_empty() -> None:
    cache = PrefixCache(0)
    cache.put([1], state_of(1))
    assert cache.longest([1, 2]) is None
    assert len(cache) == 0
    with pytest.raises(ValueError, match="max_bytes: expected at least 0, got -1"):
        PrefixCache(-1)
