"""Parameter counts of published cells, rebuilt as computation graphs and compared with the logged counts.

A node of the graph stands for each linear layer; its matrix sizes come from `gflownet.translation.summary`. The rest
comes from the benchmark's skeleton:

- NAS-Bench-NLP (Klyuchnikov et al. 2020). Graph: all matrices of the three cells 400 -> 600 -> 600 -> 400, with
  recurrent edges for h_prev. Skeleton: one bias vector per linear operation, the embedding (shared with the decoder),
  and the decoder's bias.
- NAS-Bench-101 (Ying et al. 2019). Graph: all convolutions of the nine cells; a 1 x 1 convolution is a linear layer
  over channels, a 3 x 3 convolution is nine of them, summed. Skeleton: two parameters per channel for each batch norm,
  the stem, the classifier, and the rule that assigns channels to vertices.

Operations without parameters (activations, products, pooling) are nodes without a matrix. The translator's own scalars
(one per node and per edge) are not counted.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.translation import summary, to_pytorch_model
from gflownet.translation.graph_summary import GraphSummary
from tests.benchmark_tables import real_table

# NAS-Bench-NLP on WikiText-2: vocabulary, then the widths between the layers.
VOCABULARY = 33_278
NLP_WIDTHS = (400, 600, 600, 400)

# NAS-Bench-101: 3 stacks of 3 cells, the channels double from stack to stack.
STEM_CHANNELS, NUM_STACKS, CELLS_PER_STACK, NUM_CLASSES = 128, 3, 3, 10
CONV3X3, CONV1X1 = 0, 1
# A convolution counts as one linear layer per offset of its kernel; pooling has no parameters.
NUM_OFFSETS = {CONV3X3: 9, CONV1X1: 1}


class Cell:
    """A multigraph under construction, and the set of its nodes that are linear layers."""

    def __init__(self, input_size: int) -> None:
        self.graph = ComputationGraph(config={"multigraph": True})
        self.linear: set[int] = set()
        self.input = self._add(NodeType.INPUT, input_size)

    def add(self, size: int, *, is_linear: bool = False, is_output: bool = False, aggregation: str = "sum") -> int:
        """Return the id of a new node."""
        node = self._add(NodeType.OUTPUT if is_output else NodeType.HIDDEN, size, aggregation=aggregation)
        if is_linear:
            self.linear.add(node)
        return node

    def connect(self, source: int, target: int, *, is_recurrent: bool = False) -> None:
        """Add an edge; a recurrent edge reads the source's value of the previous time step."""
        self.graph.add_edge(source, target, attributes={"is_recurrent": True} if is_recurrent else {})

    def linear_layers(self) -> Iterator[tuple[int, int]]:
        """Yield the number of matrix entries and the width of each linear layer."""
        result = summary(self.graph, projection="always")
        assert isinstance(result, GraphSummary)
        for node in result.nodes:
            if node.node_id in self.linear:
                num_scalars = 1 + len(node.source_sizes)
                yield node.num_parameters - num_scalars, node.output_size

    def _add(self, kind: NodeType, size: int, **attributes: Any) -> int:
        node = len(self.graph.nodes)
        self.graph.add_node(node, kind, output_size=size, attributes=attributes)
        return node


def recurrent_cell(recipe: Mapping[str, Mapping[str, Any]], *, input_size: int, hidden_size: int) -> Cell:
    """Return the cell of a NAS-Bench-NLP recipe; h_prev_k is h_new_k of the previous time step."""
    cell = Cell(input_size)
    ids = {
        name: cell.add(hidden_size, is_linear=node["op"] == "linear", is_output=name == "h_new_0")
        for name, node in recipe.items()
    }
    for name, node in recipe.items():
        for source in node["input"]:
            if source in ids:
                cell.connect(ids[source], ids[name])
            elif source == "x":
                cell.connect(cell.input, ids[name])
            else:
                cell.connect(ids[source.replace("h_prev", "h_new")], ids[name], is_recurrent=True)
    return cell


