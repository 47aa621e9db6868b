"""The Pareto front as data and as a picture; scatter plots."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import gflownet
from gflownet.evaluation.store import EvaluationRecord, EvaluationStatus
from gflownet.graphs.assignment import Assignment
from gflownet.metrics.pareto import hypervolume
from gflownet.report.pareto import FRONT_NAME, FRONT_PICTURE_NAME, ParetoFront, write_pareto_front
from gflownet.report.scatter import Axis, scatter_svg
from tests.evaluation.candidates import classifier_graph, config_with
from tests.toy_tasks import RewardsNodesOrEdges

SVG = "{http://www.w3.org/2000/svg}"


def write_front(folder: Path, measured: list[tuple[float, float]], choices: Sequence[Assignment] = ()) -> ParetoFront:
    """Write the front of choices, or of chains with i hidden nodes, with (nodes, edges) as their metrics."""
    records = []
    for length, (nodes, edges) in enumerate(measured):
        graph = choices[length] if choices else classifier_graph(*[(4, "relu")] * length)
        metrics = {"nodes": nodes, "edges": edges}
        records.append(
            EvaluationRecord(
                *(graph.canonical_hash(), graph.canonical_key(), json.dumps(graph.to_dict())),
                *(0.5, EvaluationStatus.OK, 0.1, 1),
                num_parameters=length,
                metrics=metrics,
            )
        )
    task = RewardsNodesOrEdges(config_with("evaluation.objectives=[nodes,edges]", "evaluation.projection=auto"))
    return write_pareto_front(folder, records, task=task)


def test_front_is_sorted_by_first_objective(tmp_path):
    front = write_front(tmp_path, [(1.0, 2.0), (3.0, 5.0), (2.0, 5.0), (4.0, 8.0), (1.0, 2.0), (3.0, 6.0)])
    assert front.objectives == ("nodes", "edges")
    assert front.values == [[4.0, 8.0], [3.0, 5.0], [1.0, 2.0], [1.0, 2.0]]
    assert front.num_evaluated == 6
    assert front.hypervolume == pytest.approx(hypervolume([[1.0, 1 / 8], [0.75, 0.2], [0.25, 0.5]]))  # type: ignore[arg-type]
    entries = json.loads((tmp_path / FRONT_NAME).read_text())
    assert [entry["rank"] for entry in entries] == [0, 1, 2, 3]
    assert [entry["utilities"] for entry in entries] == [
        {"nodes": 1.0, "edges": 0.125},
        {"nodes": 0.75, "edges": 0.2},
        {"nodes": 0.25, "edges": 0.5},
        {"nodes": 0.25, "edges": 0.5},
    ]
    assert [entry["num_parameters"] for entry in entries] == [3, 1, 0, 4]
    assert entries[1]["metrics"] == {"nodes": 3.0, "edges": 5.0}
    model: Any = gflownet.load(tmp_path / FRONT_NAME, rank=1, weights=False)
    assert len(model.plan.nodes) == 2  # one hidden node and the output


def test_front_of_choices_has_yaml_with_differing_places_first(tmp_path):
    settings = [{"act": "relu", "width": 4}, {"act": "relu", "width": 8}]
    write_front(tmp_path, [(1.0, 2.0), (3.0, 5.0)], list(map(Assignment.of, settings)))
    entries = json.loads((tmp_path / FRONT_NAME).read_text())
    assert [entry["choices"] for entry in entries] == ["{width: 8, act: relu}", "{width: 4, act: relu}"]


def circles(text: str, radius: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(text).iter(f"{SVG}circle") if each.get("r") == radius]


def test_picture_highlights_front(tmp_path):
    write_front(tmp_path, [(1.0, 2.0), (3.0, 5.0), (2.0, 5.0), (4.0, 8.0)])
    text = (tmp_path / FRONT_PICTURE_NAME).read_text()
    front, dominated = circles(text, "4.5"), circles(text, "2.5")
    assert (len(front), len(dominated)) == (3, 1)
    assert [each.findtext(f"{SVG}title") for each in front] == [
        "rank 0: nodes 4, edges 8",
        "rank 1: nodes 3, edges 5",
        "rank 2: nodes 1, edges 2",
    ]
    x = [float(each.get("cx", "nan")) for each in front]
    y = [float(each.get("cy", "nan")) for each in front]
    assert x == sorted(x, reverse=True)  # edges to the right
    assert y == sorted(y)  # nodes upwards
    assert (x[1] - x[2]) / (x[0] - x[2]) == pytest.approx(0.5, abs=1e-3)
    words = {each.text for each in ElementTree.fromstring(text).iter(f"{SVG}text")}
    assert {"Pareto front: 3 of 4 architectures", "nodes", "edges", "2", "8"} <= words


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.31, 0.94], [0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ([-3.0, 12.0], [-2, 0, 2, 4, 6, 8, 10, 12]),
        ([7.0, 7.0], [7.0]),
        ([30.0, 7_000.0], [50, 100, 200, 500, 1_000, 2_000, 5_000]),
        ([0.0, 7_000.0], [0, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000]),
    ],
)
def test_ticks_are_round_numbers_within_range(values, ticks):
    assert Axis("x", values).ticks() == pytest.approx(ticks)


def test_logarithmic_axis_maps_ratios_to_steps():
    axis = Axis("x", [10.0, 100.0, 1_000.0])
    places = [axis.place(value, 0.0, 300.0) for value in axis.values]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1])
    assert 0 < places[0] < places[2] < 300


def test_scatter_escapes_labels_and_merges_covered_points():
    axis = Axis("a<b", [1.0, 1.0, 2.0])
    text = scatter_svg(axis, axis, highlighted={2: "<&>"}, title='"x"')
    assert len(circles(text, "2.5")) == 1
    assert circles(text, "4.5")[0].findtext(f"{SVG}title") == "<&>"


def test_scatter_escapes_control_characters():
    axis = Axis("\x1b[31m<b>", [1.0, 2.0])
    picture = scatter_svg(axis, axis, highlighted={0: "\u202e\x00"}, title="\x07&")
    texts = [element.text for element in ElementTree.fromstring(picture).iter() if element.text]
    assert {r"\x1b[31m<b>", r"\u202e\x00", r"\x07&"} <= set(texts)
