"""Searches that start from the evaluations of an earlier one (search.prior), or whose networks inherit weights.

    python scripts/bench_carry_over.py [--case CASE,...] [--table FILE] [--seeds N] [--first N] [--quick] [--json FILE]

nb201: for each seed a search of CIFAR-10 (150 evaluations) is followed by searches of CIFAR-100 and ImageNet16-120 that
start from it, 10 evaluations each: whether they find the cell with the best score of the table. An unrelated source,
random cells with random scores, must not cost more than a twentieth: evaluations until 99 % of the best score of
CIFAR-100, of searches with it over those of searches without. Skipped without the table.
signals, images: accuracy and parameters of problems of bench_real.py. A search of MNIST-1D (of digits of 8 x 8), 67
evaluations, precedes one of its signals rotated by half of their length (of digits of 6 x 6): 25 evaluations that start
from it and 67 that start from nothing. Hypervolume, paired by seed; on new seeds: each network of the front is trained
once more and measured on test data, which no search has seen.
inherit: searches with and without evaluation.inherit: test score of the returned model on new seeds, and epochs.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from torch.nn.functional import interpolate

from gflownet.config import load_config
from gflownet.evaluation.data.datasets import load_splits
from gflownet.evaluation.data.examples import Splits
from gflownet.evaluation.evaluator import utilities_of
from gflownet.evaluation.statistics import hypervolume
from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.evaluation.store.rows import EvaluationRecord
from gflownet.run.trainer import GFNTrainer
from gflownet.train import main as train
from scripts.bench import Row, at_least, at_most, finish, parse_arguments, skip
from scripts.bench_real import SEARCHED, Result, front_volume, gain_row, problem_of, result_of

SOURCE, TARGETS = "c10_val12", ("c100_val12", "in16_val12")
NUM_SOURCE, NUM_TARGET, NUM_UNRELATED, NUM_SEEDS = 150, 10, 60, 20
NUM_FOUND, MAX_COST, NEAR = 18, 1.05, 0.99
_COMMON = ("search.train_sampler=false", "final.top=0", "wandb.mode=disabled", "report.every=null")
NUM_WITHOUT, NUM_WITH, NUM_REAL_SEEDS, NUM_INHERITED, MAX_EPOCHS = 67, 25, 5, 60, 0.4
_HERE = "scripts.bench_carry_over"
# A problem of bench_real.py with more options, and today's data.
_LARGER = ("evaluation.num_epochs=7", "env.operation_graph.max_parameters=2500")
_SIGNALS = ("task=images", "task_options.layout=signal", f"task_options.data={_HERE}:rotated")
TODAY = {
    "signals": ("mnist1d", ("evaluation.num_epochs=4",), _SIGNALS),
    "images": ("images", _LARGER, (f"task_options.data={_HERE}:resized",)),
}
# Problems of bench_real.py with one score (images: at most 1,000 parameters), and more options.
INHERITED = {"images": ("evaluation.num_epochs=7",), "mnist1d": ()}
CASES, QUICK_CASES = ("nb201", *TODAY, "inherit"), ("nb201", "images", "inherit")
_SPLIT_SEED, _SIZE, _BEFORE = 0, 6, 100


def rotated() -> Splits:
    """Return the signals of MNIST-1D, rotated by half of their length."""
    splits = load_splits("mnist1d", key="task", seed=_SPLIT_SEED)
    return splits.changed(lambda part: replace(part, inputs=part.inputs.roll(part.inputs.shape[-1] // 2, -1)))


def resized() -> Splits:
    """Return handwritten digits as smaller images."""
    splits = load_splits("digits", key="task", seed=_SPLIT_SEED)
    return splits.changed(lambda part: replace(part, inputs=interpolate(part.inputs, _SIZE, mode="bilinear")))


def searched(folder: Path, config: str, num: int, options: Sequence[str]) -> list[EvaluationRecord]:
    """Search in a new run folder, and return its evaluations by age."""
    arguments = [*options, *_COMMON, f"budget.evaluations={num}", f"log_dir={folder}"]
    with redirect_stdout(io.StringIO()):
        status = train(["--config", config, *arguments])
    if status:
        raise SystemExit(status)
    with StoreOverview(str(folder / STORE_NAME)) as overview:
        return overview.records()


def shuffle_scores(records: list[EvaluationRecord], path: Path, seed: int) -> None:
    """Write a store of the same cells, with the scores in random order."""
    scores = [record.score for record in records]
    random.Random(seed).shuffle(scores)
    with EvaluationStore(path, context="shuffled") as store:
        store.add(replace(record, score=score) for record, score in zip(records, scores, strict=True))


def until(records: list[EvaluationRecord], score: float) -> int:
    """Return the number of evaluations until a score; one more than there are without it."""
    return next((number for number, record in enumerate(records, 1) if record.score >= score), len(records) + 1)


def volumes(folder: Path, config: str, options: Sequence[str], records: Sequence[EvaluationRecord]) -> np.ndarray:
    """Return the hypervolume of evaluations by their own scores, and of their front on new seeds and test data."""
    components = GFNTrainer(load_config(config, [*options, *_COMMON, f"log_dir={folder}"]))
    graphs = [components.env.terminal_type.from_dict(json.loads(record.graph)) for record in records]
    own = hypervolume(np.array([utilities_of(record, task=components.task) for record in records]))
    return np.array([own, front_volume(components, graphs, records)])


def real_rows(case: str, seeds: Sequence[int], *, is_quick: bool) -> Iterator[Row]:
    """Yield the differences of hypervolume between searches with and without a prior, with intervals of 95 %."""
    problem, more, today = TODAY[case]
    num_without, num_with = (6, 4) if is_quick else (NUM_WITHOUT, NUM_WITH)
    sides = ("prior", "none", "first of none")
    found: dict[str, list[np.ndarray]] = {side: [] for side in sides}
    for seed in seeds:
        config, options = problem_of(problem, seed, is_front=True)
        options += ["evaluation.num_epochs=1"] if is_quick else more
        before = [*options, f"seed={seed + _BEFORE}"]  # of other first networks than those of the search without it
        options += today
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            searched(folder / "before", config, num_without, before)
            prior = searched(folder / "prior", config, num_with, [*options, f"search.prior=[{folder / 'before'}]"])
            none = searched(folder / "none", config, num_without, options)
            for side, records in zip(sides, (prior, none, none[:num_with]), strict=True):
                found[side].append(volumes(folder / "again", config, options, records))
        print(f"{case}, seed {seed}:", *(f"{side} {each[-1].round(4)}" for side, each in found.items()), flush=True)
    for place, measure in enumerate(("by scores of the search", "on new seeds")):
        values = {side: [float(each[place]) for each in found[side]] for side in sides}
        for side, num in (("none", num_without), ("first of none", num_with)):
            name = f"{case}: hypervolume {measure}, {num_with} with a prior above {num} without"
            goal = ">= 0" if side == "none" and place and not is_quick else ""
            yield gain_row(name, values["prior"], values[side], goal)


def inherit_rows(seeds: Sequence[int], *, is_quick: bool) -> Iterator[Row]:
    """Yield the differences of returned models between searches with and without inheritance, and their epochs."""
    num, problems = (6, ("images",)) if is_quick else (NUM_INHERITED, tuple(INHERITED))
    for problem in problems:
        results: dict[str, list[Result]] = {"cold": [], "inherit": []}
        for seed, (side, each) in product(seeds, results.items()):
            options = [*INHERITED[problem], *_COMMON[:1], f"evaluation.inherit={str(side == 'inherit').lower()}"]
            with redirect_stdout(io.StringIO()):
                each.append(result_of(problem, SEARCHED, seed, num, is_front=False, options=options))
            line = f"inherit, {problem}, seed {seed}, {side}: {mean(each[-1].fresh):.4f}"
            print(f"{line}, {each[-1].num_epochs:g} epochs", flush=True)
        cold, inherit = ([mean(result.fresh) for result in each] for each in results.values())
        goals = ("", None) if is_quick else ("interval not below 0", MAX_EPOCHS)
        yield gain_row(f"inherit, {problem}: the returned model's test score above cold's", inherit, cold, goals[0])
        cold, inherit = (sum(result.num_epochs for result in each) for each in results.values())
        yield at_most(f"inherit, {problem}: epochs of all trainings over cold's", inherit / cold, "", goals[1])


def nb201_rows(table: Path, seeds: Sequence[int], *, is_quick: bool) -> Iterator[Row]:
    """Yield the seeds that find the best cell, and the cost of an unrelated source."""
    with gzip.open(table, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    best = {column: max(float(row[column]) for row in rows if row[column]) / 100 for column in (SOURCE, *TARGETS)}
    num_source, num_unrelated = (30, 20) if is_quick else (NUM_SOURCE, NUM_UNRELATED)
    found, cost = dict.fromkeys(TARGETS, 0), {"unrelated": list[int](), "none": list[int]()}
    for seed in seeds:
        common = [f"task_options.table={table}", "task_options.test_column=", f"seed={seed}"]
        of_source, *of_targets = ([*common, f"task_options.column={name}"] for name in (SOURCE, *TARGETS))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            searched(folder / "source", "cells", num_source, of_source)
            prior = f"search.prior=[{folder / 'source'}]"
            for column, options in zip(TARGETS, of_targets, strict=True):
                records = searched(folder / column, "cells", NUM_TARGET, [*options, prior])
                found[column] += until(records, best[column] - 1e-9) <= NUM_TARGET
            records = searched(folder / "random", "cells", num_source, [*of_source, "search.method=random"])
            shuffle_scores(records, folder / "shuffled.sqlite", seed)
            for side, prior in (("unrelated", [f"search.prior=[{folder / 'shuffled.sqlite'}]"]), ("none", [])):
                records = searched(folder / side, "cells", num_unrelated, [*of_targets[0], *prior])
                cost[side].append(until(records, NEAR * best[TARGETS[0]]))
        print(f"nb201, seed {seed}: found {found}, evaluations to {NEAR:.0%} {cost}", flush=True)
    needed = None if is_quick else NUM_FOUND * len(seeds) / NUM_SEEDS
    for column in TARGETS:
        yield at_least(f"optimum of {column} within {NUM_TARGET}", found[column], "seeds", needed)
    share = mean(cost["unrelated"]) / mean(cost["none"])
    yield at_most("evaluations with an unrelated source, over those without", share, "", None if is_quick else MAX_COST)


def main() -> int:
    """Measure, and print the rows."""
    options = parse_arguments(
        __doc__,
        texts={"case": f"of {', '.join(CASES)}; default: all"},
        numbers={"seeds": f"of each case; default: {NUM_SEEDS} of nb201, else {NUM_REAL_SEEDS}", "first": "default: 0"},
        paths={"table": "nb201.csv.gz of docs/tabular-benchmarks.md"},
    )
    rows, first = list[Row](), options.first or 0
    for case in options.case.split(",") if options.case else QUICK_CASES if options.quick else CASES:
        default = NUM_SEEDS if case == "nb201" else NUM_REAL_SEEDS
        seeds = range(first, first + (1 if options.quick else options.seeds or default))
        table = options.table or Path("nb201.csv.gz")
        if case == "inherit":
            rows += inherit_rows(seeds, is_quick=options.quick)
        elif case != "nb201":
            rows += real_rows(case, seeds, is_quick=options.quick)
        elif table.is_file():
            rows += nb201_rows(table, seeds, is_quick=options.quick)
        else:
            skip(case, f"no table at {table}: --table names it (sources: docs/tabular-benchmarks.md)")
    return finish(rows, json_path=options.json)


if __name__ == "__main__":
    raise SystemExit(main())
