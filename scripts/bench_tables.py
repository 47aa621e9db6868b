"""Compare searched networks with scikit-learn's MLP and gradient boosting on four tables: iris, wine, cancer, diabetes.

    python scripts/bench_tables.py [--raw] [--quick] [--json FILE]

Each table is one run of configs/table.yaml. The search's side is rank 0 of its final stage. All sides use the same
splits and five seeds; a table's score is the mean test score (accuracy, or r2 for diabetes). The normalised rank of a
side is 0 for the best and 1 for the worst, its mean is over the tables; equal scores share their rank.

With --raw, six tables with gaps, texts and dates, two of 20,000 rows, each by
`gflownet train task=table task_options.data=FILE` with its defaults on two cores. The estimators have the same
preprocessing and their own defaults; the search is compared with boosting and forest seed by seed. The goal: at least
as good as the random forest on three of six tables, in 180 seconds each; a new process then predicts raw rows with the
saved model.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from statistics import mean, stdev
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from sklearn import datasets

from gflownet.report.results import read_results
from gflownet.train import main as train
from scripts.bench import Row, at_least, at_most, figure, finish, parse_arguments

NUM_LARGE = 20_000
_GAPS = 0.1  # share of the cells of a bundled table that are left empty
_START = date(2018, 1, 1)
Cells = Mapping[str, Sequence[object]]


def write_table(name: str, folder: Path, *, num_rows: int = NUM_LARGE) -> Path:
    """Write a table as CSV file; `num_rows` bounds the generated ones."""
    cells = RAW_TABLES[name](np.random.default_rng(0), num_rows)
    path = folder / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
    return path


def _bundled(name: str, texts: Mapping[int, Sequence[str]]) -> Callable[[np.random.Generator, int], Cells]:
    """Return a table of scikit-learn with gaps; the columns `texts` have the names of their quantiles as cells."""

    def cells(rng: np.random.Generator, num_rows: int) -> Cells:
        loaded = getattr(datasets, f"load_{name}")()
        columns: dict[str, Sequence[object]] = {}
        for place, (column, values) in enumerate(zip(loaded.feature_names, loaded.data.T, strict=True)):
            each = [f"{value:.5g}" for value in values]
            if (names := texts.get(place)) is not None:
                edges = np.quantile(values, np.linspace(0, 1, len(names) + 1)[1:-1])
                each = [names[int(place)] for place in np.searchsorted(edges, values).tolist()]
            columns[column] = _with_gaps(each, rng, _GAPS)
        columns["recorded"] = [_day(day) for day in rng.integers(0, 2000, len(loaded.target))]  # says nothing
        is_number = name == "diabetes"
        columns["target"] = [each if is_number else str(loaded.target_names[each]) for each in loaded.target]
        return columns

    return cells


def _with_gaps(cells: Sequence[object], rng: np.random.Generator, share: float | np.ndarray) -> list[object]:
    return ["" if is_gap else cell for cell, is_gap in zip(cells, rng.random(len(cells)) < share, strict=True)]


def _day(day: int) -> str:
    return (_START + timedelta(days=int(day))).isoformat()


def _friedman(rng: np.random.Generator, num_rows: int) -> Cells:
    """Return 2,000 rows of Friedman's first function with two categories and gaps; the target is a number."""
    num = min(2_000, num_rows)
    x = rng.random((num, 8))
    material, line = rng.integers(0, 5, num), rng.integers(0, 3, num)
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y += np.array([0, 2, -3, 5, 1])[material] + np.array([1.0, 0.8, 1.2])[line] * 3 + rng.normal(size=num)
    columns = {f"x{k}": _with_gaps([f"{value:.4f}" for value in x[:, k]], rng, 0.05) for k in range(8)}
    named = {
        "material": _with_gaps([f"material {chr(65 + each)}" for each in material], rng, 0.05),
        "line": [("north", "south", "west")[each] for each in line],
        "made": [_day(day) for day in rng.integers(0, 900, num)],
    }
    return columns | named | {"strength": [f"{value:.3f}" for value in y]}


