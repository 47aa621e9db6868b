"""The closing report of a final stage: rows, captions and references."""

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gflownet.evaluation.final import FinalStage, TopArchitecture
from gflownet.evaluation.task import Reference
from gflownet.files import write_whole
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.metrics.statistics import simultaneous_intervals
from gflownet.report.closing import report_run
from gflownet.report.references import references_of
from gflownet.translation import to_pytorch_model
from tests.evaluation.candidates import StubTask
from tests.report.test_architectures import GRAPHS, ChoicesStub, architecture, choices_of


def printed(folder: Path, final: FinalStage) -> list[str]:
    output = io.StringIO()
    errors = report_run(
        folder,
        final.top,
        task=StubTask({}),
        terminal_type=ComputationGraph,
        score_means=[0.5, 0.6],
        errors=Counter(),
        console=Console(file=output, width=110),
        final=final,
    )
    assert errors == []
    return [line.rstrip() for line in output.getvalue().splitlines()]


def stage(*, num: int = 2, **fields: Any) -> FinalStage:
    """Return a final stage with `num` of two new seeds."""
    top = [architecture(graph, scores=(0.7, 0.8)[:num], tests=(0.5, 0.7)[:num]) for graph in GRAPHS[:2]]
    return FinalStage(tuple(top), num_seeds=2, fidelity=4, **fields)


def test_report_of_complete_final_stage(tmp_path):
    reference = Reference("a standard method", [0.9, 0.9], [0.8, 0.7], 12_345)
    best_random = architecture(GRAPHS[2], scores=(0.6, 0.6), tests=(None, None))
    final = stage(references=(reference,), best_random=best_random, num_random=7, notes=("a note",))
    lines = printed(tmp_path, final)
    cells = [line.split() for line in lines]
    interval = simultaneous_intervals([each.scores for each in final.top])[0]
    assert ["0", "0.7500", "±", f"{interval.high - 0.75:.4f}", "0.6000", "-", "0", "1", "rank_0.svg"] in cells
    assert ["-", "0.6000", "±", "0.0000", "-", "-", "-", "-", "best", "of", "7"] in [row[:11] for row in cells]
    assert ["-", "0.9000", "±", "0.0000", "0.7500", "12,345", "-", "-", "a", "standard", "method"] in cells
    assert "validation, test: means of trainings of 4 epochs on 2 new seeds (rank 0 in the search: 0.9000)" in lines
    assert any(line.startswith("±: 95 % intervals that hold for all 2 ranks at once") for line in lines)
    assert "a note" in lines
    assert not any("interrupted" in line for line in lines)
    assert lines[0].startswith("no clear difference: a standard method (0.9000 ± 0.0000) equals rank 0 (0.7500 ± ")
    (best,) = json.loads((tmp_path / "random_architecture.json").read_text())
    assert best["graph"]["nodes"]
    random, own = json.loads((tmp_path / "references.json").read_text())
    assert "random_architecture.json" in random["load"]
    assert random["scores"] == [0.6, 0.6]
    assert own == {
        "name": "a standard method",
        "mean": 0.9,
        "interval": [0.9, 0.9],
        "scores": [0.9, 0.9],
        "test_score": 0.75,
        "test_scores": [0.8, 0.7],
        "num_parameters": 12_345,
        "load": "",
    }


def test_best_random_architecture_without_a_module_has_a_load_line(tmp_path):
    graph = Assignment.of({"kernel": "rbf"}).to_dict()
    record = replace(architecture(GRAPHS[0]).record, graph=json.dumps(graph))
    final = stage(best_random=TopArchitecture(record, scores=(0.9, 0.9), tests=(None, None)))
    reference, *_ = references_of(tmp_path, final, task=StubTask({}), from_dict=Assignment.from_dict, write=write_whole)
    names: dict[str, Any] = {}
    exec(reference.code, names)
    assert names["graph"] == graph


def test_report_of_choices_prints_yaml_and_the_load_line(tmp_path):
    output = io.StringIO()
    top = [choices_of({"act": "relu", "width": width}) for width in (4, 8)]
    report_run(
        tmp_path,
        top,
        task=ChoicesStub({}),
        terminal_type=Assignment,
        score_means=[0.5],
        errors=Counter(),
        console=Console(file=output, width=110),
    )
    text = output.getvalue()
    assert "rank 1: {width: 8, act: relu}\n" in text
    assert f'gflownet.load("{tmp_path}/top_architectures.json", rank=0, weights=False)' in text
    assert "hidden" not in text
    assert "mean score of sampled architectures: 0.500 in the first step, 0.500 in the last\n" in text


@pytest.mark.parametrize(
    ("final", "message"),
    [
        (stage(is_stopped=True), "the final stage was interrupted: no references"),
        (
            stage(num=1, is_stopped=True, is_complete=False),
            "the final stage was interrupted: ranked by the trainings so far",
        ),
        (stage(num=0, is_stopped=True, is_complete=False), "no architecture was trained on a new seed"),
    ],
)
def test_report_of_interrupted_final_stage(tmp_path, final, message):
    lines = printed(tmp_path, final)
    assert any(line.startswith(message) for line in lines)
    assert json.loads((tmp_path / "references.json").read_text()) == []


def test_load_line_has_weights_argument_without_weights(tmp_path):
    assert printed(tmp_path, stage())[-2].endswith('top_architectures.json", rank=0, weights=False)')
    trained = architecture(GRAPHS[0], scores=(0.5,), weights=to_pytorch_model(GRAPHS[0]).state_dict())
    lines = printed(tmp_path, FinalStage((trained,), num_seeds=1, fidelity=4))
    assert lines[-2].endswith('top_architectures.json", rank=0)')
    assert not any(line.startswith("±") for line in lines)
