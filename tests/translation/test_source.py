"""to_source: a file that runs without gflownet and gives the model's numbers."""

import sys

import pytest
import torch

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import to_pytorch_model, to_source
from tests.oracles.translation_families import FAMILIES, random_graph
from tests.translation.graphs import chain, mixed, recurrent


def run_source(text, name="Model"):
    namespace = {}
    exec(compile(text, "<to_source>", "exec"), namespace)
    return namespace[name]()


def assert_same(data, projection="auto"):
    graph = ComputationGraph.from_dict(data)
    torch.manual_seed(7)
    model = to_pytorch_model(graph, {"projection": projection})
    torch.manual_seed(7)
    other = run_source(to_source(graph, projection=projection))
    state, expected = other.state_dict(), model.state_dict()
    assert list(state)
    assert sorted(state) == sorted(expected)
    # Bound and std are rounded differently by nn.Linear and q * std; the draws are the same.
    assert all(torch.allclose(state[name], expected[name]) for name in state)
    other.load_state_dict(expected)
    x = torch.randn(3, 2, model.plan.input_size)
    for row in (*x, *x):
        # The source calls its layers; the model scales their weights.
        assert torch.allclose(model(row), other(row), rtol=1e-4, atol=1e-6)
    if model.plan.slots:
        assert torch.allclose(model(x[0], reset_states=True), other(x[0], reset_states=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_graphs_give_the_same_numbers(family):
    for seed in range(4):
        assert_same(random_graph(family, seed), ("auto", "always")[seed % 2])


@pytest.mark.parametrize("data", [mixed(), recurrent(), chain(3, 3)], ids=["mixed", "recurrent", "scalar"])
def test_the_same_numbers(data):
    assert_same(data)


def test_negative_ids_become_identifiers():
    data = chain(2, 3, 2)
    data["nodes"][1]["id"] = data["edges"][0]["target"] = data["edges"][1]["source"] = -5
    text = to_source(ComputationGraph.from_dict(data))
    assert "self.bias_m5" in text
    assert run_source(text)(torch.zeros(1, 2)).shape == (1, 2)


def test_it_runs_where_there_is_no_gflownet(monkeypatch):
    text = to_source(ComputationGraph.from_dict(recurrent()), name="Found")
    imports = [line for line in text.splitlines() if "import" in line]
    assert imports == ["import torch", "import torch.nn.functional as F", "from torch import nn"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "gflownet"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert run_source(text, "Found")(torch.zeros(2, 4)).shape == (2, 3)


@pytest.mark.parametrize("name", ["class", "nn", "torch"])
def test_names_that_the_source_uses_are_refused(name):
    with pytest.raises(ValueError, match=f"expected a name that the source does not use, got '{name}'"):
        to_source(ComputationGraph.from_dict(chain(2, 2)), name=name)


def test_a_name_must_be_an_identifier():
    with pytest.raises(ValueError, match="expected a Python identifier, got 'my model'"):
        to_source(ComputationGraph.from_dict(chain(2, 2)), name="my model")