def count_nlp(recipe: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the number of parameters of the language model built from a recipe."""
    total = VOCABULARY * NLP_WIDTHS[0] + VOCABULARY  # embedding, tied to the decoder; the decoder's bias
    for input_size, hidden_size in pairwise(NLP_WIDTHS):
        layers = recurrent_cell(recipe, input_size=input_size, hidden_size=hidden_size).linear_layers()
        total += sum(num_entries + width for num_entries, width in layers)
    return total


def vertex_channels(matrix: Sequence[Sequence[int]], *, input_channels: int, output_channels: int) -> list[int]:
    """Return the channels of every vertex (Ying et al. 2019, section 2.3).

    The output channels are divided over the vertices that feed the output; the first ones take the remainder. Any
    other vertex has as many channels as the widest vertex that it feeds.
    """
    last = len(matrix) - 1
    channels = [0] * len(matrix)
    channels[0], channels[last] = input_channels, output_channels
    feeders = [vertex for vertex in range(1, last) if matrix[vertex][last]]
    for position, vertex in enumerate(feeders):
        channels[vertex] = output_channels // len(feeders) + (position < output_channels % len(feeders))
    for vertex in range(last - 1, 0, -1):
        if not matrix[vertex][last]:
            channels[vertex] = max(channels[target] for target in range(vertex + 1, last) if matrix[vertex][target])
    return channels


def convolutional_cell(
    matrix: Sequence[Sequence[int]], labels: Sequence[int], *, input_channels: int, output_channels: int
) -> Cell:
    """Return a NAS-Bench-101 cell: a linear node per convolution, including the projections of the cell's input."""
    cell, last = Cell(input_channels), len(matrix) - 1
    channels = vertex_channels(matrix, input_channels=input_channels, output_channels=output_channels)

    def project(target: int, size: int) -> None:
        projection = cell.add(size, is_linear=True)
        cell.connect(cell.input, projection)
        cell.connect(projection, target)

    results: dict[int, int] = {}
    for vertex in range(1, last):
        gathered = cell.add(channels[vertex])
        results[vertex] = cell.add(channels[vertex], is_linear=labels[vertex] in NUM_OFFSETS)
        for source in range(1, vertex):
            if matrix[source][vertex]:
                cell.connect(results[source], gathered)
        if matrix[0][vertex]:
            project(gathered, channels[vertex])
        for _ in range(NUM_OFFSETS.get(labels[vertex], 1)):
            cell.connect(gathered, results[vertex])
    output = cell.add(output_channels, is_output=True)
    feeders = [vertex for vertex in results if matrix[vertex][last]]
    if feeders:
        joined = cell.add(output_channels, aggregation="concat")
        for vertex in feeders:
            cell.connect(results[vertex], joined)
        cell.connect(joined, output)
    if matrix[0][last]:
        project(output, output_channels)
    return cell


@cache
def count_nb101(adjacency: str, op_labels: str) -> int:
    """Return the number of parameters of the image classifier built from a cell; `adjacency` is row-major."""
    labels = [int(label) for label in op_labels.split()]
    size = len(labels)
    matrix = [[int(digit) for digit in adjacency[row * size : (row + 1) * size]] for row in range(size)]
    total = 3 * 9 * STEM_CHANNELS + 2 * STEM_CHANNELS  # stem: 3 x 3 from 3 colours, batch norm
    before = STEM_CHANNELS
    for channels in (STEM_CHANNELS * 2**stack for stack in range(NUM_STACKS)):
        for input_channels, num_cells in ((before, 1), (channels, CELLS_PER_STACK - 1)):
            cell = convolutional_cell(matrix, labels, input_channels=input_channels, output_channels=channels)
            total += num_cells * sum(num_entries + 2 * width for num_entries, width in cell.linear_layers())
        before = channels
    return total + before * NUM_CLASSES + NUM_CLASSES


# A vanilla RNN: h = tanh(W x + U h + b).
RNN = {"f": {"op": "linear", "input": ["x", "h_prev_0"]}, "h_new_0": {"op": "activation_tanh", "input": ["f"]}}
# The input feeds two convolutions, 3 x 3 and 1 x 1, and the output; the second convolution is fed by the first, too.
BRANCHES = [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
STEM_AND_CLASSIFIER = 3 * 9 * 128 + 2 * 128 + 512 * 10 + 10


def test_count_nlp_vanilla_rnn():
    layers = sum(i * h + h * h + h for i, h in ((400, 600), (600, 600), (600, 400)))
    assert count_nlp(RNN) == 33_278 * 400 + 33_278 + layers


def test_recurrent_cell_translates():
    cell = recurrent_cell(RNN, input_size=5, hidden_size=7)
    assert list(cell.linear_layers()) == [(5 * 7 + 7 * 7, 7)]
    assert [edge.is_recurrent for edge in cell.graph.edges.values()] == [False, True, False]
    matrices = [p for name, p in to_pytorch_model(cell.graph).named_parameters() if name.startswith("proj")]
    assert [tuple(matrix.shape) for matrix in matrices] == [(7, 5)]  # 7 -> 7 is a matrix with projection=always only


def test_linear_layers_match_translated_module():
    cell = convolutional_cell(BRANCHES, [-1, 0, 1, -2], input_channels=3, output_channels=8)
    model = to_pytorch_model(cell.graph, {"projection": "always"})
    into_linear = {edge.edge_id for edge in cell.graph.edges.values() if edge.target in cell.linear}
    sizes = [model.get_parameter(f"proj_{edge_id}.weight").numel() for edge_id in into_linear]
    assert sum(num_entries for num_entries, _ in cell.linear_layers()) == sum(sizes)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[0, 1], [0, 0]], [3, 7]),
        (BRANCHES, [3, 4, 3, 7]),  # 7 over two: the first takes the odd one
        ([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]], [3, 7, 7, 7]),
        # The first feeds both others and not the output: as many as the wider.
        ([[0, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0] * 5], [3, 4, 4, 3, 7]),
    ],
)
def test_vertex_channels(matrix, expected):
    assert vertex_channels(matrix, input_channels=3, output_channels=7) == expected


