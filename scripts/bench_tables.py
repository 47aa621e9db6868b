"""Compare searched networks with scikit-learn's MLP and gradient boosting on four tables: iris, wine, cancer, diabetes.

    python scripts/bench_tables.py [--quick] [--json FILE]

Each table is one run of configs/table.yaml. The search's side is rank 0 of its final stage. All sides use the same
splits and five seeds; a table's score is the mean test score (accuracy, or r2 for diabetes). The normalised rank of a
side is 0 for the best of the three and 1 for the worst, its mean is over the tables; equal scores share their rank.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.train import main as train
from scripts.bench import Row, figure, finish, parse_arguments

TABLES = ("iris", "wine", "breast_cancer", "diabetes")
SEARCH = "search"
ESTIMATORS = {"scikit-learn MLP": "MLP", "scikit-learn HistGradientBoosting": "boosting"}
OPTIONS = ("wandb.mode=disabled", "evaluation.executor=inline", "final.num_random=0", "print_every=1000")
QUICK = ("num_training_steps=2", "evaluation.num_epochs=3", "final.top=2", "final.num_seeds=2")


def test_scores(table: str, *, options: Sequence[str]) -> dict[str, float]:
    """Return the mean test score of each side on a table."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        status = train(["--config", "table", f"task_options.data={table}", f"log_dir={run}", *OPTIONS, *options])
        if status:
            raise SystemExit(status)
        best, *_ = json.loads((run / "top_architectures.json").read_text())
        references = json.loads((run / "references.json").read_text())
    scores = {ESTIMATORS[each["name"]]: each["test_score"] for each in references if each["name"] in ESTIMATORS}
    return {SEARCH: best["test_score"], **scores}


def normalised_ranks(scores: Mapping[str, float]) -> dict[str, float]:
    """Return 0 for the best side and 1 for the worst; equal scores share the mean of their ranks."""
    others = len(scores) - 1
    return {
        side: sum((other > score) + (other == score) / 2 for name, other in scores.items() if name != side) / others
        for side, score in scores.items()
    }


def main() -> int:
    """Run the benchmark and return the exit status."""
    arguments = parse_arguments(__doc__)
    rows: list[Row] = []
    ranks: list[dict[str, float]] = []
    for table in TABLES:
        start = process_time()
        scores = test_scores(table, options=QUICK if arguments.quick else ())
        rows += [figure(f"{table}: {side}", score, "mean test score") for side, score in scores.items()]
        rows.append(figure(f"{table}: run", process_time() - start, "CPU s"))
        ranks.append(normalised_ranks(scores))
    rows += [figure(f"{side}", mean(each[side] for each in ranks), "mean normalised rank") for side in ranks[0]]
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
