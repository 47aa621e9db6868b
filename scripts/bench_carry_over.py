"""Searches of one space that start from the evaluations of an earlier one: NAS-Bench-201 from data set to data set.

    python scripts/bench_carry_over.py [--table FILE] [--seeds N] [--quick] [--json FILE]

For each seed a search of CIFAR-10 (150 evaluations) is followed by searches of CIFAR-100 and ImageNet16-120 that start
from it (search.prior), 10 evaluations each: whether they find the cell with the best score of the table. An unrelated
source, random cells with random scores, must not cost more than a twentieth: evaluations until 99 % of the best score
of CIFAR-100, of searches with it over those of searches without. Exit status 77 without the table.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.evaluation.store.database import STORE_NAME
from gflownet.evaluation.store.evaluations import EvaluationStore
from gflownet.evaluation.store.overview import StoreOverview
from gflownet.evaluation.store.rows import EvaluationRecord
from gflownet.train import main as train
from scripts.bench import SKIPPED, at_least, at_most, finish, parse_arguments

SOURCE, TARGETS = "c10_val12", ("c100_val12", "in16_val12")
NUM_SOURCE, NUM_TARGET, NUM_UNRELATED, NUM_SEEDS = 150, 10, 60, 20
NUM_FOUND, MAX_COST, NEAR = 18, 1.05, 0.99
_COMMON = (
    "task_options.test_column=",
    "search.train_sampler=false",
    "final.top=0",
    "wandb.mode=disabled",
    "report.every=null",
)


def searched(folder: Path, table: Path, column: str, num: int, seed: int, *options: str) -> list[EvaluationRecord]:
    """Search a data set in a new run folder, and return its evaluations by age."""
    arguments = [f"task_options.table={table}", f"task_options.column={column}", f"budget.evaluations={num}"]
    with redirect_stdout(io.StringIO()):
        status = train(["--config", "cells", *arguments, *_COMMON, f"seed={seed}", f"log_dir={folder}", *options])
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


def main() -> int:
    """Measure, and print the rows."""
    options = parse_arguments(
        __doc__,
        paths={"table": "nb201.csv.gz of docs/tabular-benchmarks.md"},
        numbers={"seeds": f"number of seeds, {NUM_SEEDS} by default"},
    )
    table = options.table or Path("nb201.csv.gz")
    if not table.is_file():
        print(f"no table at {table}: --table names it (sources: docs/tabular-benchmarks.md)")
        return SKIPPED
    with gzip.open(table, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    best = {column: max(float(row[column]) for row in rows if row[column]) / 100 for column in (SOURCE, *TARGETS)}
    num_seeds = 1 if options.quick else options.seeds or NUM_SEEDS
    found, cost = dict.fromkeys(TARGETS, 0), {"unrelated": list[int](), "none": list[int]()}
    for seed in range(num_seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            num_source = 30 if options.quick else NUM_SOURCE
            searched(folder / "source", table, SOURCE, num_source, seed)
            prior = f"search.prior=[{folder / 'source'}]"
            for column in TARGETS:
                records = searched(folder / column, table, column, NUM_TARGET, seed, prior)
                found[column] += until(records, best[column] - 1e-9) <= NUM_TARGET
            rows = searched(folder / "random", table, SOURCE, num_source, seed, "search.method=random")
            shuffle_scores(rows, folder / "shuffled.sqlite", seed)
            for side, prior in (("unrelated", [f"search.prior=[{folder / 'shuffled.sqlite'}]"]), ("none", [])):
                num = 20 if options.quick else NUM_UNRELATED
                records = searched(folder / side, table, TARGETS[0], num, seed, *prior)
                cost[side].append(until(records, NEAR * best[TARGETS[0]]))
        print(f"seed {seed}: found {found}, evaluations to {NEAR:.0%} {cost}", flush=True)
    needed = None if options.quick else NUM_FOUND * num_seeds / NUM_SEEDS
    return finish(
        [
            *(at_least(f"optimum of {name} within {NUM_TARGET}", found[name], "seeds", needed) for name in TARGETS),
            at_most(
                "evaluations with an unrelated source, over those without",
                mean(cost["unrelated"]) / mean(cost["none"]),
                "",
                None if options.quick else MAX_COST,
            ),
        ],
        json_path=options.json,
    )


if __name__ == "__main__":
    raise SystemExit(main())
