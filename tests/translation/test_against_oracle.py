"""Translated random graphs against the numpy oracle; GFLOWNET_ORACLE_GRAPHS=1000 and -m "" run the full families."""

import os

import numpy as np
import pytest
import torch

from tests.oracles.translation_check import assert_matches_oracle, set_values, translated
from tests.oracles.translation_families import ACTIVATIONS, AGGREGATIONS, CELLS, FAMILIES, RHN_FAMILIES, random_graph

NUM_GRAPHS = int(os.environ.get("GFLOWNET_ORACLE_GRAPHS", "100"))
NUM_QUICK = 6  # of each family, for every commit


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("is_complete", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", [*FAMILIES, *RHN_FAMILIES])
def test_random_graphs(family, is_complete):
    share = 3 if family in RHN_FAMILIES else 1  # the oracle makes matrices row by row
    for seed in range(NUM_GRAPHS // share) if is_complete else range(0, 7 * NUM_QUICK // share, 7):
        projection = ("auto", "always")[seed % 3 == 0]
        try:
            assert_matches_oracle(random_graph(family, seed), seed=seed, projection=projection)
        except Exception as error:
            raise AssertionError(f"family {family}, seed {seed}, projection {projection}") from error


def star(aggregation, attributes=None, *, activation="linear", sources=3, width=3, size=3):
    """`sources` inputs into one output node."""
    nodes = [{"id": i, "node_type": "input", "output_size": width} for i in range(sources)]
    attributes = {"aggregation": aggregation, **(attributes or {})}
    output = {"id": 9, "node_type": "output", "output_size": size, "activation_function": activation}
    edges = [{"source": i, "target": 9, "edge_id": i} for i in range(sources)]
    return {"multigraph": False, "nodes": [*nodes, {**output, "attributes": attributes}], "edges": edges}


@pytest.mark.parametrize("aggregation", ["sum", "mean", "max", "concat", "attention", "gated_sum"])
def test_wide_nodes(aggregation):
    data = star(aggregation, sources=2, size=70)
    data["nodes"] += [{"id": 20, "node_type": "hidden", "output_size": 5, "activation_function": "tanh"}]
    data["edges"] += [
        {"source": 0, "target": 20, "edge_id": 20},
        {"source": 20, "target": 9, "edge_id": 21, "weight": 0.5},
        {"source": 9, "target": 9, "edge_id": 22, "weight": 0.5, "attributes": {"is_recurrent": True}},
    ]
    assert_matches_oracle(data, seed=5)
    assert_matches_oracle(data, seed=6, projection="always")


@pytest.mark.parametrize(("sources", "size"), [(1, 5), (2, 3), (4, 5)])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation(aggregation, sources, size):
    assert_matches_oracle(star(aggregation, sources=sources, size=size), seed=0)


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *CELLS, "rhn"])
def test_every_activation(activation):
    assert_matches_oracle(star("sum", activation=activation), seed=1)


ATTENTION = ("attention", "multi_head_attention", "attn_pool")
ACTING = [
    *((kind, {"temperature": 0.3}) for kind in ATTENTION),
    *((kind, {"attn_eps": 0.4}) for kind in ATTENTION),
    *(("topk_weighted_sum", {"top_k": k}) for k in (1, 2)),
    ("topk_weighted_sum", {"temperature": 0.4}),
    ("topk_weighted_sum", {"top_k": 2, "normalize": False}),
    *(("moe", {"router_type": "topk", "top_k": k}) for k in (1, 2)),
    ("moe", {"router_type": "topk"}),
    ("moe", {"router_type": "topk", "top_k": 2, "normalize": False}),
    ("moe", {"router_temperature": 0.4}),
    ("gated_sum", {"normalize": True}),
]
SHAPING = [
    *((kind, {"head_dim": 2}) for kind in ATTENTION),
    ("multi_head_attention", {"num_heads": 3}),
    ("attn_pool", {"pool_heads": 3, "head_dim": 2}),
    ("topk_weighted_sum", {"top_k": 9}),
    ("moe", {"router_type": "topk", "top_k": 9}),
    *((kind, {"post_projection": True}) for kind in AGGREGATIONS),
    *((kind, {"post_projection": False}) for kind in AGGREGATIONS),
]


@pytest.mark.parametrize(("aggregation", "attributes"), ACTING + SHAPING)
def test_every_attribute(aggregation, attributes):
    assert_matches_oracle(star(aggregation, attributes), seed=2)


@pytest.mark.parametrize(("aggregation", "attributes"), ACTING)
def test_an_accepted_attribute_acts(aggregation, attributes):
    model, plain = translated(star(aggregation, attributes)), translated(star(aggregation))
    set_values(model, np.random.default_rng(3))
    plain.load_state_dict(model.state_dict())
    x = torch.randn(4, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert (model(x) - plain(x)).abs().max() > 1e-3


@pytest.mark.parametrize("aggregation", [*ATTENTION, "topk_weighted_sum", "moe", "gated_sum"])
def test_dropout_acts_in_train_mode_only_and_keeps_the_mean(aggregation):
    model, plain = translated(star(aggregation, {"dropout_p": 0.4})), translated(star(aggregation))
    set_values(model, np.random.default_rng(4))
    plain.load_state_dict(model.state_dict())
    row = torch.randn(1, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = row.expand(20_000, -1)
    torch.manual_seed(0)
    dropped = model(x)
    assert len(dropped[:, 0].detach().unique()) == 2**3  # every input is dropped or kept, row by row
    assert torch.allclose(dropped.mean(0), plain(row)[0], atol=0.1)
    assert torch.allclose(model.eval()(row), plain(row))


@pytest.mark.parametrize("aggregation", ["topk_weighted_sum", "moe"])
def test_ties_go_to_the_earlier_input(aggregation):
    attributes = {"top_k": 2, **({"router_type": "topk"} if aggregation == "moe" else {})}
    model = translated(star(aggregation, attributes, sources=5))
    rows = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 2, 2]]  # equal means: five tied scores
    assert model(rows.reshape(1, -1)).tolist() == [[0.5, 0.5, 0.0]]
