"""Parameter counts of NAS-Bench-NLP cells, rebuilt as computation graphs and compared with the logged counts.

Klyuchnikov et al. 2020. Graph: all matrices of the three cells 400 -> 600 -> 600 -> 400, with recurrent edges for
h_prev; a node stands for each linear layer, and its matrix sizes come from `gflownet.translation.summary`. The rest is
the benchmark's skeleton: one bias vector per linear operation, the embedding (shared with the decoder), and the
decoder's bias. The translator's own scalars (one per node and per edge) are not counted.
tests/envs/test_cell_networks.py compares the counts of NAS-Bench-101.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from typing import Any

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.translation import summary
from gflownet.translation.graph_summary import GraphSummary
from tests.benchmark_tables import real_table

# On WikiText-2: vocabulary, then the widths between the layers.
VOCABULARY = 33_278
NLP_WIDTHS = (400, 600, 600, 400)


def recurrent_cell(recipe: Mapping[str, Mapping[str, Any]], *, input_size: int, hidden_size: int) -> ComputationGraph:
    """Return the cell of a recipe: node 0 is x, then the nodes in order; h_prev_k is h_new_k of the step before."""
    graph = ComputationGraph(config={"multigraph": True})
    graph.add_node(0, "input", output_size=input_size)
    ids = {"x": 0} | {name: place for place, name in enumerate(recipe, 1)}
    for name in recipe:
        graph.add_node(ids[name], "output" if name == "h_new_0" else "hidden", output_size=hidden_size)
    for name, node in recipe.items():
        for source in node["input"]:
            is_recurrent = source not in ids
            attributes = {"is_recurrent": True} if is_recurrent else {}
            graph.add_edge(ids[source.replace("h_prev", "h_new")], ids[name], attributes=attributes)
    return graph


def linear_layers(recipe: Mapping[str, Mapping[str, Any]], graph: ComputationGraph) -> Iterator[tuple[int, int]]:
    """Yield the number of matrix entries and the width of each linear layer."""
    result = summary(graph, projection="always")
    assert isinstance(result, GraphSummary)
    linear = {place for place, node in enumerate(recipe.values(), 1) if node["op"] == "linear"}
    for node in result.nodes:
        if node.node_id in linear:
            yield node.num_parameters - 1 - len(node.inputs), node.output_size


def count_nlp(recipe: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the number of parameters of the language model built from a recipe."""
    total = VOCABULARY * NLP_WIDTHS[0] + VOCABULARY  # embedding, tied to the decoder; the decoder's bias
    for input_size, hidden_size in pairwise(NLP_WIDTHS):
        graph = recurrent_cell(recipe, input_size=input_size, hidden_size=hidden_size)
        total += sum(num_entries + width for num_entries, width in linear_layers(recipe, graph))
    return total


@pytest.mark.parametrize("num_runs", [50, pytest.param(345, marks=pytest.mark.slow)])
def test_logged_parameter_counts_are_reproduced(num_runs):
    with gzip.open(real_table("nb_nlp_wikitext2.jsonl.gz"), "rt", encoding="utf-8") as lines:
        runs = [json.loads(line) for line in islice(lines, num_runs)]
    assert len(runs) == num_runs
    assert [run["recipe"] for run in runs if count_nlp(run["recipe"]) != run["num_params"]] == []
