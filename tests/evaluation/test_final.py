"""The final stage on stub candidates: seeds, ranking, resume, stop, failures, references."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from gflownet.errors import UserError
from gflownet.evaluation.config import EvaluationConfig, FinalConfig
from gflownet.evaluation.dispatcher import Dispatcher, EvaluationStoppedError
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.final import (
    FinalTrainings,
    NoStore,
    TopArchitecture,
    check_final,
    has_final_stage,
    ranked,
    with_test_scores,
)
from gflownet.evaluation.randomness import candidate_seed
from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.task import CandidateTraining, Reference, Score
from tests.evaluation.candidates import StubCandidate, StubTask, dispatcher_of, record

SEED = 3


class NoisyTask(StubTask):
    """Scores a base value plus noise of the seed; the test score is half of it."""

    def evaluate(self, graph: StubCandidate, *, seed: int) -> Score:
        value = super().evaluate(graph, seed=seed).value
        return Score(value + seed % 100 / 10_000, num_parameters=7)

    def test(self, graph: StubCandidate, *, seed: int) -> float | None:
        return (self.outcomes[graph.key] + seed % 100 / 10_000) / 2

    def reference(self, *, seeds: Sequence[int]) -> Reference | None:
        return Reference("a standard method", [0.5 for _ in seeds], [0.25 for _ in seeds], 11)


class StubTraining(CandidateTraining):
    def __init__(self, task: NoisyTask, graph: StubCandidate, *, seed: int, fidelity: int) -> None:
        self.fidelity, self.curve, self.model = fidelity, (), nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.model.weight, seed % 1_000)
        self._score = task.evaluate(graph, seed=seed)
        self._test = task.test(graph, seed=seed)

    def score(self) -> Score:
        return self._score

    def test(self) -> float | None:
        return self._test

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}


class TrainedTask(NoisyTask):
    """The same scores from trainings of 4 epochs."""

    max_fidelity = 4

    def train_many(self, graphs, *, seeds, fidelity, schedule, states) -> Iterator[CandidateTraining | Exception]:
        for graph, seed in zip(graphs, seeds, strict=True):
            try:
                yield StubTraining(self, graph, seed=seed, fidelity=fidelity)
            except Exception as error:
                yield error


def candidate_of(data: dict[str, Any]) -> StubCandidate:
    return StubCandidate(data["nodes"][0])


def row(key: str, **fields: Any):
    return record(key, graph=f'{{"nodes": ["{key}"]}}', num_parameters=7, **fields)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EvaluationStore]:
    with EvaluationStore(tmp_path / "store.sqlite") as store:
        yield store


def trainings(
    task: StubTask, store: EvaluationStore, *, stopped: Callable[[], bool] = lambda: False, **options: Any
) -> FinalTrainings:
    def build(store: Any) -> Dispatcher:
        return dispatcher_of(task, store, seed=SEED, stopped=stopped)

    parts: dict[str, Any] = {"build_dispatcher": build, "from_dict": candidate_of, "report_line": lambda _: None}
    return FinalTrainings(store, config=FinalConfig(**options), step=9, **parts)


def expected_scores(key: str, base: float, num: int) -> list[float]:
    seeds = [candidate_seed(SEED, StubCandidate(key).canonical_hash(), k) for k in range(1, num + 1)]
    return [base + seed % 100 / 10_000 for seed in seeds]


@pytest.mark.parametrize("kind", [NoisyTask, TrainedTask])
def test_final_stage_ranks_by_mean_of_new_seeds(store, kind):
    task = kind({"lucky": 0.6, "good": 0.8, "random": 0.3, "worse": 0.2})
    rows = [row("lucky", score=0.9), row("good", score=0.85)]
    store.add(rows)
    others = [StubCandidate("worse"), StubCandidate("random")]
    final = trainings(task, store, num_seeds=3).run(rows, random_candidates=others)
    assert [each.record.key for each in final.top] == ["good", "lucky"]
    assert list(final.top[0].scores) == pytest.approx(expected_scores("good", 0.8, 3))
    assert final.top[0].tests == pytest.approx([score / 2 for score in final.top[0].scores])
    assert final.best_random is not None
    assert list(final.best_random.scores) == pytest.approx(expected_scores("random", 0.3, 3))
    assert final.num_random == 2
    assert final.is_complete
    assert final.references == (Reference("a standard method", [0.5] * 3, [0.25] * 3, 11),)
    assert [each.key for each in store.top(10)] == ["lucky", "good"]  # new seeds are no rows of the search
    if kind is TrainedTask:
        seed = candidate_seed(SEED, StubCandidate("good").canonical_hash(), 1)
        assert cast(Any, final.top[0].weights)["weight"] == torch.tensor([[float(seed % 1_000)]])
        assert final.best_random.weights is None


def test_final_stage_resumes_from_store(store):
    rows = [row("a", score=0.9), row("b", score=0.85)]
    outcomes = {"a": 0.6, "b": 0.8, "c": 0.1}
    first = trainings(TrainedTask(outcomes), store, num_seeds=3).run(rows, random_candidates=[StubCandidate("c")])
    task = TrainedTask(outcomes)
    second = trainings(task, store, num_seeds=3).run(rows, random_candidates=[StubCandidate("c")])
    assert second == first
    # Only the weights of the first new seeds are trained again.
    assert sorted(key for key, _ in task.calls) == ["a", "b"]
    more = TrainedTask(outcomes)
    trainings(more, store, num_seeds=4).run(rows, random_candidates=[StubCandidate("c")])
    assert sorted(key for key, _ in more.calls) == ["a", "a", "b", "b", "c"]


def test_weights_with_another_score_are_not_saved(store):
    rows = [row("a", score=0.9)]
    trainings(TrainedTask({"a": 0.6}), store, num_seeds=2).run(rows)
    final = trainings(TrainedTask({"a": 0.7}), store, num_seeds=2).run(rows)
    assert final.top[0].weights is None
    assert list(final.top[0].scores) == pytest.approx(expected_scores("a", 0.6, 2))
    (note,) = final.notes
    assert note.startswith("weights not saved: expected the stored score 0.6")


def test_stopped_final_stage_keeps_finished_trainings(store):
    """Stop after the first job, the first new seed of each architecture."""
    rows = [row("a", score=0.9), row("b", score=0.85), row("c", score=0.8)]
    task = TrainedTask({"a": 0.6, "b": 0.7, "c": 0.5, "d": 0.1})
    stage = trainings(task, store, num_seeds=4, stopped=lambda: len(task.calls) >= 3)
    final = stage.run(rows, random_candidates=[StubCandidate("d")])
    assert [(each.record.key, len(each.scores)) for each in final.top] == [("b", 1), ("a", 1), ("c", 1)]
    assert all(each.weights is not None for each in final.top)
    assert not final.is_complete
    assert (final.best_random, final.num_random, final.references) == (None, 0, ())
    resumed = TrainedTask(task.outcomes)
    complete = trainings(resumed, store, num_seeds=4).run(rows, random_candidates=[StubCandidate("d")])
    assert complete.is_complete
    assert len(resumed.calls) == 3 * 3 + 1 + 4 + 3  # new seeds, the random one and its new seeds, the weights


def test_failed_trainings_count_as_floor_score(store):
    rows = [row("a", score=0.9), row("b", score=0.85)]
    final = trainings(NoisyTask({"a": RuntimeError("no"), "b": 0.3}), store, num_seeds=2).run(rows)
    assert [each.record.key for each in final.top] == ["b", "a"]
    assert final.top[1].scores == (EvaluationConfig().floor_score,) * 2
    assert [error.partition(" (")[0] for error in final.top[1].errors] == ["RuntimeError: no"] * 2
    task = NoisyTask({"b": 0.3, "c": RuntimeError("no")})
    failed_random = trainings(task, store, num_seeds=2).run(rows[1:], random_candidates=[StubCandidate("c")])
    assert failed_random.best_random is None
    assert failed_random.num_random == 1


def test_failing_reference_is_a_note(store):
    class NoReference(NoisyTask):
        def reference(self, *, seeds):
            raise RuntimeError("no data")

    final = trainings(NoReference({"a": 0.5}), store, num_seeds=1).run([row("a")])
    assert final.references == ()
    (note,) = final.notes
    assert note.startswith("no reference: RuntimeError: no data")


def test_equal_means_rank_smaller_model_first():
    def architecture(key: str, scores: tuple[float, ...], size: int | None) -> TopArchitecture:
        return TopArchitecture(record(key, score=0.9, num_parameters=size), scores=scores)

    top = [
        architecture("unknown", (0.1, 0.2, 0.3), None),
        architecture("large", (0.2, 0.2, 0.2), 9),  # 0.20000000000000004 by rounding
        architecture("small", (0.2, 0.1, 0.3), 3),
        architecture("best", (0.5,), 99),
        architecture("no new seed", (), 1),
    ]
    assert [each.record.key for each in ranked(top)] == ["best", "small", "large", "unknown", "no new seed"]


def test_final_epochs_set_fidelity(store):
    fidelities = []

    class Records(TrainedTask):
        def train_many(self, graphs, *, fidelity, schedule, **arguments):
            fidelities.append((fidelity, schedule))
            return super().train_many(graphs, fidelity=fidelity, schedule=schedule, **arguments)

    task = Records({"a": 0.5})
    final = trainings(task, store, num_seeds=2, epochs=9).run([row("a")])
    assert final.fidelity == 9
    assert set(fidelities) == {(9, 9)}
    check_final(FinalConfig(epochs=9), task)
    with pytest.raises(UserError, match=r"final\.epochs: expected null with NoisyTask, whose evaluations have no"):
        check_final(FinalConfig(epochs=9), NoisyTask({}))


def test_cheap_tasks_have_no_final_stage():
    class CheapTask(StubTask):
        is_cheap = True

    assert has_final_stage(FinalConfig(), StubTask({}))
    assert not has_final_stage(FinalConfig(), CheapTask({}))
    assert not has_final_stage(FinalConfig(top=0), StubTask({}))


@pytest.mark.parametrize("kind", [NoisyTask, TrainedTask])
def test_with_test_scores_uses_seed_of_search(kind):
    task = kind({"a": 0.5, "b": RuntimeError("no")})
    dispatcher = dispatcher_of(task, NoStore(), seed=SEED)
    first, second = with_test_scores([row("a"), row("b")], dispatcher=dispatcher, from_dict=candidate_of, step=9)
    seed = candidate_seed(SEED, StubCandidate("a").canonical_hash())
    assert first.tests == pytest.approx([(0.5 + seed % 100 / 10_000) / 2])
    assert first.scores == ()
    assert second.test is None
    assert "RuntimeError: no" in str(second.test_error)


def test_with_test_scores_of_failing_executor():
    class Broken(InlineExecutor):
        def wait(self, handles, *, timeout):
            raise OSError("no processes")

    task = NoisyTask({"a": 0.5})
    dispatcher = dispatcher_of(task, NoStore(), Broken(task), seed=SEED)
    (architecture,) = with_test_scores([row("a")], dispatcher=dispatcher, from_dict=candidate_of, step=9)
    assert str(architecture.test_error).startswith("OSError: no processes")
    stopped = dispatcher_of(task, NoStore(), seed=SEED, stopped=lambda: True)
    with pytest.raises(EvaluationStoppedError):
        with_test_scores([row("a")], dispatcher=stopped, from_dict=candidate_of, step=9)


def test_with_test_scores_without_test_data():
    task = StubTask({"a": 0.5})
    dispatcher = dispatcher_of(task, NoStore(), seed=SEED)
    (architecture,) = with_test_scores([row("a")], dispatcher=dispatcher, from_dict=candidate_of, step=9)
    assert architecture.test is None
    assert task.calls == []
