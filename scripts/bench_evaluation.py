"""Measure the executors of candidate evaluations, and asynchronous training.

    python scripts/bench_evaluation.py [--quick] [--ray] [--json FILE]

Whole runs of the digits search in processes of their own, all sides in turn: evaluations per second of wall
time, without the first steps. Policy and candidates share the cores.

Candidates of 0.5 CPU seconds: the same ones inline and on the pool, in turn. Overhead: candidates without work, one per
job; a user's function with an optimiser, without its own tenth of a second. Busy share: asynchronous training with
candidates of 2 s that use no core, like trainings on another machine.
Store: rows of a digits search, on SQLite and on a PostgreSQL server that the script starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.config import load_config, with_task_options
from gflownet.evaluation.config import EvaluationConfig
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.executors.base import Executor
from gflownet.evaluation.executors.choice import build_executor, num_cores
from gflownet.evaluation.job import Job
from gflownet.evaluation.store.evaluations import EvaluationRecord, EvaluationStatus, EvaluationStore
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.assignment import Assignment
from scripts.bench import Row, at_least, at_most, figure, finish, interleaved, median_ratio, parse_arguments, skip
from tasks.choices import ChoicesTask, ChoicesTaskConfig
from tests.postgres_server import missing_server, new_database, running_server

# Steps at the start of a run that are not counted: processes start, caches fill.
NUM_SKIPPED_STEPS = 5
FUNCTION_S = 0.1


@dataclass(frozen=True)
class Numbered:
    """A candidate without a graph."""

    number: int

    def canonical_key(self) -> str:
        """Return its number."""
        return str(self.number)

    def canonical_hash(self) -> str:
        """Return its number."""
        return f"numbered-{self.number}"

    def to_dict(self) -> dict[str, Any]:
        """Return a graph of one node."""
        return {"nodes": [{"id": self.number}], "edges": []}


class NoWork(GFNTask):
    """Scores without work."""

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Return a score at once."""
        return Score(0.5)


