"""Compare successive halving with full trainings at equal CPU seconds, on digits and on language.

    python scripts/bench_halving.py [--quick] [--json FILE]

Architectures are sampled by uniformly random legal actions. For each seed both sides get the same ones in the same
order, a batch each in turn, until each has used its CPU seconds; times are CPU time on one thread, with the store but
without the sampling. Digits: 27 epochs, compared after 3 and 9. Language: configs/language.yaml (60 steps) with smaller
models and shorter sequences, compared after 15. A candidate is considered when it has a score; best score: of the fully
trained candidates.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.config import load_config
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import AsynchronousEvaluator
from gflownet.evaluation.executors.inline import InlineExecutor
from gflownet.evaluation.halving import HalvingEvaluator, build_halving
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.run.trainer import GFNTrainer
from scripts.bench import Row, at_least, figure, finish, parse_arguments
from scripts.bench_candidates import batches

NUM_SEEDS, NUM_SEEDS_QUICK = 5, 1
GOAL = 2.0
MAX_LOSS = 0.0  # of the mean best score
SIDES = ("full", "halving")


@dataclass(frozen=True)
class Search:
    """A task, its options, the CPU seconds of a side, and the candidates of a batch."""

    name: str
    config: str | None
    options: tuple[str, ...]
    halving: tuple[str, ...]
    seconds: float
    seconds_quick: float
    batch_size: int


SEARCHES = (
    Search(
        "digits",
        None,
        ("evaluation.num_epochs=27",),
        ("evaluation.halving.min_fidelity=3", "evaluation.halving.reduction=3"),
        seconds=10.0,
        seconds_quick=4.0,
        batch_size=64,
    ),
    Search(
        "language",
        "language",
        ("task_options.num_parameters=20000", "task_options.sequence_length=16", "task_options.validation_bytes=4096"),
        ("evaluation.halving.min_fidelity=15", "evaluation.halving.reduction=4"),
        seconds=20.0,
        seconds_quick=5.0,
        batch_size=4,
    ),
)


@dataclass(frozen=True)
class Result:
    """The result of one side."""

    num_candidates: int
    num_full: int  # trained to the end
    seconds: float  # CPU seconds, up to a batch more than given
    best_score: float
    rank_correlation: float  # of extrapolated and final scores


@dataclass
class Side:
    """A dispatcher and the CPU seconds that it has used."""

    dispatcher: Dispatcher
    evaluator: AsynchronousEvaluator
    store: EvaluationStore
    seconds: float = 0.0

    def evaluate(self, graphs: list[Any], *, step: int) -> None:
        """Evaluate a batch."""
        start = process_time()
        self.evaluator.evaluate(graphs, step=step)
        self.seconds += process_time() - start


def compare(search: Search, folder: Path, *, seed: int, seconds: float) -> dict[str, Result]:
    """Return the result of each side."""
    config = load_config(search.config, [*search.options, *search.halving, f"seed={seed}", f"log_dir={folder}"])
    trainer = GFNTrainer(config)
    sides: dict[str, Side] = {}
    for name in SIDES:
        store = EvaluationStore(folder / f"{search.name}_{name}_{seed}.sqlite")
        halving = build_halving(trainer.task, config) if name == "halving" else None
        executor = InlineExecutor(trainer.task)
        dispatcher = Dispatcher(trainer.task, store, executor, config=config.evaluation, seed=seed, run=name)
        evaluator = dispatcher if halving is None else HalvingEvaluator(dispatcher, halving)
        sides[name] = Side(dispatcher, evaluator, store)
    candidates = {name: batches(trainer, seed=seed, size=search.batch_size) for name in SIDES}
    next(iter(sides.values())).dispatcher.task.evaluate(next(batches(trainer, seed=seed, size=1))[0], seed=0)  # warm-up
    step = 0
    while any(side.seconds < seconds for side in sides.values()):
        step += 1
        for name, side in sides.items():
            if side.seconds < seconds:
                side.evaluate(next(candidates[name]), step=step)
    results = {}
    for name, side in sides.items():
        scores = [row.score for row in side.store.top(10_000)]
        metrics = side.evaluator.halving.metrics() if isinstance(side.evaluator, HalvingEvaluator) else {}
        correlation = metrics.get("extrapolation_rank_correlation", float("nan"))
        num = side.dispatcher.budget.num_evaluated
        results[name] = Result(num, len(scores), side.seconds, max(scores), correlation)
        side.store.close()
    return results


def rows_of(search: Search, *, num_seeds: int, quick: bool) -> list[Row]:
    """Return the figures of one task."""
    seconds = search.seconds_quick if quick else search.seconds
    results = []
    for seed in range(num_seeds):
        with tempfile.TemporaryDirectory() as folder:
            results.append(compare(search, Path(folder), seed=seed, seconds=seconds))
        print(f"{search.name}, seed {seed}: {results[-1]}", flush=True)
    rates = {name: mean(result[name].num_candidates / result[name].seconds for result in results) for name in SIDES}
    best = {name: mean(result[name].best_score for result in results) for name in SIDES}
    label = f"{search.name}, {num_seeds} x {seconds:g} CPU seconds"
    return [
        figure(f"{label}: full, candidates", rates["full"], "per CPU second"),
        figure(f"{label}: halving, candidates", rates["halving"], "per CPU second"),
        at_least(f"{label}: ratio of candidates", rates["halving"] / rates["full"], "x", None if quick else GOAL),
        figure(f"{label}: full, mean best score", best["full"]),
        figure(f"{label}: halving, mean best score", best["halving"]),
        at_least(
            f"{label}: difference of best scores", best["halving"] - best["full"], "", None if quick else -MAX_LOSS
        ),
        figure(
            f"{label}: rank correlation of extrapolated and final scores",
            mean(result["halving"].rank_correlation for result in results),
        ),
    ]


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    num_seeds = NUM_SEEDS_QUICK if arguments.quick else NUM_SEEDS
    rows = [row for search in SEARCHES for row in rows_of(search, num_seeds=num_seeds, quick=arguments.quick)]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
