"""Record of new evaluations in the progress of a run."""

from __future__ import annotations

from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.status import EvaluationStatus
from gflownet.run.progress import Progress


def evaluation(name: str, *, cached: bool = False, status: EvaluationStatus = EvaluationStatus.OK) -> Evaluation:
    return Evaluation(0.5, status, 1.0, None, None, {}, cached, hash=name)


def test_progress_records_new_evaluations_with_their_proposal() -> None:
    progress = Progress(new_evaluations=[])
    progress.add([evaluation("a"), evaluation("a", cached=True)], other_evaluations=[evaluation("b")])
    refused = evaluation("c", status=EvaluationStatus.REFUSED)
    progress.add([refused, evaluation("d", status=EvaluationStatus.FAILED)])
    assert progress.new_evaluations == [("a", 0.5, 1), ("b", 0.5, 3), ("d", 0.5, 5)]
    assert (progress.num_proposals, progress.num_distinct) == (5, 3)
    other = Progress()
    other.load_state_dict(progress.state_dict())
    assert (other.new_evaluations, other.num_proposals) == (progress.new_evaluations, 5)


def test_progress_state_is_unchanged_without_record() -> None:
    progress = Progress()
    progress.add([evaluation("a")])
    assert not {"num_proposals", "new_evaluations"} & progress.state_dict().keys()
