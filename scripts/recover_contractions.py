"""Is a hidden program recovered from data, and with how many evaluations? The search beside uniform random sampling.

    python scripts/recover_contractions.py [--quick] [--json FILE]

Hidden programs on three matrices: a matrix product, a bilinear form for each of a batch, the root of a trace-like sum,
and a trace-like sum of roots. Both sides draw programs from the same MDP and score them by the same task; counted are
different programs scored until one computes the target, up to a number at which a side gives up.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.config import Config, load_config
from gflownet.data.workers import rollouts_here
from gflownet.envs.tensor_graph import TensorGraphEnv
from gflownet.envs.tensor_program import TensorProgram
from gflownet.evaluation.config import scoring_context
from gflownet.evaluation.store import EvaluationStore
from gflownet.mdp.action import GraphActionType
from gflownet.trainer import GFNTrainer
from scripts.bench import Row, figure, finish, parse_arguments

NUM_SEEDS = 5
MOST_STEPS, MOST_STEPS_QUICK = 250, 15
MOST_DRAWN, MOST_DRAWN_QUICK = 4_000, 300  # programs that random search scores before it gives up
WALKS = 256  # uniformly random trajectories at a time


INPUTS = '["A[4,4]","B[4,4]","C[4,4]"]'


@dataclass(frozen=True)
class Hidden:
    """A program to recover, the function that operations may end with, and what it is seen on."""

    target: str
    function: str
    num_examples: int  # so that the target has 64 entries at least


HIDDEN = {
    "matrix product": Hidden("y[i,k] = sum_j A[i,j] B[j,k]", "tanh", 16),
    "batched bilinear form": Hidden("t[b,j] = sum_i A[b,i] B[i,j]; y[b] = sum_j t[b,j] C[b,j]", "tanh", 16),
    "root of a trace-like sum": Hidden("s = sum_ij A[i,j] B[j,i]; y = sqrt(s)", "sqrt", 64),
    "trace-like sum of roots": Hidden("d[i] = sum_j A[i,j] B[j,i]; r[i] = sqrt(d[i]); y = sum_i r[i]", "sqrt", 64),
}


def run_config(hidden: Hidden, folder: Path, *, seed: int) -> Config:
    """Return the config of the search, the one in configs/ but for inputs, function, program, data and seed."""
    space = [f"env.tensor_graph.inputs={INPUTS}", f"env.tensor_graph.functions=[{hidden.function}]"]
    data = [f"task_options.target='{hidden.target}'", f"task_options.num_examples={hidden.num_examples}"]
    seeds = [f"task_options.data_seed={seed}", f"seed={seed}"]
    return load_config("tensor_program", [*space, *data, *seeds, f"log_dir={folder}", "wandb.mode=disabled"])


class Counter:
    """Scores programs with a task and counts them until one is exact."""

    def __init__(self, task: Any) -> None:
        self._score = task.evaluate
        self.num_scored, self.found = 0, None
        task.evaluate = self.evaluate

    def evaluate(self, graph: TensorProgram, *, seed: int) -> Any:
        """Return the task's score."""
        score = self._score(graph, seed=seed)
        self.num_scored += 1
        if self.found is None and score.metrics["exact"]:
            self.found = graph
            self.num_until = self.num_scored
        return score


@dataclass(frozen=True)
class Recovery:
    """How one side fared with one seed."""

    num_scored: int  # different programs, the exact one included
    found: TensorProgram | None
    seconds: float  # of CPU time


def search(config: Config, folder: Path, *, num_steps: int) -> Recovery:
    """Return how the GFlowNet fares, which stops at the end of the step in which it finds the program."""
    start = time.process_time()
    torch.manual_seed(config.seed)
    trainer = GFNTrainer(config)
    counter = Counter(trainer.task)
    with EvaluationStore(folder / "evaluations.sqlite", context=scoring_context(config)) as store:
        evaluator = trainer.build_evaluator(store)
        parts: Any = {"policy": trainer.learner.sampling, "evaluator": evaluator, "replay": trainer.replay}
        for _ in trainer.fit(islice(rollouts_here(trainer.source, **parts, first_step=1), num_steps)):
            if counter.found is not None:
                break
    scored = counter.num_scored if counter.found is None else counter.num_until
    return Recovery(scored, counter.found, time.process_time() - start)


def random_search(config: Config, *, num_scored: int) -> Recovery:
    """Return how uniformly random legal actions fare."""
    start = time.process_time()
    trainer = GFNTrainer(config)
    counter, known = Counter(trainer.task), set()
    for program in random_programs(cast(TensorGraphEnv, trainer.env), seed=config.seed):
        if program.canonical_key() not in known:
            known.add(program.canonical_key())
            trainer.task.evaluate(program, seed=0)
        if counter.found is not None or counter.num_scored >= num_scored:
            break
    return Recovery(counter.num_scored, counter.found, time.process_time() - start)


def random_programs(env: TensorGraphEnv, *, seed: int) -> Iterator[TensorProgram]:
    """Yield programs that end uniformly random trajectories, without end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        states, ends = env.initial_states(WALKS), []
        while len(states):
            actions = env.forward_masks(states).sample_uniform(generator)
            stops = actions.kind == int(GraphActionType.Stop)
            ends.append(states[stops])
            states = env.step(states[~stops], actions[~stops])
        for batch in ends:
            yield from (env.terminal(batch, index) for index in range(len(batch)))


def rows_of(name: str, hidden: Hidden, *, quick: bool) -> list[Row]:
    """Return how both sides fare on one hidden program."""
    rows, ours, theirs = [], [], []
    goal = "" if quick else "found"
    most_steps, most_drawn = (MOST_STEPS_QUICK, MOST_DRAWN_QUICK) if quick else (MOST_STEPS, MOST_DRAWN)
    for seed in range(1 if quick else NUM_SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            config = run_config(hidden, Path(folder), seed=seed)
            found = search(config, Path(folder), num_steps=most_steps)
            drawn = random_search(config, num_scored=most_drawn)
        ours.append(found)
        theirs.append(drawn)
        label = f"{name}, seed {seed}: evaluations"
        rows += [
            Row(f"{label}, search{_verdict(found)}", found.num_scored, "", goal, quick or found.found is not None),
            figure(f"{label}, random{_verdict(drawn)}", drawn.num_scored),
        ]
        counts = f"{found.num_scored}{_verdict(found)}, random {drawn.num_scored}{_verdict(drawn)}"
        print(f"{name}, seed {seed}: search {counts}: {found.found or 'nothing'}", flush=True)
    medians = [statistics.median(side.num_scored for side in sides) for sides in (ours, theirs)]
    num_found = [sum(side.found is not None for side in sides) for sides in (ours, theirs)]
    seconds = [sum(side.seconds for side in sides) for sides in (ours, theirs)]
    label = f"{name}, {len(ours)} seeds"
    for side, *figures in zip(("search", "random"), medians, num_found, seconds, strict=True):
        rows += [
            figure(f"{label}, {side}: {name}", value, unit)
            for name, value, unit in zip(
                ("median evaluations", "found", "CPU time"), figures, ("", "", "s"), strict=True
            )
        ]
    return [*rows, figure(f"{label}: random / search, medians", medians[1] / medians[0])]


def _verdict(recovery: Recovery) -> str:
    return "" if recovery.found is not None else " (gave up)"


def main() -> int:
    """Run everything and return the exit status."""
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    rows = [row for name, hidden in HIDDEN.items() for row in rows_of(name, hidden, quick=arguments.quick)]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
