"""The translation cache: its counters, and outputs that do not depend on it."""

import copy
import pickle

import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import (
    clear_translation_cache,
    get_translation_cache_metrics,
    is_as_translated,
    set_translation_cache_enabled,
    to_pytorch_model,
)
from gflownet.translation.classes import TranslationCache
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


def test_models_of_one_structure_share_a_class_but_no_values():
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


def derived(*biases, sizes=(3, 3)):
    """An input, concatenated by hidden nodes of one derivation with a post layer, and an output."""
    data = chain(2, *sizes, 2)
    for node, bias in zip(data["nodes"][1:3], biases, strict=True):
        attributes = {"aggregation": "concat", "post_projection": True, "derivation_uuid": "a-b-c"}
        node |= {"bias": bias, "attributes": attributes}
    data["edges"] = [{"source": 0, "target": node, "edge_id": node} for node in (1, 2)]
    data["edges"] += [{"source": node, "target": 3, "edge_id": 2 + node} for node in (1, 2)]
    return data


def test_nodes_of_one_derivation_share_bias_and_post_layer():
    build(chain(2, 3, 2))  # another class
    model = build(derived(0.5, 0.5))
    assert model.bias_1 is model.bias_2
    assert model.post_1 is model.post_2
    # The class; bias and layer, of which the second node takes those of the first.
    assert get_translation_cache_metrics() == {"hits": 2, "misses": 4, "entries": 2}
    twin = build(derived(0.5, 0.5))
    assert twin.bias_1 is not model.bias_1
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), twin.double()):
        assert copied.bias_1 is copied.bias_2
        assert copied.post_1 is copied.post_2
    model(torch.ones(1, 2)).sum().backward()
    assert model.post_2.weight.grad is not None
    assert not is_as_translated(model)


def test_what_a_class_shares_depends_on_the_graph_alone():
    plain = derived(0.5, 0.5)
    for node in plain["nodes"]:
        node.get("attributes", {}).pop("derivation_uuid", None)
    assert build(derived(0.5, 0.5)).post_1 is not build(plain).post_1
    model = build(plain)
    assert model.post_1 is not model.post_2
    assert type(model) is type(build(derived(0.5, 0.5)))
    # They train differently: a store must tell them apart, whatever the names are.
    renamed = derived(0.5, 0.5)
    for node in renamed["nodes"][1:3]:
        node["attributes"]["derivation_uuid"] = "d-e-f"
    graphs = [ComputationGraph.from_dict(each) for each in (derived(0.5, 0.5), renamed, plain)]
    assert graphs[0] == graphs[1] != graphs[2]


def test_other_numbers_or_shapes_are_not_shared():
    assert build(derived(0.5, 0.25)).bias_1 is not build(derived(0.5, 0.25)).bias_2
    model = build(derived(0.5, 0.5, sizes=(3, 4)))
    assert model.post_1 is not model.post_2
    assert model.bias_1 is model.bias_2


def test_sharing_changes_no_output_and_no_later_draw():
    results = []
    for enabled in (True, False):
        torch.manual_seed(0)
        model = build(derived(0.5, 0.5), enable_translation_cache=enabled)
        results.append((model(torch.ones(2, 2)), torch.rand(3)))
    assert all(map(torch.equal, *results))
    apart = build(derived(0.5, 0.5), enable_translation_cache=False)
    assert apart.post_1 is not apart.post_2
    with torch.no_grad():
        apart.bias_1 += 1
    with pytest.raises(RuntimeError, match="expected one value for bias_1 and bias_2, nodes of one derivation_uuid"):
        build(derived(0.5, 0.5)).load_state_dict(apart.state_dict())
    diverged = {name: torch.full_like(value, torch.nan) for name, value in apart.state_dict().items()}
    build(derived(0.5, 0.5)).load_state_dict(diverged)


def test_every_structural_detail_separates_classes():
    data = mixed()
    variants = [copy.deepcopy(data) for _ in range(8)]
    variants[1]["nodes"][8]["attributes"]["temperature"] = 0.5
    variants[2]["edges"][0]["enabled"] = False
    variants[3]["edges"][0]["attributes"] = {"is_recurrent": True}
    variants[4]["nodes"][2]["activation_function"] = "tanh"
    variants[5]["edges"][3]["attributes"] = {"order": -1}
    variants[6]["nodes"][2]["node_type"] = "output"
    variants[7]["multigraph"] = True
    classes = {type(build(variant)) for variant in variants} | {type(build(data, projection="always"))}
    assert len(classes) == 9


def test_the_oldest_structure_leaves_a_full_cache():
    cache = TranslationCache(max_entries=2)
    for key in ("a", "b", "a", "c"):
        cache.get(key, lambda key=key: key.upper())
    assert cache.metrics() == {"hits": 1, "misses": 3, "entries": 2}
    assert cache.get("a", lambda: "built again") == "A"
    assert cache.get("b", lambda: "built again") == "built again"


def chain_with(*, node=None, edge=None, **new_edge):
    """A chain 2-3-2 with fields of its hidden node or first edge replaced, or with one more edge."""
    data = chain(2, 3, 2)
    data["nodes"][1] |= node or {}
    data["edges"][0] |= edge or {}
    data["edges"] += [{"enabled": False, "edge_id": 9, **new_edge}] if new_edge else []
    return data


# The class does not depend on: a translation that looks for it there before it validates accepts these.
HIDDEN_FLAWS = {
    "dangling": chain_with(source=0, target=77),
    "not finite": chain_with(source=0, target=2, weight=float("nan")),
    "duplicate": chain_with(source=0, target=1),
    "into an input": chain_with(source=1, target=0),
    "unknown attribute": chain_with(source=0, target=2, attributes={"colour": 1}),
    "wrong type of uuid": chain_with(node={"attributes": {"derivation_uuid": 3}}),
    "int for bool": chain_with(edge={"attributes": {"is_recurrent": 0}}),
    "bool for int": chain_with(node={"attributes": {"aggregation": "multi_head_attention", "num_heads": True}}),
}
TWINS = {
    "int for bool": chain_with(edge={"attributes": {"is_recurrent": False}}),
    "bool for int": chain_with(node={"attributes": {"aggregation": "multi_head_attention", "num_heads": 1}}),
}


@pytest.mark.parametrize("flaw", HIDDEN_FLAWS)
def test_a_cached_twin_changes_no_verdict(flaw):
    build(TWINS.get(flaw, chain(2, 3, 2)))
    with pytest.raises(ValueError, match="the graph cannot be translated") as warm:
        build(HIDDEN_FLAWS[flaw])
    clear_translation_cache()
    with pytest.raises(ValueError, match="the graph cannot be translated") as cold:
        build(HIDDEN_FLAWS[flaw])
    assert str(warm.value) == str(cold.value)


def test_bias_of_an_input_is_refused_from_the_cache_as_well():
    data = chain(2, 3, 2)
    build(data)
    data["nodes"][0]["bias"] = 1.0
    with pytest.raises(ValueError, match=r"expected an input to have bias 0\.0"):
        build(data)
