"""Rank correlations of surrogates on recorded spaces: fitted to random networks, asked about as many others.

The section `surrogates` of scripts/bench_search.py. Each seed has two sets of networks, which predict one another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from gflownet.config import load_config
from gflownet.learning.sampler import uniform_states
from gflownet.mdp.states import GraphStates
from gflownet.run.trainer import GFNTrainer
from gflownet.search.config import SurrogateConfig
from gflownet.search.gaussian_process import GaussianProcess
from gflownet.search.proposals import distinct
from gflownet.search.surrogate import rank_correlation
from scripts.bench import Row, at_least, figure, skip

_ROOT = Path(__file__).resolve().parent.parent
NUM_SEEDS, NUM_NETWORKS = 8, (64, 48)
_MIN_ALL, _MIN_UPPER = 0.8, 0.4  # goals


@dataclass(frozen=True)
class Space:
    """A recorded space."""

    name: str
    config: str
    table: Path
    overrides: tuple[str, ...] = ()


def spaces(tables: Path) -> list[Space]:
    """Return mnist1d's operation graphs, digits networks and the cells of three benchmarks."""
    data, column = _ROOT / "tests" / "data", "task_options.column"
    macro = ("env.cells.name=nb_macro", f"{column}=acc_mean", "task_options.test_column=acc_mean")
    nb101 = ("env.cells.name=nb101", "env.cells.max_vertices=5", "model.name=graph_transformer")
    test = ("task_options.test_column=test_acc_4ep",)
    return [
        Space("mnist1d", "recorded_mnist1d", data / "recorded_mnist1d.csv.gz"),
        Space("digits", "recorded_digits", data / "recorded_digits.csv.gz"),
        Space("macro", "cells", tables / "nb_macro.csv.gz", macro),
        Space("nb201_c10", "cells", tables / "nb201.csv.gz", (f"{column}=c10_val12",)),
        Space("nb101", "cells", tables / "nb101_ec_4epochs.csv.gz", (*nb101, f"{column}=val_acc_4ep", *test)),
    ]


def rank_rows(tables: Path, *, num_seeds: int) -> Iterator[Row]:
    """Yield the correlations of the Gaussian process on each space, over all networks and over the better half."""
    for space in spaces(tables):
        if not space.table.is_file():
            skip(f"surrogates: {space.name}", f"no table {space.table.name}")
            continue
        options = ["wandb.mode=disabled", "search.method=random", f"task_options.table={space.table}"]
        components = GFNTrainer(
            load_config(str(_ROOT / "configs" / f"{space.config}.yaml"), [*options, *space.overrides])
        )
        samples = [sampled(components, 2 * max(NUM_NETWORKS), seed) for seed in range(num_seeds)]
        for num in NUM_NETWORKS:
            yield from _rows(f"surrogates: {space.name}, {num} networks", components, samples, num)


def sampled(components: GFNTrainer, num: int, seed: int) -> tuple[GraphStates, Tensor]:
    """Return random networks with a score, and their scores [num] float64."""
    env, task, generator = components.env, components.task, torch.Generator().manual_seed(seed)
    states, rows, scores = env.initial_states(0), list[int](), list[float]()
    while len(rows) < num:
        states = distinct(env, GraphStates.cat([states, uniform_states(env, 2 * num, generator=generator)]))
        rows, scores = [], []
        for row in range(len(states)):
            candidate = env.terminal(states, row)
            if task.refusal(candidate) is None:
                rows.append(row)
                scores.append(task.evaluate(candidate, seed=seed).value)
    return states[torch.tensor(rows[:num])], torch.tensor(scores[:num], dtype=torch.float64)


def _rows(title: str, components: GFNTrainer, samples: Sequence[tuple[GraphStates, Tensor]], num: int) -> Iterator[Row]:
    results, start = [], time.process_time()
    for seed, (states, scores) in enumerate(samples):
        first, second = slice(num), slice(num, 2 * num)
        for fitted, predicted in ((first, second), (second, first)):
            surrogate = GaussianProcess(components.env, SurrogateConfig(), seed=seed)
            features = surrogate.encode(states[: 2 * num])
            surrogate.fit(features[fitted], scores[fitted])
            results.append(correlations(surrogate.predict(features[predicted]).mean, scores[predicted]))
    seconds = (time.process_time() - start) / len(results)
    over_all, upper = (mean(column) for column in zip(*results, strict=True))
    has_goal = num == max(NUM_NETWORKS)
    for kind, value, goal in (("all", over_all, _MIN_ALL), ("upper half", upper, _MIN_UPPER)):
        row = f"{title}: rank correlation, {kind}"
        yield at_least(row, value, "", goal) if has_goal else figure(row, value)
    yield figure(f"{title}: CPU seconds", seconds, "s")


def correlations(predicted: Tensor, scores: Tensor) -> tuple[float, float]:
    """Return the rank correlations over all networks and over the better half by score."""
    is_upper = scores >= scores.median()
    return rank_correlation(predicted, scores), rank_correlation(predicted[is_upper], scores[is_upper])
