"""Final stage of real runs: saved weights, report, stop and resume, honest intervals."""

import json
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import gflownet
from gflownet.config import load_config
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.final import Sizes, TopArchitecture
from gflownet.evaluation.store.evaluations import EvaluationRecord
from gflownet.graphs.assignment import Assignment
from gflownet.report.page import advice, read_run
from gflownet.report.results import read_results
from gflownet.report.verdict import side_words, spent_on
from gflownet.rhn.checkpoint import description_of
from gflownet.rhn.network import RecurrentStack
from gflownet.run.final_stage import FinalTrainingsStage, _races, best_tested, sizes_of
from gflownet.train import main
from tasks.digits import DigitsTask
from tasks.images import ImagesTask
from tasks.language import LanguageTask
from tests.evaluation.candidates import StubCandidate, StubTask, config_with, dispatcher_of, record
from tests.small_run import run
from tests.tiny_run import TINY_RUN, TINY_TASKS


def entries_of(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "top_architectures.json").read_text())


@pytest.mark.parametrize(("is_cheap", "isolates"), [(True, True), (False, False)])
def test_stopped_run_tests_nothing_that_takes_time(is_cheap, isolates):
    """After a stop request, neither other processes nor trainings measure test scores."""
    parts: Any = SimpleNamespace(task=SimpleNamespace(is_cheap=is_cheap), env=None, build_evaluator=None)
    stopped: Any = SimpleNamespace(is_stopped=True)
    executor, record = cast(Executor, SimpleNamespace(isolates=isolates)), cast(EvaluationRecord, object())
    assert best_tested(parts, [record], executor, stopped) == (TopArchitecture(record),)


class HasTest(StubTask):
    def test(self, graph: Any, *, seed: int) -> float:
        return 0.4


@pytest.mark.parametrize("kind", [StubTask, HasTest])
def test_evaluations_for_test_scores_are_announced(kind):
    """A task without a test scores nothing again."""
    task, lines, graphs = kind({"a": 0.5}), list[str](), {"nodes": ["a"]}
    terminal_type = SimpleNamespace(from_dict=lambda data: StubCandidate(data["nodes"][0]))

    def build_evaluator(store: Any, executor: Executor, *, stopped: Any) -> Any:
        return dispatcher_of(task, store, executor, stopped=stopped)

    env = SimpleNamespace(terminal_type=terminal_type)
    parts: Any = SimpleNamespace(task=task, env=env, step=3, build_evaluator=build_evaluator)
    running: Any = SimpleNamespace(is_stopped=False, logger=SimpleNamespace(print=lines.append))
    (top,) = best_tested(parts, [record("a", graph=json.dumps(graphs))], InlineExecutor(task), running)
    expected = "test scores: 1 more evaluation with the seed of the search, because the run has no final stage"
    assert (lines, top.test) == (([expected], 0.4) if kind is HasTest else ([], None))
    assert len(task.calls) == (kind is HasTest)


@pytest.mark.cpu_seconds(5)
def test_saved_models_have_the_reported_scores(copied_run, capsys):
    folder = copied_run("digits")
    task, entries = DigitsTask(load_config(str(folder / "config.yaml"))), entries_of(folder)
    for entry in entries[:3]:
        model = gflownet.load(folder / "top_architectures.json", rank=entry["rank"])
        assert task.test_score(model) == entry["final"]["test_scores"][0]
        untrained = gflownet.load(folder / "top_architectures.json", rank=entry["rank"], weights=False)
        assert task.test_score(untrained) < entry["final"]["test_scores"][0]
    means = [round(entry["final"]["mean"], 12) for entry in entries]
    posteriors = [round(entry["final"]["posterior_mean"], 12) for entry in entries]
    assert posteriors == sorted(posteriors, reverse=True)
    assert main([f"log_dir={folder}", "resume=true"]) == 0  # prints the report again
    shown = capsys.readouterr().out
    results = read_results(folder).final
    assert results is not None
    assert results.finalists[0].final is not None
    assert results.finalists[0].final.mean == pytest.approx(means[0])
    assert side_words(results.finalists[0].final) in shown
    references = [each.reference for each in read_results(folder).comparisons]
    spent = spent_on(read_run(folder).evaluations)
    random = "best of 2 random architectures, 75% of them even over sizes,"
    num = spent["search"].num + spent["final stage"].num
    assert [each.name for each in references] == [
        "scikit-learn MLPClassifier",
        f"{random} in {spent['random reference'].num} trainings; the run had {num}",
    ]
    assert num == 10
    first, _, second = shown.split("mean score of sampled")[0].rpartition("random search: ")
    assert "scikit-learn MLPClassifier" in first, "the comparison comes first"
    assert second.startswith("best of 2 random architectures")
    next_step = advice(read_run(folder))
    assert next_step
    assert "\n".join(next_step) in shown
    random = gflownet.load(folder / "random_architecture.json")
    (entry,) = json.loads((folder / "random_architecture.json").read_text())
    assert task.test_score(random) == entry["final"]["test_scores"][0]
    assert 0.95 < (references[0].test_score or 0) < 1
    assert f'gflownet.load("{folder / "top_architectures.json"}", rank=0)' in shown


