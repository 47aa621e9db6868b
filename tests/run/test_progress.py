"""Progress metrics with several objectives."""

import pytest

from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.store.evaluations import EvaluationStatus
from gflownet.evaluation.store.rows import failure_kind
from gflownet.run.progress import Progress
from gflownet.search.loop import SearchStep


def evaluation(*utilities: float, status: EvaluationStatus = EvaluationStatus.OK) -> Evaluation:
    return Evaluation(0.5, status, 0.1, None, 1, {}, cached=False, utilities=utilities)


def trade_offs(progress: Progress, *evaluations: Evaluation) -> tuple[float, int]:
    metrics = progress.add(SearchStep(1, evaluations))
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


def test_progress_without_front_for_one_objective():
    assert not {"hypervolume", "front_size"} & Progress().add(SearchStep(1, [evaluation()])).keys()


def test_progress_counts_new_failures_only():
    def failed(reason: str, *, cached: bool) -> Evaluation:
        return Evaluation(0.05, EvaluationStatus.FAILED, 0.1, reason, None, {}, cached=cached)

    progress = Progress()
    own, other = [failed("new", cached=False), failed("known", cached=True)], [failed("x", cached=True)]
    metrics = progress.add(SearchStep(1, own, other_evaluations=other))
    assert progress.errors == {"failed: new": 1}
    assert (metrics["failed_share"], metrics["num_distinct"]) == (1.0, 1)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        ("failed", "RuntimeError: no relu 7 here (toy_tasks.py:65)", "failed: RuntimeError (toy_tasks.py:65)"),
        ("failed", "MyTask.cost: KeyError: 'a' (mine.py:3)", "failed: KeyError (mine.py:3)"),
        ("failed", "expected a score in [0, 1e+06], got -0.25", "failed: expected a score in […, …], got …"),
        ("timeout", "expected an end within 600 s", "timeout"),
        ("crashed", "its process exited with status 7", "crashed: its process exited with status 7"),
        (
            "refused",
            "expected at most 5 parameters (b.p), got 71",
            "refused: expected at most … parameters (b.p), got …",
        ),
        ("out_of_memory", None, "out_of_memory"),
    ],
)
def test_failure_kind(status, error, kind):
    assert failure_kind(EvaluationStatus(status), error) == kind


def test_progress_reports_first_failure_of_each_kind():
    def failed(status: str, error: str, hash: str) -> Evaluation:
        return Evaluation(0.05, EvaluationStatus(status), 0.1, error, None, {}, cached=False, hash=hash)

    progress = Progress()
    two = [failed("failed", "ValueError: 1 (a.py:1)", "1" * 64), failed("failed", "ValueError: 2 (a.py:1)", "2")]
    progress.add(SearchStep(1, two))
    assert progress.new_failures == ["evaluation of 111111111111 failed: ValueError: 1 (a.py:1)"]
    progress.add(SearchStep(1, [failed("failed", "ValueError: 3 (a.py:1)", "3"), failed("timeout", "600 s", "4")]))
    assert progress.new_failures == ["evaluation of 4 exceeded its deadline: 600 s"]
    progress.add(SearchStep(1, [failed("timeout", "700 s", "5"), failed("refused", "too large", "6")]))
    assert progress.new_failures == ["evaluation of 6 was refused: too large"]
    assert progress.errors == {"failed: ValueError (a.py:1)": 3, "timeout": 2, "refused: too large": 1}
    assert progress.num_distinct == 5
