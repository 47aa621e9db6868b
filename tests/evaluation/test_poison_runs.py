"""A whole run with a user's task that ends or hangs its process: killed and resumed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from gflownet.evaluation.job import EvaluationStatus
from tests.small_run import SMALL

TASK = """
import ctypes, os
from pathlib import Path
from tests.toy_tasks import RewardsHiddenNodes

class Poisonous(RewardsHiddenNodes):
    is_cheap = False

    def evaluate(self, graph, *, seed):
        with open("evaluations", "a") as log:
            log.write(graph.canonical_hash() + "\\n")
        if int(graph.canonical_hash()[-4:], 16) % 8 == 0:
            os._exit(3)
        if os.path.exists("hang"):
            Path("hanging").touch()
            ctypes.CDLL(None).pause()
        return super().evaluate(graph, seed=seed)
"""
# A script without `if __name__ == "__main__"`.
SCRIPT = "import sys; from gflownet.train import main; sys.exit(main(sys.argv[1:]))"
OPTIONS = [*SMALL, "task=user_task:Poisonous", "evaluation.executor=pool", "evaluation.capacity=2", "log_dir=run"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "user_task.py").write_text(TASK)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def start(folder: Path, checkout: Path, *command: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    with (folder / "output").open("w") as output:
        return subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, stdout=output, stderr=output)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen, *, limit: float = 120.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert process.poll() is None, "the run ended"
        assert time.monotonic() < end
        time.sleep(0.01)


def num_steps(folder: Path) -> int:
    metrics = folder / "run" / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def stored_rows(folder: Path) -> dict[str, EvaluationStatus]:
    query = "SELECT hash, status FROM evaluations WHERE status <> 'running'"
    with closing(sqlite3.connect(folder / "run" / "evaluations.sqlite")) as connection:
        return {name: EvaluationStatus(status) for name, status in connection.execute(query)}


def evaluations(folder: Path) -> Counter[str]:
    return Counter((folder / "evaluations").read_text().splitlines())


@pytest.mark.slow
def test_killed_run_leaves_no_process_and_resumes(folder, checkout):
    process = start(folder, checkout, "script.py", *OPTIONS, "num_training_steps=1000")
    wait_until(lambda: num_steps(folder) >= 3, process)
    (folder / "hang").touch()
    wait_until((folder / "hanging").exists, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3  # the owner, two workers
    process.kill()
    assert psutil.wait_procs(children, timeout=60)[1] == []
    process.wait()
    (folder / "hang").unlink()
    before, counts = stored_rows(folder), evaluations(folder)
    check_rows(before)
    assert {counts[name] for name in before if not is_poisoned(name)} == {1}
    assert {counts[name] for name in before if is_poisoned(name)} <= {2, 3}  # 3: the first one with another candidate
    options = (*OPTIONS, f"num_training_steps={num_steps(folder) + 5}", "resume=auto")
    resumed = start(folder, checkout, "-m", "gflownet.train", *options)
    assert resumed.wait(timeout=120) == 0, (folder / "output").read_text()
    check_rows(stored_rows(folder))
    assert len(stored_rows(folder)) > len(before)
    # The report tests the best graphs; crashed ones are not evaluated again.
    again = evaluations(folder)
    assert {name for name in before if again[name] > counts[name]} <= {name for name in before if not is_poisoned(name)}


def is_poisoned(name: str) -> bool:
    return int(name[-4:], 16) % 8 == 0


def check_rows(rows: dict[str, EvaluationStatus]) -> None:
    """Check that exactly the poisoned graphs crashed."""
    crashed = {name for name, status in rows.items() if status is EvaluationStatus.CRASHED}
    assert crashed == {name for name in rows if is_poisoned(name)}
    assert 0 < len(crashed) < len(rows)
    assert set(rows.values()) == {EvaluationStatus.OK, EvaluationStatus.CRASHED}
