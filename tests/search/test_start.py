"""Searches that start from a network of a file: its reading, and its edits within the limits of today."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gflownet
from gflownet.config import load_config
from gflownet.errors import UserError
from gflownet.graphs.typed import graph_cost
from gflownet.learning.sampler import uniform_states
from gflownet.run.components import Builder
from gflownet.search.start import Start, read_start


def builder_of(config: str, *options: str) -> Builder:
    return Builder(load_config(config, ["search.method=surrogate", "wandb.mode=disabled", *options]))


@pytest.fixture(scope="module")
def digits() -> Builder:
    return builder_of("digits")


def size_of(network: Any) -> int:
    return graph_cost(network).num_parameters


def largest(builder: Builder) -> Any:
    """Return the random network with the most parameters, of those within no cap of the budget."""
    states = uniform_states(builder.env, 64, generator=torch.Generator().manual_seed(3))
    networks = [builder.env.terminal(states, index) for index in range(len(states))]
    return max(networks, key=size_of)


@pytest.mark.parametrize(
    ("config", "wider", "options", "limit"),
    [
        ("digits", (), (), None),
        ("digits", (), ("budget.parameters=4000",), 4_000),
        ("digits", (), ("env.max_hidden_nodes=2", "env.max_edges=3"), None),
        ("images", ("env.operation_graph.max_parameters=8000",), ("env.operation_graph.max_parameters=700",), 700),
    ],
)
def test_the_first_design_is_the_network_and_edits_of_it_within_the_limits(
    tmp_path: Path, digits: Builder, config: str, wider: tuple[str, ...], options: tuple[str, ...], limit: int | None
) -> None:
    network = largest(digits if config == "digits" else builder_of(config, *wider))
    (tmp_path / "graph.json").write_text(json.dumps(network.to_dict()))
    builder = builder_of(config, *options, f"env.start={tmp_path / 'graph.json'}")
    method: Any = builder.search.method
    states = method._start_design
    designed = [builder.env.terminal(states, index) for index in range(10)]
    keys = [each.canonical_key() for each in designed]
    assert (len(set(keys)), keys[0] == network.canonical_key()) == (10, not options)
    assert limit is None or max(map(size_of, designed)) <= limit < size_of(network)
    restored = Start(builder.env, read=lambda: pytest.fail("read again"), widened=builder._env_without_caps)
    restored.load_state_dict(method.setup.start.state_dict())
    method.setup = replace(method.setup, start=restored)
    del method._start_design
    assert torch.equal(builder.env.identify(method._start_design), builder.env.identify(states))


def test_the_trained_weights_of_a_rank_are_those_that_load_reads(finished_runs, digits: Builder) -> None:
    folder = finished_runs("digits")
    start = Start(digits.env, read=lambda: read_start(f"{folder}:1", digits.env), widened=digits._env_without_caps)
    start.load_state_dict(start.state_dict())
    network = start.network
    assert network is not None
    assert network.weights is not None
    model = gflownet.load(folder, 1)
    assert network.name == "run/top_architectures.json, rank 1"
    assert network.candidate.canonical_key() == gflownet.load_graph(folder, 1).canonical_key()
    assert all(torch.equal(network.weights[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected the file of a run, got none"),
        ([{"graph": {}}], r"expected a rank out of \[0\], got 3"),
        ({"nodes": [{"node_type": "foreign_module:Kind"}], "edges": []}, "would import foreign_module:Kind"),
        ({"nodes": [{"id": 0, "name": "x", "value": 1}], "edges": []}, ""),
    ],
)
def test_a_file_without_a_network_of_the_space_is_refused(
    tmp_path: Path, digits: Builder, content: Any, message: str
) -> None:
    if content is not None:
        (tmp_path / "graph.json").write_text(json.dumps(content))
    rank = ":3" if isinstance(content, list) else ""
    with pytest.raises(UserError, match=rf"^env.start: .*{message}"):
        read_start(f"{tmp_path / 'graph.json'}{rank}", digits.env)


def test_a_network_of_another_space_and_a_method_without_a_design_are_refused(tmp_path: Path, digits: Builder) -> None:
    (tmp_path / "graph.json").write_text(json.dumps(largest(digits).to_dict()))
    option = f"env.start={tmp_path / 'graph.json'}"
    other = builder_of("digits", option, "env.activations=[relu]", "env.output_sizes=[4]")
    with pytest.raises(UserError, match=r"^env.start: expected a network of this search space, got .*graph.json: "):
        other.state_dict()
    with pytest.raises(UserError, match=r"^env.start: expected a search method with a first design"):
        builder_of("digits", option, "search.method=random")
