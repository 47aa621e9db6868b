"""Report of the best architectures: files, rows and failing test scores."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gflownet
from gflownet.console import ReportRow
from gflownet.evaluation.store import EvaluationRecord, EvaluationStatus
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.report.architectures import TOP_NAME, with_translation, write_top_architectures
from gflownet.translation import summary, to_pytorch_model, to_source
from tests.evaluation.candidates import StubTask, classifier_graph
from tests.translation.test_source import run_source


class TestedTask(StubTask):
    """A task with a function of the graph as test score."""

    __test__ = False

    def __init__(self, score: Callable[[ComputationGraph], Any]) -> None:
        super().__init__({})
        self.score = score

    def test(self, graph: Any, *, seed: int) -> float | None:
        return self.score(graph)


def report(
    folder: Path, score: Callable[[ComputationGraph], Any], **options: Any
) -> tuple[list[ReportRow], list[Any], list[str]]:
    """Report chains with zero, one and two hidden nodes; return table rows, file entries and printed lines."""
    graphs = [classifier_graph(*[(4, "relu")] * num) for num in range(3)]
    records = [
        EvaluationRecord(
            graph.canonical_hash(),
            graph.canonical_key(),
            json.dumps(graph.to_dict()),
            score=0.9,
            status=EvaluationStatus.OK,
            seconds=0.1,
            step=1,
        )
        for graph in graphs
    ]
    lines: list[str] = []
    task = TestedTask(score)
    for name, value in options.items():
        setattr(task.config.evaluation, name, value)
    rows = write_top_architectures(
        folder, records, task=task, seed=0, from_dict=ComputationGraph.from_dict, report_line=lines.append
    )
    return rows, json.loads((folder / TOP_NAME).read_text()), lines


def test_write_top_architectures(tmp_path):
    rows, entries, lines = report(tmp_path, lambda graph: np.float32(len(graph.nodes) / 8))
    assert [(row.rank, row.validation, row.test, row.num_hidden, row.num_edges, row.picture) for row in rows] == [
        (0, 0.9, 0.25, 0, 1, "rank_0.svg"),
        (1, 0.9, 0.375, 1, 2, "rank_1.svg"),
        (2, 0.9, 0.5, 2, 3, "rank_2.svg"),
    ]
    assert [entry["test_score"] for entry in entries] == [0.25, 0.375, 0.5]
    assert all((tmp_path / "architectures" / row.picture).is_file() for row in rows)
    assert lines == []


def test_write_top_architectures_without_test_data(tmp_path):
    rows, entries, lines = report(tmp_path, lambda graph: None)
    assert [row.test for row in rows] == [entry["test_score"] for entry in entries] == [None] * 3
    assert lines == []


def raises(graph: ComputationGraph) -> float:
    if len(graph.nodes) == 2:
        return 0.5
    raise RuntimeError(f"no\n{len(graph.edges)} edges")


@pytest.mark.parametrize(
    ("score", "why"),
    [
        (raises, "RuntimeError: no 2 edges"),
        (lambda graph: 0.5 if len(graph.nodes) == 2 else float("nan"), "expected a finite score, got nan"),
        (lambda graph: 0.5 if len(graph.nodes) == 2 else [], "TypeError: float() argument must be"),
    ],
)
def test_failing_test_score_is_reported_once(tmp_path, score, why):
    rows, entries, lines = report(tmp_path, score)
    assert [row.test for row in rows] == [entry["test_score"] for entry in entries] == [0.5, None, None]
    assert [row.picture for row in rows] == ["rank_0.svg", "rank_1.svg", "rank_2.svg"]
    (line,) = lines
    assert line.startswith(f"no test score of rank 1: {why}")
    assert line.endswith("(and of 1 more)")
    assert "\n" not in line


@pytest.mark.parametrize("projection", ["always", "auto"])
def test_reported_graph_keeps_translation_settings(tmp_path, projection):
    _, entries, _ = report(tmp_path, lambda graph: None, projection=projection)
    scored = classifier_graph((4, "relu"), (4, "relu"))
    graph = ComputationGraph.from_dict(entries[2]["graph"])
    expected = to_pytorch_model(scored, {"projection": projection}).state_dict()
    assert ("proj_2_3.weight" in expected) == (projection == "always")
    path = tmp_path / TOP_NAME
    for model in (to_pytorch_model(graph), gflownet.load(path, 2), run_source(to_source(graph))):
        assert model.state_dict().keys() == expected.keys()
    assert summary(graph).num_parameters == sum(value.numel() for value in expected.values())
    # The stored, reported and loaded graphs are equal.
    assert graph == scored == gflownet.load_graph(path, 2)
    assert graph.canonical_hash() == scored.canonical_hash()


def test_with_translation_leaves_assignments_unchanged():
    assignment = Assignment(("a",), (1,)).to_dict()
    assert with_translation(assignment, TestedTask(lambda graph: None)) == assignment
