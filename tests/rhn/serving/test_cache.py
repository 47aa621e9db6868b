"""Each request keeps its state while other requests enter and leave."""

from __future__ import annotations

import random

import pytest
import torch

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.network import RHN
from gflownet.rhn.serving.cache import CacheManager

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
        if wanted and chance.random() < 0.2:
            source = chance.choice(list(wanted))
            cache.fork(source, request_id)
            given = wanted[source]
        else:
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


def test_exported_state_is_a_copy() -> None:
    cache = CacheManager(MODEL, 2)
    cache.allocate(0, torch.ones(2, 4))
    state = cache.export_state(0)
    cache.update_caches([0], torch.zeros(2, 1, 4))
    assert torch.equal(state, torch.ones(2, 4))


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
