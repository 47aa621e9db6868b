"""Counts the parameters of published cells by building them as computation graphs, and compares with the logged counts.

    python scripts/count_parameters.py [--quick] [--json FILE] [--data DIR]

Two files of the data folder are read (by default ../shared/data, seen from the repository); a check without its file is
skipped. Wherever a cell has a linear layer, a node of the graph stands for it, and the size of its
matrices is what gflownet.translation.summary says. What the graph does not have comes from the benchmark's skeleton:

- NAS-Bench-NLP (Klyuchnikov et al. 2020): nodes for all of a cell's operations, recurrent edges for h_prev. From
  the graph: every matrix of the three cells 400 -> 600 -> 600 -> 400. From the skeleton: one bias vector per linear
  operation (our node has one number), the embedding, which the decoder shares, and the decoder's bias.
- NAS-Bench-101 (Ying et al. 2019): a 1 x 1 convolution is a linear layer over channels, a 3 x 3 one is nine of
  them, summed, one per offset. From the graph: every convolution of the nine cells, projections of the cell's input
  included. From the skeleton: two numbers per channel for the batch norm after each convolution, the stem, the
  classifier, and the rule that gives each vertex its channels.

Operations without parameters (activations, products, blends, pooling, truncation) are nodes that only pass on: what
they compute has no bearing on the count, nor have our own scalars, one per node and one per edge.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.graphs.computation_graph import ComputationGraph, NodeType
from gflownet.translation import summary
from scripts.bench import Row, equals, finish, make_parser, skip

DATA = Path(__file__).resolve().parent.parent / ".." / "shared" / "data"
NLP_FILE, NB101_FILE = "nb_nlp_wikitext2.jsonl.gz", "nb101_ec_4epochs.csv.gz"
NUM_RUNS_QUICK = 100

# NAS-Bench-NLP on WikiText-2: vocabulary, then the widths between the layers.
VOCABULARY = 33_278
NLP_WIDTHS = (400, 600, 600, 400)

# NAS-Bench-101: 3 stacks of 3 cells, the channels double from stack to stack.
STEM_CHANNELS, NUM_STACKS, CELLS_PER_STACK, NUM_CLASSES = 128, 3, 3, 10
CONV3X3, CONV1X1 = 0, 1
# A convolution is as many linear layers as its kernel has offsets; pooling is none.
NUM_OFFSETS = {CONV3X3: 9, CONV1X1: 1}


class Cell:
    """A multigraph in the making, and which of its nodes are linear layers."""

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
        """Add an edge; recurrent ones bring what the source was one time step earlier."""
        self.graph.add_edge(source, target, attributes={"is_recurrent": True} if is_recurrent else {})

    def linear_layers(self) -> Iterator[tuple[int, int]]:
        """Yield of each linear layer the number of its matrices' entries, and its width."""
        for node in summary(self.graph, projection="always").nodes:
            if node.node_id in self.linear:
                num_scalars = 1 + len(node.source_sizes)
                yield node.num_parameters - num_scalars, node.output_size

    def _add(self, kind: NodeType, size: int, **attributes: Any) -> int:
        node = len(self.graph.nodes)
        self.graph.add_node(node, kind, output_size=size, attributes=attributes)
        return node


def recurrent_cell(recipe: Mapping[str, Mapping[str, Any]], *, input_size: int, hidden_size: int) -> Cell:
    """Return the cell of a NAS-Bench-NLP recipe; h_prev_k is the node h_new_k one time step earlier."""
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
    """Return the parameters of the language model made of a recipe's cells."""
    total = VOCABULARY * NLP_WIDTHS[0] + VOCABULARY  # embedding, tied to the decoder; the decoder's bias
    for input_size, hidden_size in pairwise(NLP_WIDTHS):
        layers = recurrent_cell(recipe, input_size=input_size, hidden_size=hidden_size).linear_layers()
        total += sum(num_entries + width for num_entries, width in layers)
    return total


def vertex_channels(matrix: Sequence[Sequence[int]], *, input_channels: int, output_channels: int) -> list[int]:
    """Return the channels of every vertex (Ying et al. 2019, section 2.3).

    The output's are divided over the vertices that feed it, the first ones taking what is left over; any other vertex
    has as many as the widest that it feeds.
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
    """Return a NAS-Bench-101 cell: a linear node per convolution, projections of the cell's input included."""
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
    """Return the parameters of the image classifier made of a cell; `adjacency` is row by row."""
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


def nlp_counts(path: Path) -> Iterator[tuple[int, int]]:
    """Yield our count and the logged one of every run."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            run = json.loads(line)
            yield count_nlp(run["recipe"]), run["num_params"]


def nb101_counts(path: Path) -> Iterator[tuple[int, int]]:
    """Yield our count and the logged one of every run."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            yield count_nb101(row["adjacency_rowmajor"], row["op_labels"]), int(row["params"])


CHECKS: dict[str, tuple[str, Callable[[Path], Iterable[tuple[int, int]]]]] = {
    "NAS-Bench-NLP recurrent cells": (NLP_FILE, nlp_counts),
    "NAS-Bench-101 cells": (NB101_FILE, nb101_counts),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Count the runs whose logged number is not ours, and return the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="folder of the benchmarks' files")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name, (file, counts) in CHECKS.items():
        path: Path = options.data / file
        if not path.is_file():
            skip(name, f"no such file: {path}")
            continue
        pairs = list(islice(counts(path), NUM_RUNS_QUICK if options.quick else None))
        rows.append(equals(f"{name}, {len(pairs)} runs: wrong counts", sum(a != b for a, b in pairs), 0))
    return finish(rows, json_path=options.json)


if __name__ == "__main__":
    sys.exit(main())