def _sales(rng: np.random.Generator, num_rows: int) -> Cells:
    """Return the daily sales of 40 shops: season, weekday, trend, promotion and price; the target is a number."""
    days, shops = rng.integers(0, 1500, num_rows), rng.integers(0, 40, num_rows)
    size, slope = rng.lognormal(0, 0.4, 40), rng.normal(-0.8, 0.3, 40)
    price, promotion = rng.normal(10, 1.5, num_rows).clip(5, 15), rng.random(num_rows) < 0.25
    weekday = np.array([1.0, 0.9, 0.9, 1.0, 1.2, 1.6, 0.5])[(days + 1) % 7]
    season = 1 + 0.3 * np.sin(2 * np.pi * days / 365.25)
    demand = 100 * size[shops] * weekday * season * (1 + 0.0002 * days) * (price / 10) ** slope[shops]
    demand *= np.where(promotion, 1.4, 1.0) * rng.lognormal(0, 0.15, num_rows)
    return {
        "day": [_day(day) for day in days],
        "shop": [f"shop {shop:02}" for shop in shops],
        "price": _with_gaps([f"{value:.2f}" for value in price], rng, 0.08),
        "promotion": _with_gaps([("no", "yes")[each] for each in promotion.astype(int)], rng, 0.03),
        "area": _with_gaps([f"{200 * size[shop]:.0f}" for shop in shops], rng, 0.15),
        "sales": [f"{value:.1f}" for value in demand],
    }


def _contracts(rng: np.random.Generator, num_rows: int) -> Cells:
    """Return contracts of which about an eighth are cancelled; values are missing more often for the cancelled ones."""
    months, fee = rng.integers(1, 72, num_rows), rng.gamma(4, 15, num_rows)
    calls, plan = rng.poisson(1.5, num_rows), rng.integers(0, 4, num_rows)
    region, age = rng.integers(0, 25, num_rows), rng.normal(45, 15, num_rows).clip(18, 90)
    logit = -2.2 + 0.8 * np.sin(months / 6) - 0.03 * months + 0.02 * fee + 0.35 * calls * (plan < 2)
    logit += np.array([0.8, 0.2, -0.5, -1.0])[plan] + rng.normal(0, 0.5, 25)[region] + 0.8 * ((age < 28) & (fee > 70))
    is_cancelled = rng.random(num_rows) < 1 / (1 + np.exp(-logit))
    rare = np.where(is_cancelled, 0.2, 0.08)
    return {
        "since": [_day(1800 - 30 * month) for month in months],
        "plan": [("basic", "plus", "family", "office")[each] for each in plan],
        "fee": _with_gaps([f"{value:.2f}" for value in fee], rng, 0.05),
        "calls": _with_gaps([str(each) for each in calls], rng, rare),
        "region": [f"region {each}" for each in region],
        "age": _with_gaps([f"{value:.0f}" for value in age], rng, rare),
        "customer": [f"c{number:06}" for number in rng.permutation(num_rows)],
        "cancelled": [("no", "yes")[each] for each in is_cancelled.astype(int)],
    }


RAW_TABLES: Mapping[str, Callable[[np.random.Generator, int], Cells]] = {
    "wine": _bundled("wine", {9: ("pale", "medium", "deep"), 0: ("light", "strong")}),
    "breast_cancer": _bundled("breast_cancer", {3: ("small", "medium", "large"), 24: ("smooth", "rough")}),
    "diabetes": _bundled("diabetes", {0: ("young", "middle", "old"), 1: ("f", "m")}),
    "friedman": _friedman,
    "sales": _sales,
    "contracts": _contracts,
}


TABLES = ("iris", "wine", "breast_cancer", "diabetes")
SEARCH = "search"
FOREST, BOOSTING = "forest", "boosting"
ESTIMATORS = {
    "scikit-learn MLP": "MLP",
    "scikit-learn HistGradientBoosting": BOOSTING,
    "scikit-learn RandomForest": FOREST,
}
OPTIONS = ("wandb.mode=disabled", "evaluation.executor=inline", "final.num_random=0", "print_every=1000")
RAW_OPTIONS = ("wandb.mode=disabled", "print_every=1000")
RAW_QUICK, NUM_QUICK = ("wine", "friedman"), 400
MAX_SECONDS, MIN_TABLES = 180, 3
QUICK = ("num_training_steps=2", "evaluation.num_epochs=3", "final.top=2", "final.num_seeds=2")


