"""Equal seeds give equal stores: on a pool, under load, and after kills; times of evaluations decide nothing."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from gflownet.evaluation.store.database import STORE_NAME
from gflownet.train import main
from tests.search.searches import PLACES, RIDGE, TrainsPlaces

# Of one run, or of the time and the process of an evaluation.
_OF_TIMES = {
    "id",
    "context",
    "run",
    "seconds",
    "created",
    "owner",
    "lease_until",
    "started",
    "checksum",
    "identity_digest",
}
_POOL = ("evaluation.executor=pool", "evaluation.capacity=2", "report.every=null")
_TOY = (*PLACES, RIDGE, *_POOL, f"task={__name__}:TakesAnyTime", "search.batch_size=0", "search.num_initial=4")


class TakesAnyTime(TrainsPlaces):
    """Evaluations that take different times in two runs."""

    def evaluate(self, graph: Any, *, seed: int) -> Any:
        time.sleep(random.SystemRandom().random() / 50)
        return super().evaluate(graph, seed=seed)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a store but for times."""
    with closing(sqlite3.connect(f"file:{folder / STORE_NAME}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        rows = [dict(row) for row in database.execute("SELECT * FROM evaluations ORDER BY step, hash, fidelity, seed")]
    return [{name: value for name, value in row.items() if name not in _OF_TIMES} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "num_rows"),
    [
        (("search.method=gflownet", "search.train_sampler=false"), 12),
        # Random architectures train while the sampler does.
        (("search.method=surrogate", "final.top=2", "final.num_seeds=2", "final.num_random=5"), 16),
    ],
)
def test_two_runs_on_a_pool_have_equal_stores(options, num_rows, tmp_path):
    for name in ("one", "other"):
        assert main([*_TOY, *options, "budget.evaluations=12", "search.width=8", f"log_dir={tmp_path / name}"]) == 0
    assert rows_of(tmp_path / "one") == rows_of(tmp_path / "other")
    assert len(rows_of(tmp_path / "one")) == num_rows


def _killed_when(folder: Path, num_rows: int, command: list[str]) -> None:
    """Run a command, and kill it once the store has so many rows with a score."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        num = 0
        while num < num_rows:
            assert process.poll() is None, "the run has ended before"
            with suppress(sqlite3.OperationalError):  # no store yet
                num = sum(row["status"] == "ok" for row in rows_of(folder))
            time.sleep(0.05)
        process.kill()


@pytest.mark.slow
def test_default_command_has_equal_stores_under_load_and_after_three_kills(tmp_path):
    train = [sys.executable, "-m", "gflownet.train", "wandb.mode=disabled", *_POOL]
    small = ["budget.evaluations=24", "search.sampler.num_updates=4"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert subprocess.run([*train, *small, f"log_dir={whole}"], stdout=subprocess.DEVNULL).returncode == 0
    load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        command = [*train, *small, f"log_dir={killed}"]
        for num_rows in (3, 11, 26):  # in the first design, in the search, in the final stage
            _killed_when(killed, num_rows, command)
            command = [*train, f"log_dir={killed}", "resume=true"]
        assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
    finally:
        load.kill()
        load.wait()
    assert rows_of(killed) == rows_of(whole)
