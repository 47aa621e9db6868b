"""The Pareto front as data and as a picture."""

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
from gflownet.pictures.chart import svg_of
from gflownet.pictures.line_charts import Highlight, scatter_chart
from gflownet.report.closing import FRONT_NAME, FRONT_PICTURE_NAME, ParetoFront, write_pareto_front
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


def circles(text: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(text).iter(f"{SVG}circle"))


def test_picture_highlights_front(tmp_path):
    write_front(tmp_path, [(1.0, 2.0), (3.0, 5.0), (2.0, 5.0), (4.0, 8.0)])
    text = (tmp_path / FRONT_PICTURE_NAME).read_text()
    front = circles(text)
    (dominated,) = (each for each in ElementTree.fromstring(text).iter(f"{SVG}path") if each.get("class") == "dots s0")
    assert (len(front), dominated.get("d", "").count("M")) == (3, 1)
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


def test_picture_escapes_markup_and_control_characters():
    points, names = [(1.0, 1.0), (2.0, 2.0)], ("evaluated", "on the front")
    highlight = Highlight(1.0, 1.0, '\u202e\x00"<&>')
    chart = scatter_chart("key", "\x07&", points, [highlight], x_label="\x1b[31m<b>", y_label="y", names=names)
    assert chart is not None
    texts = [element.text for element in ElementTree.fromstring(svg_of(chart)).iter() if element.text]
    assert {r"\x1b[31m<b>", '\\u202e\\x00"<&>', r"\x07&"} <= set(texts)