def test_scores(table: str, run: Path, *, options: Sequence[str]) -> dict[str, Sequence[float]]:
    """Return the test scores of each side on a table, by seed, after a run in a folder."""
    status = train(["--config", "table", f"task_options.data={table}", f"log_dir={run}", *options])
    if status:
        raise SystemExit(status)
    best, *_ = json.loads((run / "top_architectures.json").read_text())
    references = [each.reference for each in read_results(run).comparisons]
    known = (each for each in references if each.name in ESTIMATORS)
    scores = {ESTIMATORS[each.name]: [test for test in each.tests if test is not None] for each in known}
    return {SEARCH: best["final"]["test_scores"], **scores}


def raw_rows(*, quick: bool) -> Iterator[Row]:
    """Yield the scores, paired by seed, and the seconds of the raw tables, and the predictions of a new process."""
    num_as_good, names = 0, RAW_QUICK if quick else tuple(RAW_TABLES)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path, run = write_table(name, Path(folder), num_rows=NUM_QUICK if quick else NUM_LARGE), Path(folder, "run")
            start = perf_counter()
            scores = test_scores(str(path), run, options=(*RAW_OPTIONS, *(QUICK if quick else ())))
            seconds = perf_counter() - start
            yield from (figure(f"{name}: {side}", mean(each), "mean test score") for side, each in scores.items())
            for side in (BOOSTING, FOREST):
                gains = [own - other for own, other in zip(scores[SEARCH], scores[side], strict=False)]
                margin = 2 * stdev(gains) / len(gains) ** 0.5
                yield figure(f"{name}: {SEARCH} - {side}, by seed", mean(gains), f"± {margin:.4f} of {len(gains)}")
            yield at_most(f"{name}: run", seconds, "s", None if quick else MAX_SECONDS)
            yield figure(f"{name}: rows predicted by a new process", num_predicted(run, path), "rows")
        num_as_good += mean(scores[SEARCH]) >= mean(scores[FOREST])
    yield at_least("tables as good as the forest", num_as_good, f"of {len(names)}", None if quick else MIN_TABLES)


def num_predicted(run: Path, table: Path) -> int:
    """Return the number of raw rows that a new process predicts with the model of a run."""
    code = (
        "import csv, gflownet, sys; rows = list(csv.DictReader(open(sys.argv[2]))); "
        "print(len(gflownet.load(sys.argv[1]).predict(rows)))"
    )
    done = subprocess.run([sys.executable, "-c", code, run, table], capture_output=True, text=True, check=True)
    return int(done.stdout)


def normalised_ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """Return 0 for the best side and 1 for the worst; equal scores share the mean of their ranks."""
    others = len(scores) - 1
    return {
        side: sum((other > score) + (other == score) / 2 for name, other in scores.items() if name != side) / others
        for side, score in scores.items()
    }


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__, raw="tables with gaps, texts and dates")
    if arguments.raw:
        return finish(list(raw_rows(quick=arguments.quick)), json_path=arguments.json)
    rows: list[Row] = []
    ranks: list[dict[str, float]] = []
    for table in TABLES:
        start = process_time()
        with tempfile.TemporaryDirectory() as folder:
            options = (*OPTIONS, *(QUICK if arguments.quick else ()))
            scores = {
                side: mean(each) for side, each in test_scores(table, Path(folder, "run"), options=options).items()
            }
        rows += [figure(f"{table}: {side}", score, "mean test score") for side, score in scores.items()]
        rows.append(figure(f"{table}: run", process_time() - start, "CPU s"))
        ranks.append(normalised_ranks(scores))
    rows += [figure(f"{side}", mean(each[side] for each in ranks), "mean normalised rank") for side in ranks[0]]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
