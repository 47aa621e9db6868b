"""Published parameter counts: by hand on cells that fit in the head, and of every logged cell where the data is."""

from itertools import islice

import pytest

from gflownet.translation import to_pytorch_model
from scripts import count_parameters
from scripts.bench import FALLS_SHORT, SKIPPED
from scripts.count_parameters import (
    CHECKS,
    DATA,
    convolutional_cell,
    count_nb101,
    count_nlp,
    main,
    recurrent_cell,
    vertex_channels,
)

# A vanilla RNN: h = tanh(W x + U h + b).
RNN = {"f": {"op": "linear", "input": ["x", "h_prev_0"]}, "h_new_0": {"op": "activation_tanh", "input": ["f"]}}
# The input feeds two convolutions, 3 x 3 and 1 x 1, and the output; the second convolution is fed by the first, too.
BRANCHES = [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
STEM_AND_CLASSIFIER = 3 * 9 * 128 + 2 * 128 + 512 * 10 + 10


def test_vanilla_rnn_is_counted_as_by_hand():
    layers = sum(i * h + h * h + h for i, h in ((400, 600), (600, 600), (600, 400)))
    assert count_nlp(RNN) == 33_278 * 400 + 33_278 + layers


def test_recurrent_cell_is_a_graph_that_runs():
    cell = recurrent_cell(RNN, input_size=5, hidden_size=7)
    assert list(cell.linear_layers()) == [(5 * 7 + 7 * 7, 7)]
    assert [edge.is_recurrent for edge in cell.graph.edges.values()] == [False, True, False]
    matrices = [p for name, p in to_pytorch_model(cell.graph).named_parameters() if name.startswith("proj")]
    assert [tuple(matrix.shape) for matrix in matrices] == [(7, 5)]  # 7 -> 7 is a matrix with projection=always only


def test_matrices_of_a_cell_are_those_of_a_real_module():
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
def test_channels_of_the_vertices(matrix, expected):
    assert vertex_channels(matrix, input_channels=3, output_channels=7) == expected


def test_convolutional_cell_is_counted_as_by_hand():
    layers = list(convolutional_cell(BRANCHES, [-1, 0, 1, -2], input_channels=3, output_channels=7).linear_layers())
    projections = [(3 * 4, 4), (3 * 3, 3), (3 * 7, 7)]
    assert sorted(layers) == sorted([*projections, (9 * 4 * 4, 4), (3 * 3, 3)])


def test_classifier_of_projections_alone():
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


def test_pooling_has_no_parameters():
    chain = "010001000"
    assert count_nb101(chain, "-1 2 -2") == count_nb101("0100", "-1 -2")
    assert count_nb101(chain, "-1 1 -2") > count_nb101(chain, "-1 2 -2")


@pytest.mark.parametrize(
    ("name", "num_runs"),
    [
        ("NAS-Bench-NLP recurrent cells", 50),
        ("NAS-Bench-101 cells", 50),
        pytest.param("NAS-Bench-NLP recurrent cells", 345, marks=pytest.mark.slow),
        pytest.param("NAS-Bench-101 cells", 2805, marks=pytest.mark.slow),
    ],
)
def test_logged_counts_are_reproduced(name, num_runs):
    file, counts = CHECKS[name]
    if not (DATA / file).is_file():
        pytest.skip(f"there is no {file} in {DATA}")
    pairs = list(islice(counts(DATA / file), num_runs if num_runs < 100 else None))
    assert len(pairs) == num_runs
    assert [pair for pair in pairs if pair[0] != pair[1]] == []


def test_absent_data_is_skipped(tmp_path, capsys):
    assert main(["--data", str(tmp_path)]) == SKIPPED
    assert capsys.readouterr().out.count("skipped: NAS-Bench-") == 2


def test_wrong_count_falls_short(tmp_path, capsys, monkeypatch):
    (tmp_path / "x").touch()
    monkeypatch.setattr(count_parameters, "CHECKS", {"cells": ("x", lambda path: [(1, 1), (2, 3)])})
    assert main(["--data", str(tmp_path)]) == FALLS_SHORT
    assert capsys.readouterr().out == "cells, 2 runs: wrong counts  1    goal 0: FALLS SHORT\n"