def test_convolutional_cell_linear_layers():
    layers = list(convolutional_cell(BRANCHES, [-1, 0, 1, -2], input_channels=3, output_channels=7).linear_layers())
    projections = [(3 * 4, 4), (3 * 3, 3), (3 * 7, 7)]
    assert sorted(layers) == sorted([*projections, (9 * 4 * 4, 4), (3 * 3, 3)])


def test_count_nb101_of_projections_only():
    widths = (
        (128, 128),
        (128, 128),
        (128, 128),
        (128, 256),
        (256, 256),
        (256, 256),
        (256, 512),
        (512, 512),
        (512, 512),
    )
    assert count_nb101("0100", "-1 -2") == STEM_AND_CLASSIFIER + sum(i * o + 2 * o for i, o in widths)


def test_count_nb101_pooling_has_no_parameters():
    chain = "010001000"
    assert count_nb101(chain, "-1 2 -2") == count_nb101("0100", "-1 -2")
    assert count_nb101(chain, "-1 1 -2") > count_nb101(chain, "-1 2 -2")


def nlp_counts(path: Path) -> Iterator[tuple[int, int]]:
    """Yield our count and the logged count of every run."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for run in map(json.loads, lines):
            yield count_nlp(run["recipe"]), run["num_params"]


def nb101_counts(path: Path) -> Iterator[tuple[int, int]]:
    """Yield our count and the logged count of every run."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            yield count_nb101(row["adjacency_rowmajor"], row["op_labels"]), int(row["params"])


@pytest.mark.parametrize("num_runs", [50, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("file", "counts", "num_all"),
    [("nb_nlp_wikitext2.jsonl.gz", nlp_counts, 345), ("nb101_ec_4epochs.csv.gz", nb101_counts, 2805)],
)
def test_logged_parameter_counts_are_reproduced(file, counts, num_all, num_runs):
    pairs = list(islice(counts(real_table(file)), num_runs))
    assert len(pairs) == (num_runs or num_all)
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
