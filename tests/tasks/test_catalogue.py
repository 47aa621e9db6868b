"""Recorded trainings of listed graphs: scores by hand, fidelity, repeats, failures, caps and training seconds."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gflownet.config import load_config, with_task_options
from gflownet.errors import UserError
from gflownet.evaluation.task import TRAINING_SECONDS
from gflownet.graphs.canonical import ColouredGraph
from gflownet.graphs.listed_graphs import Graph, read_listed_graphs
from tasks.catalogue import CatalogueEnv, CatalogueTask, CatalogueTaskConfig
from tests.benchmark_tables import real_table, recipes, write_lines

NUM_EPOCHS = 9


def make_task(path: Path, *overrides: str) -> CatalogueTask:
    config = load_config("catalogue", [f"env.catalogue.graphs={path}", *overrides])
    return CatalogueTask(with_task_options(config, CatalogueTaskConfig))


@pytest.fixture
def make(tmp_path) -> Callable[..., tuple[CatalogueTask, list[Graph]]]:
    """Return the task of a list, and the graph of every line."""

    def build(lines: list[Any], *overrides: str) -> tuple[CatalogueTask, list[Graph]]:
        path = write_lines(tmp_path / "list.jsonl", lines)
        listed = read_listed_graphs(str(path), key="list") if all(isinstance(line, dict) for line in lines) else []
        return make_task(path, *overrides), [each.graph for each in listed]

    return build


def perplexity_score(loss: float) -> float:
    return 1 / (1 + math.exp(loss) / 100)


def line(value: Any, colour: str = "a", **fields: Any) -> dict[str, Any]:
    return {"graph": ColouredGraph((colour,), {}).to_dict(), "score": value, **fields}


SCORES = ("task_options.column=score", "task_options.kind=score", "task_options.test_column=''")
SCORES += ("task_options.parameters_column=''", "task_options.seconds_column=''")


def test_score_is_that_of_the_best_epoch(make):
    """The third recipe has its best validation loss in epoch 4, where its test loss is 3.7."""
    lines = recipes()
    lines[2]["val_loss"][3] = 2.5
    task, graphs = make(lines, "task_options.max={num_params: 1005}")
    score = task.evaluate(graphs[2], seed=0)
    assert score.value == pytest.approx(perplexity_score(2.5))
    assert score.metrics["perplexity"] == pytest.approx(math.exp(2.5))
    assert score.num_parameters == 1002
    assert task.test(graphs[2], seed=0) == pytest.approx(perplexity_score(4 + 0.2 - 0.3 - 0.5))
    assert task.max_fidelity == NUM_EPOCHS
    assert task.evaluate(graphs[3], seed=0).metrics[TRAINING_SECONDS] == 9 * 13
    (part,) = task.train_many(graphs[3:4], seeds=[0], fidelity=5, schedule=9, states=[{"fidelity": 2}])
    assert not isinstance(part, Exception)
    assert part.score().metrics[TRAINING_SECONDS] == 3 * 13
    assert task.refusal(graphs[5]) is None
    assert task.refusal(graphs[6]) == "expected at most 1005 of num_params (task_options.max), got 1006"


def test_curves_are_the_best_so_far_at_every_fidelity(make):
    lines = recipes()
    lines[0]["val_loss"][:4] = [3.0, 3.5, 2.0, 2.5]
    task, graphs = make(lines)
    (training,) = task.train_many(graphs[:1], seeds=[0], fidelity=4, schedule=9, states=[None])
    assert not isinstance(training, Exception)
    assert training.curve == pytest.approx([perplexity_score(loss) for loss in (3.0, 3.0, 2.0, 2.0)])
    assert training.score().value == training.curve[-1]
    assert training.state_dict() == {"fidelity": 4, "model": {}}


def test_scores_and_costs_are_read_as_they_are(make):
    task, graphs = make([line(0.25, test=0.5)], *SCORES, "task_options.test_column=test")
    assert (task.evaluate(graphs[0], seed=0).value, task.test(graphs[0], seed=0)) == (0.25, 0.5)
    assert task.max_fidelity == 0
    task, graphs = make([line([3.0, 1.0, 2.0])], *SCORES, "task_options.kind=cost", "task_options.target=3")
    assert task.evaluate(graphs[0], seed=0).value == 0.75


def test_repeated_graphs_have_the_mean_of_their_successful_runs(make):
    lines = [line([0.2, 0.4]), line([0.4, 0.8]), line([0.9, 0.9], status="loss is nan!")]
    task, graphs = make(lines, *SCORES)
    assert task.evaluate(graphs[0], seed=0).value == pytest.approx(0.6)


def test_failed_training_fails_after_its_last_epoch(make):
    lines = recipes()
    lines[1] |= {"status": "loss is nan!", "val_loss": [4.0, 3.0, None], "test_loss": [4.0, 3.5, None]}
    task, graphs = make(lines)
    with pytest.raises(ValueError, match=r"the recorded training failed after 2 epochs: loss is nan!"):
        task.evaluate(graphs[1], seed=0)
    states: dict[str, Any] = {"seeds": [0], "schedule": 9, "states": [None]}
    (early,) = task.train_many(graphs[1:2], fidelity=2, **states)
    (late,) = task.train_many(graphs[1:2], fidelity=3, **states)
    assert not isinstance(early, Exception)
    assert isinstance(late, ValueError)
    assert early.score().value == pytest.approx(perplexity_score(3.0))


@pytest.mark.parametrize("value", [0.9, [0.7, 0.9]])
def test_failed_training_with_all_epochs_fails(value, make):
    short = [0.5] if isinstance(value, float) else [0.5, 0.5]
    task, graphs = make([line(short), line(value, "b", status="out of memory")], *SCORES)
    with pytest.raises(ValueError, match=rf"the recorded training failed after {len(short)} epochs: out of memory"):
        task.evaluate(graphs[1], seed=0)
    assert task.evaluate(graphs[0], seed=0).value == 0.5


def test_fields_are_objectives_with_targets(make):
    """The default target of the latency is its median 4."""
    lines = [line(0.5, "a", latency=2, size=10), line(0.6, "b", latency=4, size=30), line(0.7, "c", latency=8)]
    options = ("evaluation.objectives=[score,latency,size]", "task_options.targets={size: 30}")
    task, graphs = make(lines, *SCORES, *options)
    score = task.evaluate(graphs[0], seed=0)
    assert score.metrics == {"score": 0.5, "latency": 2, "size": 10}
    assert task.utilities(score) == pytest.approx((0.5, 4 / 6, 30 / 40))
    assert task.refusal(graphs[1]) is None
    assert task.refusal(graphs[2]) == "expected a value of size (evaluation.objectives), got none"


@pytest.mark.parametrize(
    ("lines", "overrides", "message"),
    [
        ([line(0.5), line("high", "b")], (), r"column: .*list\.jsonl, line 2, score: expected finite .*, got 'high'"),
        ([line(0.5), line([0.5, None], "b")], (), r"line 2, score: expected finite numbers, got None"),
        ([line(0.5), line([], "b")], (), r"line 2: expected numbers in score, got none"),
        ([line(0.5), line(10**400, "b")], (), r"line 2, score: expected finite numbers, got 1000000000\.\.\.$"),
        ([line(None, status="nan")], (), r"status_column: expected a successful training in .*, got only failed ones"),
        ([line(-0.5)], (), r"expected numbers >= 0 and at most 1e\+06 in .*, got -0\.5 to -0\.5"),
        ([line([0.1, 0.2]), line([0.1], "b")], (), r"expected 2 epochs in score of every successful line of .*, got 1"),
        ([line(0.5)], ("column=acc",), r"column: .*, line 1: expected one of graph, score, got 'acc'"),
        ([line(0.5)], ("test_column=test",), r"test_column: .*line 1: expected 1 numbers in test, got 0"),
        ([line(0.5)], ("seconds_column=s",), r"seconds_column: .*line 1: expected a positive number in s, got None"),
        ([line(0.5, s=0)], ("seconds_column=s",), r"seconds_column: .*line 1: expected a positive number in s, got 0"),
        ([line(0.5)], ("parameters_column=p",), r"parameters_column: expected one of score in .*, got 'p'"),
        ([line(0.5)], ("max={p: 1}",), r"max: expected one of score in .*, got 'p'"),
        ([line(0.5)], ("targets={p: 1}",), r"targets: expected one of score in .*, got 'p'"),
    ],
)
def test_results_that_do_not_fit_raise_one_line(lines, overrides, message, make):
    with pytest.raises(UserError, match=rf"^task_options\..*{message}") as error:
        make(lines, *SCORES, *(f"task_options.{each}" for each in overrides))
    assert "\n" not in str(error.value)


def test_real_cells_are_read():
    """291 recipes are 265 graphs; the LSTM has the best validation perplexity 96.31, and 91.48 on test data."""
    task = make_task(real_table("nb_nlp_wikitext2.jsonl.gz"))
    listed = read_listed_graphs(task.config.env.catalogue.graphs, key="list")
    env = CatalogueEnv([each.graph for each in listed])
    sizes: dict[str, set[int]] = {}
    for each in listed:
        sizes.setdefault(each.graph.canonical_key(), set()).add(each.fields["num_params"])
    assert len(env.graphs) == len(task.curves) == 265
    assert all(len(each) == 1 for each in sizes.values())  # isomorphic recipes have equal sizes
    curves = {key: curve for key, curve in task.curves.items() if curve.error is None}
    assert len(curves) == 263
    best = min(curves, key=lambda key: min(curves[key].values))
    (lstm,) = {each.graph.canonical_key() for each in listed if each.fields["recipe_id"] == 1_000_001}
    assert best == lstm
    graph = next(each.graph for each in listed if each.graph.canonical_key() == lstm)
    assert task.evaluate(graph, seed=0).value == pytest.approx(1 / (1 + 0.9631), abs=1e-4)
    assert task.test(graph, seed=0) == pytest.approx(1 / (1 + 0.9148), abs=1e-4)
