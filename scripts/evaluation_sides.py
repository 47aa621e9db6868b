"""Tasks and runs of bench_evaluation.py: evaluations of a known duration, and whole runs of the digits search."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from gflownet.config import load_config, with_task_options
from gflownet.evaluation.task import GFNTask, Score
from tasks.choices import ChoicesTask, ChoicesTaskConfig

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
    options = ["task_options.score=scripts.evaluation_sides:trained", "task_options.test=''"]
    return ChoicesTask(with_task_options(load_config("choices", options), ChoicesTaskConfig))


def task_of(kind: type[GFNTask]) -> GFNTask:
    """Return a task with the default config."""
    return kind(cast(Any, load_config(None, [])))


def run_search(folder: Path, *overrides: str) -> list[dict[str, float]]:
    """Run the digits search in a new process and return its metrics, one row per step."""
    command = [
        sys.executable,
        "-m",
        "gflownet.train",
        "--config",
        "digits",
        f"log_dir={folder}",
        "wandb.mode=disabled",
        "final.top=0",
    ]
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(overrides)}: exit status {done.returncode}: {done.stderr[-2_000:]}")
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def evaluations_per_second(rows: list[dict[str, float]]) -> float:
    """Return the new evaluations per second of a run after its first steps."""
    steps = [row for row in rows if "num_distinct" in row]  # others train the policy without evaluations
    first, last = steps[NUM_SKIPPED_STEPS - 1], steps[-1]
    return (last["num_distinct"] - first["num_distinct"]) / (last["seconds"] - first["seconds"])
