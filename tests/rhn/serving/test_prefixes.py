"""Cache of prefixes: longest match and size limit."""

from __future__ import annotations

import random

import pytest
import torch

from gflownet.rhn.serving.cache import PrefixCache


def state_of(number: int) -> torch.Tensor:
    return torch.full((2, 3), float(number))  # 24 bytes


def test_longest_returns_the_longest_proper_prefix() -> None:
    """Against a list of all prefixes."""
    chance = random.Random(0)
    cache, known = PrefixCache(10**6), {}
    num_hits = 0
    for number in range(300):
        prompt = [chance.randrange(2) for _ in range(chance.randint(1, 9))]
        fitting = [tokens for tokens in known if len(tokens) < len(prompt) and tuple(prompt[: len(tokens)]) == tokens]
        hit = cache.longest(prompt)
        if fitting:
            assert hit is not None
            longest = max(fitting, key=len)
            assert hit.num_tokens == len(longest)
            assert torch.equal(hit.state, state_of(known[longest]))
            num_hits += 1
        else:
            assert hit is None
        if tuple(prompt) not in known:
            known[tuple(prompt)] = number
            cache.put(prompt, state_of(number))
    assert 50 < num_hits < 299
    assert len(cache) == len(known)


def test_prefix_cache_lru_eviction() -> None:
    cache = PrefixCache(3 * 24)
    for token in range(3):
        cache.put([token], state_of(token))
    assert cache.longest([0, 9]) is not None
    cache.put([2], state_of(2))
    cache.put([3], state_of(3))
    assert [cache.longest([token, 9]) is not None for token in range(4)] == [True, False, True, True]
    assert (len(cache), cache.num_bytes, cache.num_evicted) == (3, 72, 1)


def test_prefix_cache_of_size_zero_is_empty() -> None:
    cache = PrefixCache(0)
    cache.put([1], state_of(1))
    assert cache.longest([1, 2]) is None
    assert len(cache) == 0
    with pytest.raises(ValueError, match="max_bytes: expected at least 0, got -1"):
        PrefixCache(-1)
