"""Measure candidates evaluated per second: all at once against one by one, on the digits search.

    python scripts/bench_candidates.py [--quick] [--json FILE]

The same for steps on the signals of mnist1d: an expert's plain loop (fused AdamW, modules as they are), ours, and four
seeds as one model, for eight networks from the smallest to the largest of random ones.

Architectures are drawn by uniformly random legal actions, like the first ones of a search. Both sides translate, train
and validate the same candidates from the same seeds, batch after batch in turn, with an empty translation cache, on one
thread; times are CPU time. One by one is autograd and one fused optimiser per candidate (tests/oracles/training.py).
"""

from __future__ import annotations

import gc
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

from gflownet.config import load_config
from gflownet.data.sampler import sample_forward
from gflownet.evaluation.candidates.supervised import SupervisedTask
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.candidates.trainer import Length, ModelTraining
from gflownet.evaluation.data.examples import num_steps
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.run.trainer import GFNTrainer
from gflownet.training.random_states import seeded
from gflownet.translation import clear_translation_cache
from scripts.bench import Row, at_least, figure, finish, interleaved, median_ratio, parse_arguments
from tests.oracles.training import score_one_by_one

BATCH_SIZE = 16  # candidates per turn
NUM_BATCHES, NUM_BATCHES_QUICK = 13, 5
GOAL = 3.0
MIN_SAME_SHARE = 0.9  # rounding moves an example across a decision boundary now and then
SIDES = ("one by one", "at once")
NUM_DRAWN, NUM_SEEDS = 64, 4
STEP_GOALS = {"plain loop / ours": 1.3, "ours / four seeds as one": 1.5}


def sample_architectures(num: int, name: str = "digits", *overrides: str) -> tuple[TensorTask, list[ComputationGraph]]:
    """Return the task of a config and `num` architectures drawn by uniformly random actions."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(name, [f"log_dir={folder}", "wandb.mode=disabled", *overrides])
        trainer = GFNTrainer(config)
    assert isinstance(trainer.task, TensorTask)
    generator = torch.Generator().manual_seed(config.seed)
    conditioning = trainer.task.sample_conditioning(num, generator=generator)
    batch = sample_forward(
        trainer.context, trainer.policy, conditioning=conditioning, generator=generator, random_action_prob=1.0
    )
    graphs = [trainer.env.terminal(batch.terminal, position) for position in range(num)]
    return trainer.task, [graph for graph in graphs if isinstance(graph, ComputationGraph)]


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


def step_rows(*, quick: bool) -> list[Row]:
    """Return the CPU time of a step of eight networks of mnist1d, and the ratios of three ways in turn."""
    task, graphs = sample_architectures(NUM_DRAWN, "mnist1d")
    order = sorted(graphs, key=lambda graph: _multiply_adds(task, graph))
    networks = order[NUM_DRAWN // 16 :: NUM_DRAWN // 8]
    ratios: dict[str, list[float]] = {"plain loop / ours": [], "ours / four seeds as one": []}
    milliseconds = list[float]()
    for graph in networks:
        sides = {name: partial(_step_milliseconds, task, graph, name) for name in ("plain", "ours", "stacked")}
        found = interleaved(sides, rounds=1 if quick else 5)
        milliseconds.append(median(found["ours"]))
        for name, (slow, fast) in zip(ratios, (("plain", "ours"), ("ours", "stacked")), strict=True):
            ratios[name].append(median_ratio(found[slow], found[fast]))
    label = f"mnist1d, {len(networks)} networks"
    rows = [figure(f"{label}: a step", sum(milliseconds) / len(milliseconds), "CPU ms")]
    for name, values in ratios.items():
        rows.append(at_least(f"{label}: {name}", median(values), "x", None if quick else STEP_GOALS[name]))
        rows.append(figure(f"{label}: {name}, largest network", values[-1], "x"))
    return rows


def _multiply_adds(task: TensorTask, graph: ComputationGraph) -> int:
    cost = task.cost(graph)
    assert cost is not None
    return cost.flops


def _step_milliseconds(task: TensorTask, graph: ComputationGraph, side: str) -> float:
    """Return the CPU milliseconds per step and training of one epoch, with the start of the training."""
    num, length = (NUM_SEEDS if side == "stacked" else 1), Length(1, task.config.evaluation.num_epochs)
    models = []
    for seed in range(num):
        with seeded(seed):
            models.append(ModelTraining(task.build_model(graph), torch.Generator().manual_seed(seed)))
    start = process_time()
    if side == "plain":
        _plain_epoch(models[0].model, task)
    elif side == "ours":
        task.trainer.continue_training(models[0], length)
    else:
        task.trainer.continue_side_by_side(models, length)
    return 1e3 * (process_time() - start) / num / num_steps(task.train, task.trainer.config.batch_size)


def _plain_epoch(model: nn.Module, task: TensorTask) -> None:
    """Train an epoch as a tutorial does, with torch's fused optimiser and schedule."""
    config, train = task.trainer.config, task.train
    total = config.num_epochs * num_steps(train, config.batch_size)
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=config.training.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.learning_rate, total)
    for inputs, targets in train.shuffled(config.batch_size, torch.Generator().manual_seed(0)):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets, label_smoothing=config.training.label_smoothing)
        loss.backward()
        optimiser.step()
        schedule.step()


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
    rows += step_rows(quick=arguments.quick)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