class Computes(GFNTask):
    """Computes for half a second of CPU time per candidate."""

    seconds = 0.5

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Return a score after the time."""
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass
        return Score(0.5)


class Waits(GFNTask):
    """Takes two seconds per candidate without using a core, like a training on another machine."""

    input_sizes = (64,)
    output_sizes = (10,)
    seconds = 2.0

    def evaluate(self, graph: Any, *, seed: int) -> Score:
        """Return a score after the time."""
        time.sleep(self.seconds)
        return Score(0.5 + seed % 1_000 / 2_000)


class WaitsShortly(Waits):
    """Takes half a second per candidate, for quick runs."""

    seconds = 0.5


def trained(choices: Mapping[str, Any], seed: int) -> float:
    """Score after a step of an optimiser and a tenth of a second: a function of a user for task=choices."""
    end = time.perf_counter() + FUNCTION_S
    weight = torch.nn.Parameter(torch.ones(1))
    torch.optim.SGD([weight], lr=0.1).step()
    time.sleep(max(0.0, end - time.perf_counter()))
    return 0.5


def choices_task() -> ChoicesTask:
    """Return the task that scores by `trained`."""
    options = ["task_options.score=scripts.bench_evaluation:trained", "task_options.test=''"]
    return ChoicesTask(with_task_options(load_config("choices", options), ChoicesTaskConfig))


def task_of(kind: type[GFNTask]) -> GFNTask:
    """Return a task with the default config."""
    return kind(cast(Any, load_config(None, [])))


def run_search(folder: Path, *overrides: str) -> list[dict[str, float]]:
    """Run the digits search in a new process and return its metrics, one row per step."""
    command = [sys.executable, "-m", "gflownet.train", "--config", "digits", "wandb.mode=disabled", "final.top=0"]
    command.append(f"log_dir={folder}")
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(overrides)}: exit status {done.returncode}: {done.stderr[-2_000:]}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def evaluations_per_second(rows: list[dict[str, float]]) -> float:
    """Return the new evaluations per second of a run after its first steps."""
    steps = [row for row in rows if "num_distinct" in row]  # others train the policy without evaluations
    first, last = steps[NUM_SKIPPED_STEPS - 1], steps[-1]
    return (last["num_distinct"] - first["num_distinct"]) / (last["seconds"] - first["seconds"])


SIDES = {
    "inline": ("evaluation.executor=inline",),
    "pool": ("evaluation.executor=pool",),
    "pool, asynchronous": ("evaluation.executor=pool", "asynchronous.max_in_flight=48"),
}
GOALS = {"pool": 1.35, "pool, asynchronous": 1.7}
NUM_STEPS, NUM_STEPS_QUICK = 60, 8
NUM_COMPUTED, NUM_COMPUTED_QUICK = 12, 4
NUM_EMPTY_JOBS = 1_000
MAX_OVERHEAD_MS = {"pool": 30.0, "ray": 35.0}  # a process per job
NUM_FUNCTION_JOBS, MAX_FUNCTION_OVERHEAD_S = 24, 0.05
MIN_BUSY_SHARE, MIN_SPEEDUP = 0.95, 1.9
STORE_BATCH = 100
MIN_ROWS_PER_SECOND, MAX_OPEN_S = 2_500, 0.2


def search_rows(*, quick: bool) -> list[Row]:
    """Return the rows of whole runs."""
    num_steps = NUM_STEPS_QUICK if quick else NUM_STEPS

    def rate(name: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            options = "search.method=gflownet", f"num_training_steps={num_steps}"
            rows = run_search(Path(folder) / "run", *options, *SIDES[name])
        return evaluations_per_second(rows)

    rates = interleaved({name: lambda name=name: rate(name) for name in SIDES}, rounds=1 if quick else 3, warm_up=0)
    label = f"digits search, {num_steps} steps"
    rows = [figure(f"{label}: {name}", median(rates[name]), "evaluations/s") for name in SIDES]
    for name, goal in GOALS.items():
        ratio = median_ratio(rates[name], rates["inline"])
        rows.append(at_least(f"{label}: {name} / inline", ratio, "x", None if quick else goal))
    return rows


def computing_rows(*, quick: bool) -> list[Row]:
    """Return the rows of candidates of half a CPU second."""
    num = NUM_COMPUTED_QUICK if quick else NUM_COMPUTED
    candidates = [Numbered(number) for number in range(num)]
    task = task_of(Computes)
    executors = {name: build_executor(task, EvaluationConfig(executor=cast(Any, name))) for name in ("inline", "pool")}

    def seconds(executor: Executor) -> float:
        with tempfile.TemporaryDirectory() as folder, EvaluationStore(Path(folder) / "store.sqlite") as store:
            dispatcher = Dispatcher(task, store, executor, config=EvaluationConfig(), seed=0)
            start = time.perf_counter()
            dispatcher.evaluate(candidates, step=1)
            return time.perf_counter() - start

    sides = {name: lambda executor=executor: seconds(executor) for name, executor in executors.items()}
    results = interleaved(sides, rounds=1 if quick else 3)
    for executor in executors.values():
        executor.close()
    label = f"{num} candidates of 0.5 CPU s"
    return [
        *(figure(f"{label}: {name}", median(times), "s") for name, times in results.items()),
        at_least(f"{label}: inline / pool", median_ratio(results["inline"], results["pool"]), "x", MIN_SPEEDUP),
    ]


def overhead_rows(names: list[str]) -> list[Row]:
    """Return the time per job without work, with two jobs per process in flight."""
    rows = []
    for name in names:
        task = task_of(NoWork)
        with build_executor(task, EvaluationConfig(executor=cast(Any, name))) as executor:
            _run_jobs(executor, 50)
            start = time.perf_counter()
            _run_jobs(executor, NUM_EMPTY_JOBS)
            overhead = 1_000 * (time.perf_counter() - start) / NUM_EMPTY_JOBS
        rows.append(at_most(f"{name}: overhead per evaluation without work", overhead, "ms", MAX_OVERHEAD_MS[name]))
    return rows


def function_rows(names: list[str]) -> list[Row]:
    """Return the time per evaluation of a user's function with an optimiser, without that of the function."""
    rows, task = [], choices_task()
    candidates = [Assignment.of({"width": number}) for number in range(NUM_FUNCTION_JOBS)]
    for name in names:
        config = EvaluationConfig(executor=cast(Any, name), capacity=1)
        with build_executor(task, config) as executor:
            _run_jobs(executor, executor.capacity, candidates)  # processes start, the optimiser is imported
            start = time.perf_counter()
            _run_jobs(executor, NUM_FUNCTION_JOBS, candidates)
            seconds = (time.perf_counter() - start) * executor.capacity / NUM_FUNCTION_JOBS
        label = f"{name}: overhead per evaluation of a function of {FUNCTION_S:g} s with an optimiser"
        rows.append(at_most(label, seconds - FUNCTION_S, "s", MAX_FUNCTION_OVERHEAD_S))
    return rows


