"""Progress metrics with several objectives."""

import pytest

from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.store import EvaluationStatus
from gflownet.run.progress import Progress


def evaluation(*utilities: float, status: EvaluationStatus = EvaluationStatus.OK) -> Evaluation:
    return Evaluation(0.5, status, 0.1, None, 1, {}, cached=False, utilities=utilities)


def trade_offs(progress: Progress, *evaluations: Evaluation) -> tuple[float, int]:
    metrics = progress.add(evaluations)
    return metrics["hypervolume"], int(metrics["front_size"])


def test_progress_front_over_all_steps():
    progress = Progress()
    assert trade_offs(progress, evaluation(0.5, 0.5)) == (0.25, 1)
    assert trade_offs(progress, evaluation(0.4, 0.5), evaluation(0.5, 0.5)) == (0.25, 1)
    assert trade_offs(progress, evaluation(0.8, 0.25)) == (pytest.approx(0.25 + 0.3 * 0.25), 2)
    assert trade_offs(progress, evaluation(0.9, 0.5)) == (pytest.approx(0.45), 1)
    assert progress.front == [[0.9, 0.5]]


def test_progress_front_excludes_failures():
    progress = Progress()
    assert trade_offs(progress, evaluation(0.0, 0.0, status=EvaluationStatus.FAILED)) == (0.0, 0)
    assert trade_offs(progress, evaluation(0.5, 0.5), evaluation(0.0, 0.0, status=EvaluationStatus.FAILED)) == (0.25, 1)


def test_progress_front_after_resume():
    first, again = Progress(), Progress()
    trade_offs(first, evaluation(0.5, 0.5), evaluation(0.8, 0.25))
    again.load_state_dict(first.state_dict())
    assert trade_offs(again, evaluation(0.1, 0.1)) == trade_offs(first, evaluation(0.1, 0.1))
    assert again.front == first.front


def test_progress_without_front_for_one_objective():
    assert not {"hypervolume", "front_size"} & Progress().add([evaluation()]).keys()


def test_progress_counts_new_failures_only():
    def failed(reason: str, *, cached: bool) -> Evaluation:
        return Evaluation(0.05, EvaluationStatus.FAILED, 0.1, reason, None, {}, cached=cached)

    progress = Progress()
    metrics = progress.add(
        [failed("new", cached=False), failed("known", cached=True)], other_evaluations=[failed("x", cached=True)]
    )
    assert progress.errors == {"new": 1}
    assert (metrics["failed_share"], metrics["num_distinct"]) == (1.0, 1)
