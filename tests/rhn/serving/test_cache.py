"""States of requests, and the cache of prefixes: longest match and size limit."""

from __future__ import annotations

import random

import pytest
import torch

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.network import RHN
from gflownet.rhn.serving.cache import CacheManager, PrefixCache

MODEL = RHNDecoder(RHN(RHNConfig(vocabulary_size=3, hidden_size=4, intermediate_size=4, depth=2)))


def test_cache_manager_equals_bounded_dictionary() -> None:
    """Against a dictionary of tensors, in random order."""
    chance = random.Random(0)
    cache, wanted = CacheManager(MODEL, 5), {}
    for request_id in range(300):
        if len(wanted) == 5 or (wanted and chance.random() < 0.4):
            gone = chance.choice(list(wanted))
            del wanted[gone]
            cache.free(gone)
        given = torch.randn(2, 4) if chance.random() < 0.5 else None
        cache.allocate(request_id, given)
        wanted[request_id] = torch.zeros(2, 4) if given is None else given.clone()
        assert cache.num_free == 5 - len(wanted)
        asked = chance.sample(list(wanted), chance.randint(1, len(wanted)))
        if chance.random() < 0.5:
            asked.sort(key=cache.slot_of)
        got = cache.get_caches(asked)
        assert torch.equal(got, torch.stack([wanted[key] for key in asked], 1))
        new = torch.randn(2, len(asked), 4)
        cache.update_caches(asked, new)
        wanted.update(zip(asked, new.unbind(1), strict=True))
        for key, state in wanted.items():
            assert torch.equal(cache.export_state(key), state)
    assert len({cache.slot_of(key) for key in wanted}) == len(wanted)


def test_invalid_slots_raise_one_line() -> None:
    with pytest.raises(ValueError, match="num_slots: expected at least 1, got 0"):
        CacheManager(MODEL, 0)
    cache = CacheManager(MODEL, 1)
    with pytest.raises(ValueError, match=r"state: expected \(2, 4\) as \(layers, width\), got \(4, 2\)"):
        cache.allocate(0, torch.zeros(4, 2))
    cache.allocate(0)
    with pytest.raises(ValueError, match="request 0: it has a slot"):
        cache.allocate(0)
    with pytest.raises(ValueError, match="request 1: all 1 slots are taken"):
        cache.allocate(1)
    with pytest.raises(KeyError):
        cache.get_caches([1])
    with pytest.raises(KeyError):
        cache.free(1)
    assert torch.equal(cache.get_caches([0]), torch.zeros(2, 1, 4))
    cache.free(0)
    with pytest.raises(KeyError):
        cache.get_caches([0])


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
    assert (len(cache), cache.num_bytes) == (3, 72)


def test_prefix_cache_of_size_zero_is_empty() -> None:
    cache = PrefixCache(0)
    cache.put([1], state_of(1))
    assert cache.longest([1, 2]) is None
    assert len(cache) == 0
    with pytest.raises(ValueError, match="max_bytes: expected at least 0, got -1"):
        PrefixCache(-1)