def _run_jobs(executor: Executor, num: int, candidates: Sequence[Any] | None = None) -> None:
    """Run `num` jobs of one candidate, at most two per place at the same time."""
    candidates = candidates or [Numbered(number) for number in range(num)]
    waiting, running = [Job((candidates[number],), (number,)) for number in range(num)], []
    while waiting or running:
        while waiting and len(running) < 2 * executor.capacity:
            running.append(executor.submit(waiting.pop(), deadline=60.0))
        for handle in executor.wait(running, timeout=60.0):
            running.remove(handle)


def busy_rows(*, quick: bool) -> list[Row]:
    """Return the share of the time that the evaluators work, asynchronous, after the first steps."""
    task, num_steps = (WaitsShortly, 14) if quick else (Waits, 40)
    with tempfile.TemporaryDirectory() as folder:
        rows = run_search(
            Path(folder) / "run",
            f"task=scripts.bench_evaluation:{task.__name__}",
            "evaluation.executor=pool",
            "evaluation.capacity=2",
            "algo.num_from_policy=4",
            "asynchronous.max_in_flight=12",
            "asynchronous.updates_per_reward=0.5",
            f"num_training_steps={num_steps}",
        )
    first, last = rows[NUM_SKIPPED_STEPS - 1], rows[-NUM_SKIPPED_STEPS]
    busy = task.seconds * (last["num_distinct"] - first["num_distinct"])
    share = busy / (2 * (last["seconds"] - first["seconds"]))
    label = f"asynchronous, candidates of {task.seconds:g} s, 2 processes: busy share"
    return [at_least(label, share, "share", None if quick else MIN_BUSY_SHARE)]


def store_rows(*, quick: bool) -> list[Row]:
    """Return the rows of the store on SQLite, and on PostgreSQL where a server can be started."""
    num_rows = 10_000 if quick else 100_000
    with tempfile.TemporaryDirectory() as folder:
        rows = _store_rows("SQLite", Path(folder) / "store.sqlite", num_rows=num_rows)
    reason = missing_server()
    if reason is not None:
        skip("store on PostgreSQL", reason)
        return rows
    with running_server() as server:
        return rows + _store_rows("PostgreSQL", new_database(server.folder), num_rows=num_rows)


def _store_rows(name: str, location: str | Path, *, num_rows: int) -> list[Row]:
    """Return the speed of writing rows, of claiming and writing them, and of finding the best of many."""
    records = [_record(number, num_rows) for number in range(num_rows)]
    with EvaluationStore(location, context="bench") as store:
        start = time.perf_counter()
        for first in range(0, num_rows, STORE_BATCH):
            store.add(records[first : first + STORE_BATCH])
        rate = num_rows / (time.perf_counter() - start)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        with EvaluationStore(location, context="bench") as store:
            assert [record.score for record in store.top(10)] == [1 - number / num_rows for number in range(10)]
        times.append(time.perf_counter() - start)
    return [
        at_least(f"store, {name}: rows written in batches of {STORE_BATCH}", rate, "rows/s", MIN_ROWS_PER_SECOND),
        at_most(f"store, {name}: open {num_rows:,} rows, find the top 10", median(times), "s", MAX_OPEN_S),
    ]


def _record(number: int, num_rows: int) -> EvaluationRecord:
    """Return a row of the size of a digits candidate; its score falls with its number."""
    graph = json.dumps({"nodes": [{"id": node, "node_type": "hidden"} for node in range(8)], "number": number})
    score = 1 - number / num_rows
    return EvaluationRecord(
        f"h{number}", f"key {number} {graph}", graph, score, EvaluationStatus.OK, 0.01, 1, metrics={"loss": 0.5}
    )


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__, ray="also measure Ray: a cluster runs at RAY_ADDRESS")
    if num_cores() < 2:
        skip("speed of the pool", "needs two cores")
        return finish([], json_path=arguments.json)
    rows = [
        *search_rows(quick=arguments.quick),
        *computing_rows(quick=arguments.quick),
        *overhead_rows(["pool", "ray"] if arguments.ray else ["pool"]),
        *function_rows(["inline", "pool", "ray"] if arguments.ray else ["inline", "pool"]),
        *busy_rows(quick=arguments.quick),
        *store_rows(quick=arguments.quick),
    ]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
