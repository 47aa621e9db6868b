"""Measure trainings of convolutional candidates: memory format, precision, seeds as one model.

    python scripts/bench_devices.py [--quick] [--json FILE]

Each round trains the same network on the same images by the product's trainer, on one thread; times are CPU time. The
plain side is contiguous and float32. Rows of a GPU need one; without it they are named as skipped. Rows of random
candidates train architectures drawn by uniformly random actions, with the options of their config.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

from gflownet.evaluation.candidates.metrics import build_loss
from gflownet.evaluation.candidates.tensor_task import TensorTask
from gflownet.evaluation.candidates.trainer import Length, ModelTrainer, ModelTraining
from gflownet.evaluation.config import EvaluationConfig, TrainingConfig
from gflownet.evaluation.data.examples import Split
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.training.random_states import seeded
from scripts.bench import Row, at_least, figure, finish, interleaved, median_ratio, parse_arguments, skip
from scripts.bench_candidates import sample_architectures

NUM_CLASSES, BATCH_SIZE, NUM_BATCHES = 10, 64, 4
ROUNDS, ROUNDS_QUICK = 15, 3
GOAL_CONVOLUTIONS = 1.8  # times as fast on 28 x 28


class Numerics(NamedTuple):
    """Memory format and precision of a side."""

    memory_format: str
    precision: str


PLAIN = Numerics("contiguous", "float32")
SIDES = tuple(Numerics(*pair) for pair in product(("contiguous", "channels_last"), ("float32", "bfloat16")))


NUM_SEEDS, GOAL_SEEDS = 5, 2.0
NUM_GRAPHS, NUM_GRAPHS_QUICK = 12, 2
FORMATS = ("contiguous", "channels_last")


def convolutions() -> nn.Module:
    """Return three convolutions with batch norms and a classifier."""
    widths = (1, 16, 16, 32)
    layers: list[nn.Module] = []
    for inner, outer in pairwise(widths):
        layers += [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], NUM_CLASSES))


def images(size: int, device: torch.device) -> Split:
    """Return random images of a size with random classes."""
    generator = torch.Generator().manual_seed(0)
    num = BATCH_SIZE * NUM_BATCHES
    inputs = torch.randn(num, 1, size, size, generator=generator)
    return Split(inputs.to(device), torch.randint(NUM_CLASSES, (num,), generator=generator).to(device))


def train(data: Split, numerics: Numerics, clock: Callable[[], float]) -> float:
    """Train for one epoch and return the seconds per step."""
    options = EvaluationConfig(
        batch_size=BATCH_SIZE,
        memory_format=numerics.memory_format,  # type: ignore[arg-type]
        precision=numerics.precision,  # type: ignore[arg-type]
        training=TrainingConfig(optimizer="adamw", weight_decay=0.05, label_smoothing=0.1),
    )
    loss = build_loss(options.training, is_classification=True)
    with seeded(0):
        training = ModelTraining(convolutions().to(data.inputs.device), torch.Generator().manual_seed(0))
        start = clock()
        ModelTrainer(data, loss, options).continue_training(training, Length(1, 1))
        return (clock() - start) / NUM_BATCHES


def rows_of(device: torch.device, *, size: int, rounds: int) -> list[Row]:
    """Return the time of the plain side and the ratios of the others."""
    data = images(size, device)
    # A GPU works while the CPU waits; the epoch ends with the copy of its loss.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    seconds = interleaved({side: partial(train, data, side, clock) for side in SIDES}, rounds=rounds)
    label = f"{device.type}, convolutions on {size} x {size}"
    rows = [figure(f"{label}: contiguous float32", 1e3 * median(seconds[PLAIN]), "ms per step")]
    for side in SIDES[1:]:
        goal = GOAL_CONVOLUTIONS if side == SIDES[-1] and size == 28 and device.type == "cpu" else None
        ratio = median_ratio(seconds[PLAIN], seconds[side])
        rows.append(at_least(f"{label}: {side.memory_format} {side.precision}", ratio, "x", goal))
    return rows


def cpu_seconds(task: TensorTask, graph: ComputationGraph, seeds: Sequence[int]) -> float:
    """Return the CPU seconds of trainings in one call."""
    start, num = time.process_time(), task.max_fidelity
    options = {"fidelity": num, "schedule": num, "states": [None] * len(seeds)}
    for training in task.train_many([graph] * len(seeds), seeds=seeds, **options):
        if isinstance(training, Exception):
            raise training
    return time.process_time() - start


def rows_of_candidates(name: str, *, num: int) -> list[Row]:
    """Return the gains of channels_last, and of five seeds of a graph as one model, over random candidates."""
    tasks = {each: sample_architectures(num, name, f"evaluation.memory_format={each}") for each in FORMATS}
    (plain, graphs), (last, _) = tasks.values()
    seeds, rounds = range(NUM_SEEDS), []
    for graph in graphs:
        sides = {
            "contiguous": lambda graph=graph: cpu_seconds(plain, graph, (0,)),
            "one by one": lambda graph=graph: sum(cpu_seconds(last, graph, (seed,)) for seed in seeds) / NUM_SEEDS,
            "together": lambda graph=graph: cpu_seconds(last, graph, seeds) / NUM_SEEDS,
        }
        rounds.append({side: min(values) for side, values in interleaved(sides, rounds=2).items()})
    contiguous, single, together = (sum(each[side] for each in rounds) for side in rounds[0])
    label = f"cpu, {num} random candidates of {name}"
    return [
        figure(f"{label}: contiguous", contiguous / num, "CPU s per training"),
        at_least(f"{label}: channels_last", contiguous / single, "x", None),
        at_least(f"{label}: {NUM_SEEDS} seeds as one model over one by one", single / together, "x", GOAL_SEEDS),
    ]


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.append(torch.device("cuda"))
    else:
        skip("trainings on a GPU", "not measured, no CUDA device")
    rounds = ROUNDS_QUICK if arguments.quick else ROUNDS
    rows = [row for device in devices for size in (8, 28) for row in rows_of(device, size=size, rounds=rounds)]
    for name in ("images",) if arguments.quick else ("images", "mnist1d"):
        rows += rows_of_candidates(name, num=NUM_GRAPHS_QUICK if arguments.quick else NUM_GRAPHS)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
