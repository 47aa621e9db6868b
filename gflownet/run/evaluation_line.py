"""The line of one evaluation on the console of a verbose run."""

from __future__ import annotations

from gflownet.errors import counted
from gflownet.evaluation.racing import RANDOM_REPEAT
from gflownet.evaluation.status import EvaluationStatus
from gflownet.evaluation.store import EvaluationRecord

_HASH_LENGTH = 11  # with its version, as in g1-


def evaluation_line(record: EvaluationRecord) -> str:
    """Return hash, status or score, seconds and size of an evaluation, and the reason of a failure."""
    result = f"score {record.score:.4f}" if record.status is EvaluationStatus.OK else str(record.status)
    size = "" if record.num_parameters is None else f", {counted(record.num_parameters, 'parameter')}"
    is_random, seed = record.seed >= RANDOM_REPEAT, record.seed % RANDOM_REPEAT
    place = (", random" if is_random else "") + (f", seed {seed}" if seed else "")
    place += f", {record.fidelity} epochs or steps" if record.fidelity else ""
    reason = "" if record.error is None else f": {' '.join(record.error.split())}"
    return f"evaluation {record.hash[:_HASH_LENGTH]}: {result} in {record.seconds:.1f} s{size}{place}{reason}"
