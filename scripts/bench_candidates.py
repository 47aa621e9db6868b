"""Measure candidates evaluated per second: all at once against one by one, on the digits search.

    python scripts/bench_candidates.py [--quick] [--json FILE]

Architectures are drawn by uniformly random legal actions, like the first ones of a search. Both sides translate, train
and validate the same candidates from the same seeds, batch after batch in turn, with an empty translation cache, on one
thread; times are CPU time. One by one is autograd and one fused optimiser per candidate (tests/oracles/training.py).
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.config import load_config
from gflownet.evaluation.candidates.supervised import SupervisedTask
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.learning.sampler import sample_forward
from gflownet.run.trainer import GFNTrainer
from gflownet.translation import clear_translation_cache
from scripts.bench import Row, at_least, figure, finish, median_ratio, parse_arguments
from tests.oracles.training import score_one_by_one

BATCH_SIZE = 16  # candidates per turn
NUM_BATCHES, NUM_BATCHES_QUICK = 13, 5
GOAL = 3.0
MIN_SAME_SHARE = 0.9  # rounding moves an example across a decision boundary now and then
SIDES = ("one by one", "at once")


def sample_architectures(num: int, name: str = "digits", *overrides: str) -> tuple[TensorTask, list[ComputationGraph]]:
    """Return the task of a config and `num` architectures drawn by uniformly random actions."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(name, [f"log_dir={folder}", "wandb.mode=disabled", *overrides])
        trainer = GFNTrainer(config)
    assert isinstance(trainer.task, TensorTask)
    graphs = next(batches(trainer, seed=config.seed, size=num))
    return trainer.task, [graph for graph in graphs if isinstance(graph, ComputationGraph)]


def batches(trainer: GFNTrainer, *, seed: int, size: int) -> Iterator[list[Any]]:
    """Yield batches of architectures drawn by uniformly random actions."""
    generator, of_actions = torch.Generator().manual_seed(seed), (trainer.context, trainer.policy)
    while True:
        conditioning = trainer.task.sample_conditioning(size, generator=generator)
        options = {"conditioning": conditioning, "generator": generator, "random_action_prob": 1.0}
        terminal = sample_forward(*of_actions, **options).terminal
        yield [trainer.env.terminal(terminal, position) for position in range(size)]


def evaluate(
    task: SupervisedTask, side: str, graphs: list[ComputationGraph], seeds: list[int]
) -> tuple[float, list[float]]:
    """Return the CPU seconds and the validation accuracies of one batch."""
    splits = task.splits()
    clear_translation_cache()
    gc.collect()
    start = process_time()
    if side == "at once":
        outcomes = task.evaluate_many(graphs, seeds=seeds)
        # A failure gets an accuracy that no other side has.
        accuracies = [float("inf") if isinstance(o, Exception) else o.metrics["validation_accuracy"] for o in outcomes]
    else:
        options, pairs = task.config.evaluation, zip(graphs, seeds, strict=True)
        accuracies = [score_one_by_one(graph, splits, config=options, seed=seed)[0] for graph, seed in pairs]
    return process_time() - start, accuracies


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    num_batches = NUM_BATCHES_QUICK if arguments.quick else NUM_BATCHES
    task, graphs = sample_architectures(num_batches * BATCH_SIZE)
    assert isinstance(task, SupervisedTask)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    accuracies: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(num_batches):
        seeds = list(range(number * BATCH_SIZE, (number + 1) * BATCH_SIZE))
        for side in SIDES[:: 1 if number % 2 else -1]:
            elapsed, of_batch = evaluate(task, side, [graphs[seed] for seed in seeds], seeds)
            if number:  # the first batch is a warm-up
                seconds[side].append(elapsed)
                accuracies[side] += of_batch
    slow, fast = (seconds[side] for side in SIDES)
    pairs = list(zip(*accuracies.values(), strict=True))
    label = f"digits, {len(pairs)} random architectures in batches of {BATCH_SIZE}"
    rows: list[Row] = [
        figure(f"{label}: one by one", BATCH_SIZE / median(slow), "candidates/s"),
        figure(f"{label}: at once", BATCH_SIZE / median(fast), "candidates/s"),
        at_least(f"{label}: ratio", median_ratio(slow, fast), "x", GOAL),
        at_least(f"{label}: same accuracy", sum(a == b for a, b in pairs) / len(pairs), "share", MIN_SAME_SHARE),
        figure(f"{label}: largest difference of accuracy", max(abs(a - b) for a, b in pairs)),
    ]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
