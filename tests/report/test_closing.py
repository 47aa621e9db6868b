"""The closing report of a final stage: rows, captions and references."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import gflownet
from gflownet.evaluation.final import FinalStage, Sizes, TopArchitecture, ranked
from gflownet.evaluation.presentation import Reference
from gflownet.evaluation.statistics import difference_margin, hypervolume, simultaneous_intervals, standard_error
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus
from gflownet.files import write_whole
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.report.closing import FRONT_NAME, print_best, print_front, print_results, write_final, write_pareto_front
from gflownet.report.references import compare_references
from gflownet.report.results import RESULTS_NAME, Finalist, Front, Results, Side, read_results
from gflownet.report.verdict import compared, comparison_rows, comparisons_of, summary_of, verdict_line, verdict_words
from gflownet.translation import to_pytorch_model
from tests.evaluation.candidates import StubTask, classifier_graph, config_with
from tests.report.page.folders import side
from tests.report.test_architectures import GRAPHS, architecture
from tests.toy_tasks import RewardsNodesOrEdges


def printed(folder: Path, final: FinalStage) -> list[str]:
    output = io.StringIO()
    part = write_final(folder, final.top, task=StubTask({}), terminal_type=ComputationGraph, final=final)
    (folder / RESULTS_NAME).write_text(Results(final=part).to_json(folder))
    assert repr(read_results(folder).final) == repr(part), "the file has all figures"
    print_results(read_results(folder), folder, Console(file=output, width=110))
    return [line.rstrip() for line in output.getvalue().splitlines()]


def stage(*, num: int = 3, **fields: Any) -> FinalStage:
    """Return a final stage with `num` of three new seeds."""
    top = [architecture(graph, scores=(0.7, 0.8, 0.75)[:num], tests=(0.5, 0.7, 0.6)[:num]) for graph in GRAPHS[:2]]
    return FinalStage(tuple(top), num_seeds=3, fidelity=4, **fields)


def test_report_of_complete_final_stage(tmp_path):
    reference = Reference("a standard method", [0.95] * 3, [0.8, 0.7, 0.75], 12_345)
    best_random = architecture(GRAPHS[2], scores=(0.5,) * 3, tests=(None,) * 3)
    final = stage(references=(reference,), random_top=(best_random,), num_random=7, notes=("a note",))
    lines = printed(tmp_path, final)
    cells = [line.split() for line in lines]
    interval = simultaneous_intervals([each.scores for each in final.top])[0]
    assert ["0", "0.7500", "±", f"{interval.high - 0.75:.4f}", "0.6000", "-", "rank_0.svg"] in cells
    assert ["-", "0.5000", "±", "0.0000", "-", "-", "random", "search"] in cells
    assert ["-", "0.9500", "±", "0.0000", "0.7500", "12,345", "a", "standard", "method"] in cells
    assert "validation, test: means of trainings of 4 epochs on 3 new seeds (rank 0 in the search: 0.9000)" in lines
    assert any(line.startswith("±: 95 % intervals that hold for all 2 ranks at once") for line in lines)
    assert "a note" in lines
    assert not any("interrupted" in line for line in lines)
    assert lines[0] == "Better than random search; worse than a standard method."
    welch = f"{difference_margin([standard_error(final.top[0].scores), (0.0, 2.0)], num=2):.3f}"
    figures = f"0.750 ± {interval.high - 0.75:.3f} 0.950 ± 0.000 -0.200 ± {welch}"
    assert f"a standard method {figures} worse" in [" ".join(row) for row in cells]
    assert "random search: best of 7 random architectures" in lines
    (best,) = json.loads((tmp_path / "random_architecture.json").read_text())
    assert best["graph"]["nodes"]
    own, random = (each.reference for each in read_results(tmp_path).comparisons)
    assert "random_architecture.json" in random.load
    assert random.scores == (0.5,) * 3
    assert (own.name, own.mean, own.low, own.tests, own.num_parameters) == (
        "a standard method",
        pytest.approx(0.95),
        pytest.approx(0.95),
        (0.8, 0.7, 0.75),
        12_345,
    )


class SizedTask(StubTask):
    """Two objectives, the score and a cost."""

    objectives = ("accuracy", "parameters")
    score_name = "accuracy"
    costs = MappingProxyType({"parameters": 100.0})


def sized(size: int, *scores: float) -> TopArchitecture:
    each = architecture(GRAPHS[0], scores=scores, tests=(None,) * len(scores))
    return replace(each, record=replace(each.record, metrics={"accuracy": 0.9, "parameters": size}))


def test_two_objectives_are_compared_within_caps_and_by_hypervolume(tmp_path):
    final = FinalStage(
        ranked([sized(100, 0.6, 0.62), sized(300, 0.9, 0.9), sized(250, 0.5)]),
        num_seeds=2,
        fidelity=4,
        random_top=ranked([sized(100, 0.2, 0.2), sized(300, 0.55, 0.65), sized(900, 0.9, 0.9)]),
        num_random=7,
        sizes=Sizes("parameters", (50, 100, 300)),
    )
    task = SizedTask({}, config_with("evaluation.objectives=[accuracy,parameters]"))
    part = write_final(tmp_path, final.top, task=task, terminal_type=ComputationGraph, final=final)
    front, small, large = part.comparisons
    owns = [each.own or each.reference for each in part.comparisons]
    # Utilities of sizes 100, 300, 900 are 1/2, 1/4, 1/10.
    assert owns[0].mean == pytest.approx(0.9 / 4 + 0.61 / 4)
    assert front.reference.mean == pytest.approx(0.9 / 10 + 0.6 * 0.15 + 0.2 / 4)
    measures = [each.reference.measure for each in part.comparisons]
    rows = [(name, own.name, f"{own.mean:.4f}", len(own.scores)) for name, own in zip(measures, owns, strict=True)]
    assert rows == [
        ("hypervolume on new seeds", "the run's front", "0.3775", 0),
        ("at most 100 parameters", "rank 1", "0.6100", 2),
        ("at most 300 parameters", "rank 0", "0.9000", 2),
    ]
    assert [small.reference.mean, large.reference.mean] == pytest.approx([0.2, 0.6])
    better, few = "better than random search over the whole front", "too few seeds against random search at most"
    assert summary_of(part.comparisons) == f"{better}; {few} 100 and 300 parameters"
    (first, second) = json.loads((tmp_path / "random_architecture.json").read_text())
    assert [first["final"]["mean"], second["final"]["mean"]] == pytest.approx([0.2, 0.6])
    assert "rank=1" in large.reference.load


def test_best_random_architecture_without_a_module_has_a_load_line(tmp_path):
    graph = Assignment.of({"kernel": "rbf"}).to_dict()
    record = replace(architecture(GRAPHS[0]).record, graph=json.dumps(graph))
    final = stage(random_top=(TopArchitecture(record, scores=(0.9, 0.9), tests=(None, None)),))
    files: dict[str, Any] = {"task": StubTask({}), "from_dict": Assignment.from_dict, "write": write_whole}
    (comparison,), _ = compare_references(tmp_path, final, (), **files)
    names: dict[str, Any] = {}
    exec(comparison.reference.load, names)
    assert names["graph"].to_dict() == graph


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
    assert read_results(tmp_path).comparisons == ()


def test_load_line_has_weights_argument_without_weights(tmp_path):
    assert printed(tmp_path, stage())[-2].endswith('top_architectures.json", rank=0, weights=False)')
    trained = architecture(GRAPHS[0], scores=(0.5,), weights=to_pytorch_model(GRAPHS[0]).state_dict())
    lines = printed(tmp_path, FinalStage((trained,), num_seeds=1, fidelity=4))
    assert lines[-2].endswith('top_architectures.json", rank=0)')
    assert not any(line.startswith("±") for line in lines)


def write_front(folder: Path, measured: list[tuple[float, float]], choices: Sequence[Assignment] = ()) -> Front:
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
    assert front.values == ((4.0, 8.0), (3.0, 5.0), (1.0, 2.0), (1.0, 2.0))
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
    assert len(model.plan.neurons) == 2  # one hidden node and the output


def test_front_of_choices_has_yaml_with_differing_places_first(tmp_path):
    settings = [{"act": "relu", "width": 4}, {"act": "relu", "width": 8}]
    write_front(tmp_path, [(1.0, 2.0), (3.0, 5.0)], list(map(Assignment.of, settings)))
    entries = json.loads((tmp_path / FRONT_NAME).read_text())
    assert [entry["choices"] for entry in entries] == ["{width: 8, act: relu}", "{width: 4, act: relu}"]


@pytest.mark.parametrize("num", [1, 20, 47])
def test_print_front_maximum_rows(num: int) -> None:
    output = io.StringIO()
    values = [[1 - rank / 100, 10_000.0 - rank, 1.25e-5] for rank in range(num)]
    print_front(("accuracy", "parameters", "latency"), values, console=Console(file=output, width=80))
    title, _, head, _, *rows = [line.split() for line in output.getvalue().splitlines()]
    assert " ".join(title) == ("Pareto front, 20 of 47" if num == 47 else "Pareto front")
    assert head == ["rank", "accuracy", "parameters", "latency"]
    ranks = [int(row[0]) for row in rows if row]
    assert len(set(ranks)) == len(ranks) == min(num, 20)
    assert (ranks[0], ranks[-1]) == (0, num - 1)


def test_tables_escape_control_characters() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=False, width=120)
    print_best([Finalist(0, 0.5, words="\x1b[31m.svg")], console)
    print_front(["\x1b]0;x\x07", "[red]"], [[0.5, 1.0]], console=console)
    assert output.getvalue().replace("\n", "").isprintable()
    assert all(text in output.getvalue() for text in (r"\x1b[31m.svg", r"\x1b]0;x\x07", "[red]"))


BEST = side("rank 0", 0.95, 0.01)


def test_better_references_come_first():
    equal = side("best of 9 random architectures", 0.945, 0.015, num=3)
    references = [side("a line", 0.5, 0.1), equal, side("a forest", 0.99, 0.01)]
    comparisons = comparisons_of(BEST, [(each, None) for each in references])
    _, rows = comparison_rows(comparisons)
    assert [tuple(cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row) for row in rows] == [
        ("a forest", "0.950 ± 0.010", "0.990 ± 0.010", "-0.040 ± 0.015", "worse"),
        ("random search", "0.950 ± 0.010", "0.945 ± 0.015", "+0.005 ± 0.017", "not separated (at most 64)"),
        ("a line", "0.950 ± 0.010", "0.500 ± 0.100", "+0.450 ± 0.141", "better"),
    ]
    assert verdict_line(comparisons[0]) == (
        "worse: rank 0 (0.9500 ± 0.0100) against a forest (0.9900 ± 0.0100), difference -0.0400 ± 0.0153"
    )
    assert summary_of(comparisons) == "better than a line; not separated from random search; worse than a forest"
    assert summary_of([]) == ""
    assert comparisons_of(BEST, []) == ()
    unknown = comparisons_of(None, [(equal, None)])
    assert (comparison_rows(unknown)[1], summary_of(unknown)) == ([], "")
    assert (
        verdict_words(compared(BEST, Side("two trainings", 0.5, scores=(0.5, 0.5)))) == "too few seeds (2; at least 3)"
    )


@pytest.mark.parametrize(("num", "num_rows"), [(3, 1), (5, 5), (8, 5)])
def test_difference_of_two_standard_errors_is_named_with_the_promised_power(num, num_rows):
    """All of `num_rows` rows have the same one."""
    difference = 2 * math.sqrt(2 / num)
    scores = (np.arange(num) - (num - 1) / 2) / np.arange(num).std(ddof=1)
    few = [side_with(scores + mean) for mean in (0.0, difference)]
    num_needed = compared(few[0], few[1], num=num_rows).num_needed or num
    draws = np.random.default_rng(num).normal(size=(600 // num_rows, num_rows, 2, num_needed))
    draws[:, :, 1] += difference
    assert np.mean(verdicts_of(draws) == "worse") >= 0.8
    assert np.mean(verdicts_of(draws[..., :num]) == "worse") < 0.6


@pytest.mark.parametrize("num_rows", [1, 5])
@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_equal_sides_are_not_separated_in_any_row_of_95_of_a_hundred_tables(num, num_rows):
    verdicts = verdicts_of(np.random.default_rng(0).normal(size=(2_000 // num_rows, num_rows, 2, num)))
    assert np.mean(np.isin(verdicts, ["better", "worse"]).any(1)) <= 0.05
    assert (set(verdicts.ravel()) == {"too few seeds"}) == (num < 3)


def side_with(scores: np.ndarray) -> Side:
    return Side("", float(scores.mean()), scores=tuple(scores.tolist()))


def verdicts_of(draws: np.ndarray) -> np.ndarray:
    """Return the verdicts of draws [N, rows, 2, seeds], [N, rows]."""
    tables = ([tuple(map(side_with, pair)) for pair in rows] for rows in draws)
    return np.array([[compared(own, other, num=len(rows)).verdict for own, other in rows] for rows in tables])
