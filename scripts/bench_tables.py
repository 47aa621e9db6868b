"""Compare searched networks with scikit-learn's MLP and gradient boosting on four tables: iris, wine, cancer, diabetes.

    python scripts/bench_tables.py [--raw] [--quick] [--json FILE]

Each table is one run of configs/table.yaml. The search's side is rank 0 of its final stage. All sides use the same
splits and five seeds; a table's score is the mean test score (accuracy, or r2 for diabetes). The normalised rank of a
side is 0 for the best and 1 for the worst, its mean is over the tables; equal scores share their rank.

With --raw, the six tables of scripts/raw_tables.py with gaps, texts and dates, two of 20,000 rows, each by
`gflownet train task=table task_options.data=FILE` with its defaults on two cores. The estimators have the same
preprocessing. The goal: at least as good as the random forest on three of six tables, in 180 seconds each; a new
process then predicts raw rows with the saved model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.train import main as train
from scripts.bench import Row, at_least, at_most, figure, finish, parse_arguments
from scripts.raw_tables import NUM_LARGE, RAW_TABLES, write_table

TABLES = ("iris", "wine", "breast_cancer", "diabetes")
SEARCH = "search"
FOREST = "forest"
ESTIMATORS = {
    "scikit-learn MLP": "MLP",
    "scikit-learn HistGradientBoosting": "boosting",
    "scikit-learn RandomForest": FOREST,
}
OPTIONS = ("wandb.mode=disabled", "evaluation.executor=inline", "final.num_random=0", "print_every=1000")
RAW_OPTIONS = ("wandb.mode=disabled", "print_every=1000")
RAW_QUICK, NUM_QUICK = ("wine", "friedman"), 400
MAX_SECONDS, MIN_TABLES = 180, 3
QUICK = ("num_training_steps=2", "evaluation.num_epochs=3", "final.top=2", "final.num_seeds=2")


def test_scores(table: str, run: Path, *, options: Sequence[str]) -> dict[str, float]:
    """Return the mean test score of each side on a table after a run in a folder."""
    status = train(["--config", "table", f"task_options.data={table}", f"log_dir={run}", *options])
    if status:
        raise SystemExit(status)
    best, *_ = json.loads((run / "top_architectures.json").read_text())
    references = json.loads((run / "references.json").read_text())
    scores = {ESTIMATORS[each["name"]]: each["test_score"] for each in references if each["name"] in ESTIMATORS}
    return {SEARCH: best["test_score"], **scores}


def raw_rows(*, quick: bool) -> Iterator[Row]:
    """Yield the scores and the seconds of the raw tables, and how many predictions of a new process are right."""
    num_as_good, names = 0, RAW_QUICK if quick else tuple(RAW_TABLES)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path, run = write_table(name, Path(folder), num_rows=NUM_QUICK if quick else NUM_LARGE), Path(folder, "run")
            start = perf_counter()
            scores = test_scores(str(path), run, options=(*RAW_OPTIONS, *(QUICK if quick else ())))
            seconds = perf_counter() - start
            yield from (figure(f"{name}: {side}", score, "mean test score") for side, score in scores.items())
            yield at_most(f"{name}: run", seconds, "s", None if quick else MAX_SECONDS)
            yield figure(f"{name}: rows predicted by a new process", num_predicted(run, path), "rows")
        num_as_good += scores[SEARCH] >= scores[FOREST]
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
            scores = test_scores(table, Path(folder, "run"), options=options)
        rows += [figure(f"{table}: {side}", score, "mean test score") for side, score in scores.items()]
        rows.append(figure(f"{table}: run", process_time() - start, "CPU s"))
        ranks.append(normalised_ranks(scores))
    rows += [figure(f"{side}", mean(each[side] for each in ranks), "mean normalised rank") for side in ranks[0]]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
