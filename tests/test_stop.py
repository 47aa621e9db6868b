"""Runs that end early: signals while a candidate takes ten minutes, and spent budgets."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.small_run import run
from tests.test_trainer import session_members, wait_until
from tests.tiny_run import metric_rows


@pytest.fixture
def finished(finished_runs) -> Path:
    return finished_runs("toy")


# Seconds from a signal to the end of the run on a busy machine, far below the ten minutes of the evaluation.
STOP_S = 60.0


def statuses(folder: Path) -> list[str]:
    """Return the statuses of all rows of the store."""
    store = sqlite3.connect(folder / "evaluations.sqlite")
    with store:
        rows = [status for (status,) in store.execute("select status from evaluations")]
    store.close()
    return rows


def stopped_run(folder: Path, number: signal.Signals, *options: str) -> int:
    """Run with a signal during the slow candidate, and return the exit status."""
    folder.mkdir()
    (folder / "signal").write_text(f"{int(number)} {os.getpid()}")
    start = time.monotonic()
    status = run(folder, *options)
    starts_processes = bool({"num_workers=1", "evaluation.executor=pool"} & set(options))
    assert time.monotonic() - start < STOP_S + 20 * starts_processes
    assert (folder / "was_slow").exists()
    return status


def child_processes() -> set[psutil.Process]:
    """Return the descendants of this process except Python's tracker of shared resources."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if not any("resource_tracker" in part for part in child.cmdline())}


def num_calls(folder: Path) -> list[int]:
    """Return the number of evaluations of each graph, in ascending order."""
    return sorted(Counter((folder / "calls").read_text().split()).values())


@pytest.mark.parametrize(
    ("number", "status", "executor"),
    [
        (signal.SIGUSR1, 138, "inline"),  # of a scheduler
        pytest.param(signal.SIGINT, 130, "inline", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, "pool", marks=pytest.mark.slow),
    ],
)
def test_signal_ends_evaluation_and_run_resumes_exactly(finished, tmp_path, capsys, number, status, executor):
    folder, children = tmp_path / "run", child_processes()
    task = ("task=tests.slow_tasks:SlowOnce", f"evaluation.executor={executor}", "evaluation.capacity=1")
    assert stopped_run(folder, number, *task) == status
    assert child_processes() == children, "no process is left"
    shown = capsys.readouterr()
    assert shown.err == (
        "\nstopping: running evaluations are cancelled, checkpoint and report are written; repeat to stop immediately\n"
    )
    assert "best architectures" in shown.out
    assert set(statuses(folder)) == {"ok"}
    done = len(metric_rows(folder))
    assert 0 < done < 8
    assert (folder / "checkpoints" / f"step_{done:08}.pt").exists()
    assert metric_rows(folder) == metric_rows(finished)[:done]
    assert run(folder, *task, "resume=true") == 0
    assert metric_rows(folder) == metric_rows(finished)
    num_again = sum(num - 1 for num in num_calls(folder))
    assert num_again == 1 or (executor == "pool" and num_again <= 4), "short candidates share a job of a pool"


def test_second_signal_ends_the_process_at_once(tmp_path):
    answer = tmp_path / "answer"
    child = os.fork()
    if not child:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(answer, os.O_WRONLY | os.O_CREAT), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        os._exit(run(tmp_path, "task=tests.slow_tasks:Unstoppable"))
    wait_until((tmp_path / "runs").exists, seconds=90)
    os.kill(child, signal.SIGINT)
    wait_until(lambda: "repeat to stop immediately\n" in answer.read_text(), seconds=STOP_S)
    os.kill(child, signal.SIGTERM)
    start = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert time.monotonic() - start < STOP_S
    wait_until(lambda: not session_members(child), seconds=30)


@pytest.mark.parametrize("workers", ["num_workers=0", pytest.param("num_workers=1", marks=pytest.mark.slow)])
def test_budget_evaluations_end_the_run(finished, tmp_path, capsys, workers):
    folder = tmp_path / "run"
    assert run(folder, "budget.evaluations=9", workers) == 0
    done = len(metric_rows(folder))
    shown = capsys.readouterr()
    assert f"the search ends after step {done}: budget.evaluations=9 is spent\n" in shown.out
    assert "best architectures" in shown.out
    assert shown.err == ""
    assert (statuses(folder), 0 < done < 8) == (["ok"] * 9, True)
    assert run(folder, "resume=true", "budget.evaluations=0", workers) == 0
    assert len(metric_rows(folder)) == 8
    if workers == "num_workers=0":
        assert metric_rows(folder) == metric_rows(finished)


def test_budget_parameters_refuse_candidates(finished, tmp_path):
    store = tmp_path / "evaluations.sqlite"
    options = ("task=tests.slow_tasks:HasCost", f"evaluation.store_url=sqlite:///{store}")
    assert run(tmp_path / "small", *options, "budget.parameters=1") == 0
    assert set(statuses(tmp_path)) == {"ok", "refused"}
    assert max(row["score_best"] for row in metric_rows(tmp_path / "small")) == 0.2
    assert run(tmp_path / "any", *options, "num_training_steps=3") == 0
    for name in ("score_mean", "score_best", "loss"):
        assert [row[name] for row in metric_rows(tmp_path / "any")] == [row[name] for row in metric_rows(finished)[:3]]


def test_budget_parameters_without_cost_is_one_line(tmp_path, capsys):
    assert run(tmp_path / "run", "budget.flops=5") == 2
    error = capsys.readouterr().err
    assert error == ("error: task RewardsHiddenNodes: expected cost(graph) with budget.flops, got a task without\n")


STARTING = """
import multiprocessing
import time
from gflownet.terminal import interrupts

if __name__ == "__main__":
    interrupts.ABANDON_S = 0.1
    with interrupts.stop_signals(message="", ends_process=True) as stop:
        try:
            with stop.abandonable():
                process = multiprocessing.get_context("forkserver").Process(target=print, args=(bytes(10**6),))
                print("starting", flush=True)
                process.start()
        except interrupts.AbandonedError:
            print("abandoned", flush=True)
else:
    time.sleep(60)  # the imports of the other process: until they are done, start() waits
"""


def test_signal_during_the_start_of_a_process_prints_no_traceback(tmp_path):
    script = tmp_path / "starting.py"
    script.write_text(STARTING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(script)], text=True, env=environment, **streams) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        children = psutil.Process(process.pid).children
        wait_until(lambda: any(child.children() for child in children()), seconds=STOP_S)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60) == ("abandoned\n", "")


INTERRUPTED_BLOCKS = """
import cProfile, threading
from gflownet.terminal.interrupts import Interruption

def interrupted(sends, catches):
    interruption = Interruption(KeyboardInterrupt)
    try:
        with interruption.block():
            try:
                if sends:
                    sender = threading.Thread(target=interruption.interrupt)
                    sender.start()
                    sender.join()
                    while True:
                        pass
            except KeyboardInterrupt:
                if not catches:
                    raise
    except KeyboardInterrupt:
        return True
    return False

with cProfile.Profile():
    print([interrupted(*each) for each in [(False, False), (True, False), (True, True), (False, False)]])
"""


def test_interruptible_blocks_go_on_under_a_profiler(checkout: Path):
    command = [sys.executable, "-c", INTERRUPTED_BLOCKS]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[False, True, False, False]\n", "")