@pytest.mark.slow
def test_saved_convolutions_have_the_reported_score(finished_runs):
    folder = finished_runs("images")
    task, (best, *_) = ImagesTask(load_config(str(folder / "config.yaml"))), entries_of(folder)
    model = gflownet.load(folder / "top_architectures.json", rank=0)
    assert task.test_score(model) == best["final"]["test_scores"][0]


def test_run_saves_weights_of_recurrent_stacks(tmp_path, capsys):
    folder = tmp_path / "run"
    options = [
        *TINY_RUN,
        *TINY_TASKS["language"],
        "task_options.num_parameters=10000",
        "budget.evaluations=4",
        "final.top=1",
        "final.num_random=0",
        "search.train_sampler=false",
    ]
    assert main(["--config", "language", *options, "task_options.budget=steps", f"log_dir={folder}"]) == 0
    (entry,) = entries_of(folder)
    task = LanguageTask(load_config(str(folder / "config.yaml")))
    model = gflownet.load(folder)
    assert isinstance(model, RecurrentStack)
    assert not model.training
    assert entry["language_model"] == json.loads(json.dumps(description_of(model.config)))
    candidate = Assignment.from_dict(entry["graph"])
    assert model.config == task.config_of(candidate)
    assert entry["words"] == task.words(candidate)
    assert task.score_of(model, num_steps=1).value == pytest.approx(entry["final"]["scores"][0], rel=1e-6)
    tensors = load_file(folder / entry["weights"]["file"])
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    untrained = gflownet.load(folder / "top_architectures.json", rank=0, weights=False)
    assert untrained.training
    assert not torch.equal(untrained.state_dict()["embedding"], tensors["embedding"])
    shown = capsys.readouterr().out
    assert f"weights: {folder / 'architectures'}" in shown
    assert f'gflownet.load("{folder / "top_architectures.json"}", rank=0)' in shown
    assert f"python -m gflownet.language TEXT --from {folder} rank=0" in shown
    assert entry["words"].split(" > ")[0] in shown
    assert "hidden" not in shown
    with pytest.raises(ValueError, match=r"config: expected none for choices, got .*projection"):
        gflownet.load(folder, config={"projection": "auto"}, weights=False)


def test_final_epochs_without_epochs_raise(tmp_path, capsys):
    assert run(tmp_path / "run", "final.epochs=3") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: final.epochs: expected null with RewardsHiddenNodes, ")
    assert error.count("\n") == 1
    assert not (tmp_path / "run" / "run.json").exists()


def test_cheap_task_reports_the_search(tmp_path, capsys):
    assert main(["--config", "hypergrid", *TINY_RUN, f"log_dir={tmp_path / 'run'}"]) == 0
    assert "new seed" not in capsys.readouterr().out
    assert not any("final" in entry for entry in entries_of(tmp_path / "run"))


class SizedTask(StubTask):
    """Two objectives, the score and a cost."""

    objectives = ("validation_accuracy", "parameters")
    score_name = "validation_accuracy"
    costs = MappingProxyType({"parameters": 100.0})


def sized_parts(*options: str) -> Any:
    config = config_with("evaluation.objectives=[validation_accuracy,parameters]", *options)
    setup = SimpleNamespace(estimates=lambda values, metrics: values)
    search = SimpleNamespace(method=SimpleNamespace(setup=setup))
    return SimpleNamespace(task=SizedTask({}, config), config=config, search=search)


