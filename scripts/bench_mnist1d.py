"""Compare the search with random search and regularised evolution at equal evaluations on mnist1d.

    python scripts/bench_mnist1d.py [--quick] [--evaluations N] [--seeds N] [--json FILE]

All sides are runs of configs/mnist1d_large.yaml that differ in `search.method`. Each evaluates N architectures per
seed; its best ones are trained again on new seeds by the final stage, and the one with the best mean validation score
is reported with its mean test score.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.config import load_config
from gflownet.evaluation.fingerprint import context_of
from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.store_database import STORE_NAME
from gflownet.report.architectures import TOP_NAME
from gflownet.trainer import GFNTrainer
from scripts.bench import Row, at_least, at_most, figure, finish, parse_arguments

GOAL_TEST, MAX_PARAMETERS = 0.991, 5_210
EVALUATIONS, EVALUATIONS_QUICK = 400, 9
NUM_SEEDS = 3
QUICK = ("evaluation.num_epochs=1", "final.epochs=1", "final.num_seeds=2", "final.top=2", "algo.num_from_policy=3")
# The steps of the policy end with the budget; random architectures are a side of their own.
COMMON = ("num_training_steps=100000", "final.num_random=0", "wandb.mode=disabled", "print_every=20")
# The batches of the baselines keep several processes busy.
BATCHES = "search.batch_size=8"
SEARCH = "search"
SIDES = {
    SEARCH: (),
    "random search": ("search.method=random", BATCHES),
    "regularised evolution": ("search.method=evolution", BATCHES),
}
POPULATION_QUICK = "search.options.population=3"


@dataclass(frozen=True)
class Result:
    """The best architecture of one side, after the final stage."""

    validation: float  # mean of the new seeds
    test: float
    num_parameters: int
    seconds: float  # of the search
    scores: tuple[float, ...]  # of all successful evaluations of the search


def search(options: Sequence[str], folder: Path) -> Result:
    """Run one side."""
    trainer = GFNTrainer(load_config("mnist1d_large", [*options, f"log_dir={folder}"]))
    trainer.run()
    (best, *_) = json.loads((folder / TOP_NAME).read_text(encoding="utf-8"))
    with EvaluationStore(folder / STORE_NAME, context=context_of(trainer.task)) as store:
        scores = tuple(record.score for record in store.top(sys.maxsize))
    final = best["final"]
    return Result(final["mean"], best["test_score"], best["num_parameters"], trainer.progress.seconds, scores)


def rows_of(name: str, result: Result, *, label: str, has_goal: bool) -> list[Row]:
    """Return the figures of one side."""
    goal, cap = (GOAL_TEST, MAX_PARAMETERS) if has_goal else (None, None)
    title = f"{label}, {name}"
    return [
        figure(f"{title}: evaluations", len(result.scores)),
        figure(f"{title}: search", result.seconds, "s"),
        figure(f"{title}: mean score", mean(result.scores)),
        figure(f"{title}: best score", max(result.scores)),
        figure(f"{title}: validation, new seeds", result.validation),
        at_least(f"{title}: test, new seeds", result.test, "", goal),
        at_most(f"{title}: parameters", result.num_parameters, "", cap),
    ]


def main() -> int:
    """Run the comparison and return the exit status."""
    numbers = {"evaluations": f"per side and seed, default {EVALUATIONS}", "seeds": f"default {NUM_SEEDS}"}
    arguments = parse_arguments(__doc__, numbers=numbers)
    num_evaluations = arguments.evaluations or (EVALUATIONS_QUICK if arguments.quick else EVALUATIONS)
    sides, rows = dict(SIDES), []
    if arguments.quick:
        sides["regularised evolution"] += (POPULATION_QUICK,)
    for seed in range(arguments.seeds or (1 if arguments.quick else NUM_SEEDS)):
        options = [*(QUICK if arguments.quick else ()), f"seed={seed}", *COMMON]
        options += [f"budget.evaluations={num_evaluations}"]
        with tempfile.TemporaryDirectory() as folder:
            results = {name: search([*options, *side], Path(folder, name)) for name, side in sides.items()}
        for name, result in results.items():
            has_goal = name == SEARCH and not arguments.quick
            rows += rows_of(name, result, label=f"seed {seed}", has_goal=has_goal)
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
