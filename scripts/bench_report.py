"""Measure the report page: its time and size with 10,000 evaluations, and its cost during a default run.

    python scripts/bench_report.py [--quick] [--json FILE]

The page is that of a run folder of the product with 10,000 different computation graphs, sampled and evaluated by a toy
task and added to the store of the run. It is written by `python -m gflownet.report`, a process that imports everything
first. Goals are for CPU seconds: the commands have one thread, so that on an idle machine they take as long.

The cost of rewriting is that of the process gflownet.report.follower, divided by the CPU seconds of the whole run. A
default run is measured to its end, with --quick only its first SHORT_STEPS steps, from which the rest is extrapolated:
all training steps cost as much as those measured, and pages are written at 5 seconds and then every 60 seconds of a run
of DEFAULT_RUN_S seconds, at the cost of the last one measured. The final stage is left out.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.config import command_config
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.computation_graph import NodeType
from scripts.bench import (
    ONE_THREAD,
    ROOT,
    Cost,
    Row,
    at_most,
    children_seconds,
    cost_of,
    figure,
    finish,
    parse_arguments,
)

NUM_EVALUATIONS = 10_000
GOAL_PAGE_S, GOAL_PAGE_MB = 3.0, 3.0
GOAL_SHARE = 1.0  # per cent
EVERY_S = 60.0  # report.every
# Seconds of a default run on 2 cores, README.md.
DEFAULT_RUN_S = 217.0
# Shortened default run: its steps, and time between its pages.
SHORT_STEPS, SHORT_EVERY_S = 2, 5.0
_BATCH = 500
_TASK = "scripts.bench_report:SizeAndActivations"


class SizeAndActivations(GFNTask):
    """Score from size and activations of a graph, with noise by seed: effects for the page to find."""

    is_cheap = True
    input_sizes = (4,)
    output_sizes = (2,)

    def evaluate(self, graph, *, seed):
        """Return the score of a graph."""
        hidden = [node for node in graph.nodes.values() if node.node_type is NodeType.HIDDEN]
        share = sum(node.activation_function == "relu" for node in hidden) / max(1, len(hidden))
        noise = (seed % 1_009) / 10_090
        return Score(0.4 + 0.04 * len(hidden) + 0.1 * share + noise, num_parameters=30 * len(graph.edges))

    def test(self, graph, *, seed):
        """Return the same score with other noise."""
        return self.evaluate(graph, seed=seed + 1).value


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [*page_rows(folder / "large", rounds=3), *rewriting_rows(folder / "default", is_short=arguments.quick)]
    return finish(rows, json_path=arguments.json)


def page_rows(folder: Path, *, rounds: int) -> list[Row]:
    """Return time and size of the page of a run with NUM_EVALUATIONS evaluations."""
    write_large_run(folder, NUM_EVALUATIONS)
    costs = [cost_of([sys.executable, "-m", "gflownet.report", str(folder)]) for _ in range(rounds)]
    megabytes = (folder / "report.html").stat().st_size / 1e6
    name = f"page of {NUM_EVALUATIONS:,} evaluations"
    return [
        at_most(name, statistics.median(cost.cpu for cost in costs), "CPU s", GOAL_PAGE_S),
        figure(name, statistics.median(cost.wall for cost in costs), "s"),
        at_most(name, megabytes, "MB", GOAL_PAGE_MB),
    ]


def write_large_run(folder: Path, num: int) -> None:
    """Write a run folder: a short run, to whose store further evaluations are added."""
    from gflownet.evaluation.fingerprint import context_of
    from gflownet.evaluation.store import EvaluationStore
    from gflownet.run.logging import METRICS_NAME, MetricsFile
    from gflownet.run.trainer import GFNTrainer

    options = [f"task={_TASK}", f"log_dir={folder}", "num_training_steps=20", "algo.num_from_policy=4"]
    options += ["model.num_emb=16", "model.num_layers=1", "final.num_seeds=2", "final.num_random=2"]
    options += ["report.every=null", "wandb.mode=disabled", "print_every=1000000000"]
    trainer = GFNTrainer(command_config(None, options))
    trainer.run()
    with EvaluationStore(folder / "evaluations.sqlite", context=context_of(trainer.task)) as store:
        num_missing = num - store.count(run=trainer.run_id)
        for step, records in enumerate(_batches(trainer, num_missing), start=trainer.step + 1):
            store.add(records)
            row = {"score_mean": statistics.fmean(record.score for record in records), "loss": 1 / step}
            file = MetricsFile(folder / METRICS_NAME, run=trainer.run_id, resume_step=step - 1)
            file.write(step, row | {"score_best": 0.9, "num_distinct": step * _BATCH, "seconds": float(step)})
            file.close()


def _batches(trainer, num: int) -> Iterator[list]:
    """Yield the evaluations of `num` graphs of the environment, sampled by uniform actions, no two isomorphic."""
    import torch

    from gflownet.data.sampler import uniform_states
    from gflownet.evaluation.job import EvaluationStatus
    from gflownet.evaluation.store import EvaluationRecord

    generator, seen = torch.Generator().manual_seed(0), set()
    while num > 0:
        states = uniform_states(trainer.env, _BATCH, generator=generator)
        records = []
        for i in range(_BATCH):
            graph = trainer.env.terminal(states, i)
            if graph.canonical_key() in seen or len(records) == num:
                continue
            seen.add(graph.canonical_key())
            score = trainer.task.evaluate(graph, seed=len(seen))
            records.append(
                EvaluationRecord(
                    hash=graph.canonical_hash(),
                    key=graph.canonical_key(),
                    graph=json.dumps(graph.to_dict()),
                    score=score.value,
                    status=EvaluationStatus.OK,
                    seconds=0.01,
                    step=trainer.step + 1,
                    run=trainer.run_id,
                    num_parameters=score.num_parameters,
                )
            )
        num -= len(records)
        yield records


def rewriting_rows(folder: Path, *, is_short: bool) -> list[Row]:
    """Return the share of rewriting the page in the CPU time of a default run."""
    watched = watch_run(folder, is_short=is_short)
    rows = [
        figure("pages written during the run", len(watched.pages)),
        figure("first page with its imports", watched.first, "CPU s"),
        figure("last page during the run", watched.last, "CPU s"),
        figure("run", watched.run.cpu, "CPU s"),
    ]
    if not is_short:
        return [*rows, at_most("rewriting in a default run", 100 * watched.share, "%", GOAL_SHARE)]
    num_later = math.floor((DEFAULT_RUN_S - FIRST_PAGE_S) / EVERY_S)
    cost = watched.first + num_later * watched.last
    share = cost / ((watched.run.cpu - watched.start) / SHORT_STEPS * command_config(None, []).num_training_steps)
    return [*rows, at_most("rewriting in a default run, extrapolated", 100 * share, "%", GOAL_SHARE)]


@dataclass(frozen=True)
class WatchedRun:
    """Time of a run, and of the process that rewrites its page."""

    run: Cost
    start: float  # CPU seconds of the run before its first step
    pages: Sequence[float]  # CPU seconds of the process when each page was written
    rewriting: float  # CPU seconds of the process

    @property
    def first(self) -> float:
        """CPU seconds up to the first page."""
        return self.pages[0]

    @property
    def last(self) -> float:
        """CPU seconds of the last page alone."""
        return self.pages[-1] - self.pages[-2] if len(self.pages) > 1 else self.pages[0]

    @property
    def share(self) -> float:
        """Share of the process in the CPU seconds of the run."""
        return self.rewriting / self.run.cpu


def watch_run(folder: Path, *, is_short: bool) -> WatchedRun:
    """Run the default config and look at the process that rewrites the page."""
    options = [f"log_dir={folder}", "wandb.mode=disabled", "print_every=1000000000"]
    if is_short:
        options += [f"num_training_steps={SHORT_STEPS}", f"report.every={SHORT_EVERY_S:g}", "final.top=0"]
    before, start = children_seconds(), time.monotonic()
    run = subprocess.Popen(
        [sys.executable, "-m", "gflownet.train", *options], cwd=ROOT, env=ONE_THREAD, stdout=subprocess.DEVNULL
    )
    pages, version, follower, seconds, started = [], None, None, 0.0, 0.0
    while run.poll() is None:
        time.sleep(0.1)
        if not (folder / "metrics.jsonl").exists():
            started = sum(psutil.Process(run.pid).cpu_times()[:2])
        follower = follower or _follower(run.pid)
        if follower is None:
            continue
        try:
            seconds = sum(follower.cpu_times()[:2])
            now = (folder / "report.html").stat().st_mtime_ns
        except (psutil.Error, OSError):
            continue
        if now != version:
            version = now
            pages.append(seconds)
    assert run.returncode == 0, run.returncode
    return WatchedRun(Cost(children_seconds() - before, time.monotonic() - start), started, pages, seconds)


def _follower(pid: int) -> psutil.Process | None:
    for child in psutil.Process(pid).children():
        if "gflownet.report.follower" in child.cmdline():
            return child
    return None


if __name__ == "__main__":
    sys.exit(main())