def sized_row(key: int, score: float, size: float) -> EvaluationRecord:
    return record(str(key), score=float(score), metrics={"validation_accuracy": score, "parameters": size})


def test_finalists_of_each_range_of_sizes_are_on_its_front():
    parts, rng = sized_parts("final.top=2", "final.caps=[100,200,400]"), np.random.default_rng(0)
    rows = [sized_row(i, *pair) for i, pair in enumerate(zip(rng.random(60), rng.integers(20, 600, 60), strict=True))]
    sizes = sizes_of(parts, rows)
    assert sizes == Sizes("parameters", (100, 200, 400))
    races = _races(parts, rows, 10, sizes=sizes, before=[rows[0]])
    assert [race.num_trainings for race in races] == [3, 3, 4]
    few = _races(parts, rows, 1, sizes=sizes, before=())
    assert [race.records[0].metrics["parameters"] > 200 for race in few] == [True], "the range of the best scores"
    assert [race.num_before for race in races] == [0, 0, 1], "the range of the row that was trained before"
    for race, (low, high) in zip(races, pairwise((0, 100, 200, 400)), strict=True):
        group = [row for row in rows if low < row.metrics["parameters"] <= high]
        best, *others = race.records
        assert best == max(group, key=lambda row: row.score)
        for other in others:
            assert not any(
                row.score >= other.score and row.metrics["parameters"] < other.metrics["parameters"] for row in group
            )


def test_caps_are_shares_of_the_largest_size():
    rows = [sized_row(0, 0.5, 7303), sized_row(1, 0.5, 20)]
    sizes = sizes_of(sized_parts(), rows)
    assert sizes is not None
    assert sizes.caps == (920, 1900, 3700, 7400)
    assert sizes_of(sized_parts("final.caps=[10]"), rows) is None, "every row is larger"
    one_score: Any = SimpleNamespace(task=StubTask({}), config=config_with())
    assert sizes_of(one_score, rows) is None
    of_others = sizes_of(sized_parts("final.caps=[8000,9000]"), rows)
    assert of_others is not None
    assert of_others.caps == sizes.caps, "no row is above the first"
    repeated = sizes_of(sized_parts("final.caps=[50,40,50.0]"), rows)
    assert repeated is not None
    assert repeated.caps == (40, 50)


@pytest.mark.parametrize("largest", [1.5e-05, 2e-05, 0.29, 12.0000000001, 7300])
def test_largest_cap_is_not_below_the_largest_size(largest: float):
    sizes = sizes_of(sized_parts(), [sized_row(0, 0.5, largest)])
    assert sizes is not None
    assert largest <= sizes.caps[-1] <= 1.1 * largest


def test_range_without_networks_of_the_run_has_a_race_of_random_ones():
    parts = sized_parts("final.top=2")
    sizes = Sizes("parameters", (100, 200))
    random = [sized_row(1, 0.5, 150), sized_row(2, 0.4, 180), sized_row(3, 0.9, 900)]
    (race,) = _races(parts, random, 4, sizes=sizes, before=random)
    assert [row.metrics["parameters"] for row in race.records] == [150]
    assert (race.num_trainings, race.num_before) == (4, 2)
    assert _races(parts, random[2:], 4, sizes=sizes, before=()) == []


@pytest.mark.parametrize(
    ("isolates", "seconds", "num_final", "begins"),
    [(True, 0, 3, 1), (False, 0, 3, 0), (True, 9, 3, 0), (True, 0, 0, 0)],
)
def test_random_architectures_begin_early_in_other_processes_without_a_limit_of_time(
    isolates, seconds, num_final, begins, monkeypatch
):
    calls = list[Any]()
    monkeypatch.setattr(FinalTrainingsStage, "begin", lambda self, run: calls.append(run))
    plan = SimpleNamespace(num_final=num_final, seconds=seconds)
    evaluator = SimpleNamespace(executor=SimpleNamespace(isolates=isolates))
    FinalTrainingsStage(cast(Any, SimpleNamespace(plan=plan)), cast(Any, evaluator)).begin_early(cast(Any, None))
    assert len(calls) == begins
