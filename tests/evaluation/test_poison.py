"""Candidates that damage their process, through the dispatcher, the pool and the store."""

from __future__ import annotations

from collections import Counter

import psutil
import pytest

from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.job import EvaluationStatus
from gflownet.evaluation.store import EvaluationStore
from tests.evaluation.candidates import StubCandidate, config_with
from tests.evaluation.conftest import OPTIONS
from tests.evaluation.poison_tasks import PoisonTask

OK, FAILED, CRASHED = EvaluationStatus.OK, EvaluationStatus.FAILED, EvaluationStatus.CRASHED
TIMEOUT, OUT_OF_MEMORY = EvaluationStatus.TIMEOUT, EvaluationStatus.OUT_OF_MEMORY
CONFIG = config_with(*OPTIONS).evaluation


@pytest.mark.parametrize(
    ("poison", "status", "error"),
    [
        ("exit_process", CRASHED, "its process exited with status 3; it printed last: last words"),
        ("segfault", CRASHED, "its process was killed by SIGSEGV; it printed last: "),
        ("abort", CRASHED, "its process was killed by SIGABRT"),
        ("kill", CRASHED, "its process was killed by SIGKILL"),
        ("exit", CRASHED, "SystemExit: "),
        ("raise_base", CRASHED, "UnknownBaseError: not an Exception (poison_tasks.py:"),
        ("interrupt", CRASHED, "KeyboardInterrupt: "),
        ("spin", TIMEOUT, "expected a result within 1.5 s"),
        ("allocate", OUT_OF_MEMORY, "RuntimeError: "),
        ("allocate_in_numpy", OUT_OF_MEMORY, "MemoryError: "),
        ("fork", OK, None),
        ("fork_and_segfault", CRASHED, "its process was killed by SIGSEGV"),
        ("start_program", OK, None),
        ("print_much", OK, None),
        ("set_default_dtype", OK, None),
        ("change_everything", OK, None),
        ("leak_files", OK, None),
        ("leak_thread", OK, None),
        ("close_all_files", CRASHED, "its process "),
        ("raise_broken_text", FAILED, "BrokenTextError: its text raised RuntimeError"),
        ("raise_huge_text", FAILED, "ValueError: xxxx"),
        ("raise_surrogate", FAILED, "ValueError: ? no text"),
    ],
)
def test_poison_affects_only_its_row(tmp_path, evaluation_log, poison_pool, poison, status, error):
    evaluation_log.write_text("")
    names = [f"good {number}" for number in range(15)]
    candidates = [StubCandidate(name) for name in (*names[:5], poison, *names[5:])]
    before = descendants()
    with EvaluationStore(tmp_path / "evaluations.sqlite") as store:
        dispatcher = Dispatcher(PoisonTask(evaluation_log), store, poison_pool, config=CONFIG, seed=1)
        evaluations = dispatcher.evaluate(candidates, step=1)
        rows = [store.find(candidate) for candidate in candidates]
        again = dispatcher.evaluate(candidates, step=2)
    evaluation = evaluations.pop(5)
    assert (evaluation.status, (evaluation.error or "")[: len(error or "")]) == (status, error or "")
    assert len(evaluation.error or "") <= 4096
    assert {each.status for each in evaluations} == {OK}
    assert len({tuple(sorted((dict(each.metrics) | {"noise": 0}).items())) for each in evaluations}) == 1
    assert [row.status for row in rows if row is not None] == [OK] * 5 + [status] + [OK] * 10
    assert [each.cached for each in again] == [True] * 16
    counts = Counter(evaluation_log.read_text().splitlines())
    assert [counts[name] for name in names] == [1] * 15
    # The last candidates of a job that lost its process are evaluated alone, then `max_attempts` counts.
    assert counts[poison] in ((1,) if status in (OK, FAILED) else (CONFIG.max_attempts, CONFIG.max_attempts + 1))
    assert not {process for process in descendants() - before if "sleep" in process.name()}


def descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
