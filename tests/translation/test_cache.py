"""The translation cache: what it counts, what it must not change."""

import copy

import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import (
    clear_translation_cache,
    get_translation_cache_metrics,
    set_translation_cache_enabled,
    to_pytorch_model,
)
from gflownet.translation.cache import TranslationCache
from tests.translation.graphs import chain, mixed


@pytest.fixture(autouse=True)
def _fresh_cache():
    clear_translation_cache()
    yield
    set_translation_cache_enabled(True)
    clear_translation_cache()


def build(data, **config):
    return to_pytorch_model(ComputationGraph.from_dict(data), config)


def test_metrics_count_structures():
    build(chain(2, 3, 2))
    build(chain(2, 3, 2))
    build(chain(2, 4, 2))
    assert get_translation_cache_metrics() == {"hits": 1, "misses": 2, "entries": 2}
    clear_translation_cache()
    assert get_translation_cache_metrics() == {"hits": 0, "misses": 0, "entries": 0}


def test_a_model_of_one_structure_has_one_class_and_values_of_its_own():
    first, data = build(chain(2, 3, 2)), chain(2, 3, 2)
    data["nodes"][1] |= {"bias": 0.5, "attributes": {"derivation_uuid": "a-b-c"}}
    second = build(data)
    assert type(first) is type(second)
    assert (first.bias_1.item(), second.bias_1.item()) == (0.0, 0.5)
    with torch.no_grad():
        second.proj_0_1.weight.zero_()
    assert first.proj_0_1.weight.abs().sum() > 0


@pytest.mark.parametrize("switch", ["global", "config"])
def test_switching_the_cache_changes_no_output_and_no_later_draw(switch):
    def draw(enabled):
        if switch == "global":
            set_translation_cache_enabled(enabled)
        torch.manual_seed(3)
        config = {} if switch == "global" else {"enable_translation_cache": enabled}
        outputs = [build(mixed(), **config)(torch.ones(2, 6)) for _ in range(3)]
        return [*outputs, torch.rand(2)]

    assert all(map(torch.equal, draw(True), draw(False)))
    assert get_translation_cache_metrics() == {"hits": 2, "misses": 1, "entries": 1}


def test_every_structural_detail_separates_classes():
    data = mixed()
    variants = [copy.deepcopy(data) for _ in range(6)]
    variants[1]["nodes"][8]["attributes"]["temperature"] = 0.5
    variants[2]["edges"][0]["enabled"] = False
    variants[3]["edges"][0]["attributes"] = {"is_recurrent": True}
    variants[4]["nodes"][2]["activation_function"] = "tanh"
    variants[5]["edges"][3]["attributes"] = {"order": -1}
    classes = {type(build(variant)) for variant in variants} | {type(build(data, projection="always"))}
    assert len(classes) == 7


def test_the_oldest_structure_leaves_a_full_cache():
    cache = TranslationCache(max_entries=2)
    for key in ("a", "b", "a", "c"):
        cache.get(key, lambda key=key: key.upper())
    assert cache.metrics() == {"hits": 1, "misses": 3, "entries": 2}
    assert cache.get("a", lambda: "built again") == "A"
    assert cache.get("b", lambda: "built again") == "built again"
