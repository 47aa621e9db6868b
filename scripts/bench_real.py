"""Compare the default search with random search, evolution and Optuna's TPE on five real problems.

    python scripts/bench_real.py [--only PROBLEM,...] [--seeds N] [--trainings N] [--jobs N] [--out FOLDER] [--quick]
        [--json FILE]

Every side trains the same number of candidates, final trainings included, and returns one model; its figure is the mean
test score of five more trainings on seeds that no side has used. Sides of the product are runs that differ in
search.method; TPE is Optuna's own loop over the decisions of a construction, with its defaults, and returns its best
trial. A repeated command continues in --out, where each side's scores stay in the order of its trainings.

On recorded spaces (--only recorded_mnist1d,recorded_digits --seeds 20, --trainings 60 and 150) the other sides get
more trainings, `MULTIPLES`, and the figure is the recorded mean over seeds.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, redirect_stdout
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scipy.stats import t as student

from gflownet.config import load_config
from gflownet.evaluation.final import NoStore
from gflownet.evaluation.fingerprint import context_of
from gflownet.evaluation.job import TEST_METRIC, Request
from gflownet.evaluation.store import EvaluationStore
from gflownet.evaluation.store_database import STORE_NAME
from gflownet.files import write_whole
from gflownet.report.architectures import TOP_NAME
from gflownet.run.trainer import GFNTrainer
from gflownet.search.tpe import construct
from gflownet.train import main as train
from scripts.bench import Row, figure, finish
from scripts.real_problems import PLACES

NUM_TRAININGS, NUM_SEEDS, NUM_FRESH = 60, 4, 5
QUICK_TRAININGS, QUICK_SEEDS = 8, 1
SEARCHED, TPE = "auto", "tpe"
SIDES = (SEARCHED, "random", "evolution", TPE)
# The population of 50 would be the whole search.
EVOLUTION = ("search.options.population=15", "search.options.tournament=5")
COMMON = ("wandb.mode=disabled", "evaluation.executor=inline", "final.num_random=0", "print_every=1000")
FRESH_REPEAT = 2_000_000  # the seeds after it are those of no run
_HERE = "scripts.real_problems"
_TABLES = Path(__file__).resolve().parent.parent / "tests" / "data"
PROBLEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "mnist1d": ("mnist1d", ("env.operation_graph.max_parameters=2500", "final.epochs=null")),
    "images": ("images", ("env.operation_graph.max_parameters=1000", "evaluation.num_epochs=3", "final.epochs=null")),
    "regression": (
        "table",
        (f"task_options.data={_HERE}:slant", "evaluation.num_epochs=2", "evaluation.batch_size=32"),
    ),
    "classification": ("table", ("task_options.data=digits", "evaluation.num_epochs=2", "evaluation.batch_size=32")),
    "choices": (
        "choices",
        (
            f"task_options.score={_HERE}:score",
            f"task_options.test={_HERE}:test",
            f"env.choices.places={json.dumps(PLACES)}",
        ),
    ),
}
_LOOKED_UP = ("search.train_sampler=false", "report.every=null")
# Trainings are looked up: problems that run only when they are named.
RECORDED: dict[str, tuple[str, tuple[str, ...]]] = {
    name: (name, (f"task_options.table={_TABLES / name}.csv.gz", *_LOOKED_UP))
    for name in ("recorded_mnist1d", "recorded_digits")
}
# Trainings of each side on a recorded space, in those of the searched side.
MULTIPLES = {"random": 3.0, "evolution": 1.5, TPE: 1.5}


@dataclass(frozen=True)
class Result:
    """What one side found with one seed."""

    fresh: list[float]  # test scores of the returned model
    scores: list[float]  # of the trainings of the search, in order
    num_trainings: int
    cpu_seconds: float


def result_of(problem: str, side: str, seed: int, num_trainings: int) -> Result:
    """Let one side search."""
    config, options = (PROBLEMS | RECORDED)[problem]
    start = process_time()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*options, *COMMON, f"seed={seed}", f"log_dir={folder}/run"]
        components = GFNTrainer(load_config(config, overrides))
        if side == TPE:
            graph, scores = _optuna(components, num_trainings, seed)
            num_done = len(scores)
        else:
            method = [f"search.method={side}", f"budget.evaluations={num_trainings}"]
            method += EVOLUTION if side == "evolution" else ()
            if status := train(["--config", config, *overrides, *method]):
                raise SystemExit(status)
            best, *_ = json.loads(Path(folder, "run", TOP_NAME).read_text())
            graph = components.env.terminal_type.from_dict(best["graph"])
            with EvaluationStore(Path(folder, "run", STORE_NAME), context=context_of(components.task)) as store:
                rows = list(store)
            scores, num_done = [row.score for row in rows if not row.seed], len(rows)
        seconds = process_time() - start
        fresh = _scores(components, graph, range(FRESH_REPEAT, FRESH_REPEAT + NUM_FRESH), tests=True)
    return Result(fresh, scores, num_done, seconds)


def _optuna(components: GFNTrainer, num_trainings: int, seed: int) -> tuple[Any, list[float]]:
    """Return the best candidate of Optuna's loop, and the scores of all trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    candidates = []

    def objective(trial: Any) -> float:
        state = construct(components.env, lambda name, size: trial.suggest_categorical(name, range(size)))
        candidates.append(components.env.terminal(state, 0))
        return _scores(components, candidates[-1], [0])[0]

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=num_trainings)
    return candidates[study.best_trial.number], [float(trial.value or 0.0) for trial in study.trials]


def _scores(components: GFNTrainer, candidate: Any, repeats: Sequence[int], *, tests: bool = False) -> list[float]:
    """Return the scores of new trainings, or their test scores."""
    requests = [Request(candidate, repeat=repeat, tests=tests) for repeat in repeats]
    with components.build_executor() as executor, closing(components.build_evaluator(NoStore(), executor)) as each:
        records = [ticket.record for ticket in each.complete(requests, step=0)]
    return [record.metrics.get(TEST_METRIC, 0.0) if tests else record.score for record in records if record]


def rows_of(problem: str, results: Mapping[str, Sequence[Result]], *, has_goals: bool) -> Iterator[Row]:
    """Yield the means of the returned models and of the gains of the searched side, with intervals of 95 %."""
    means = {side: [mean(result.fresh) for result in each] for side, each in results.items()}
    for side, values in means.items():
        low, high = _interval(values)
        yield figure(f"{problem}: {side} [{low:.4f}, {high:.4f}]", mean(values), "test")
        yield figure(f"{problem}: {side}, CPU seconds", mean(each.cpu_seconds for each in results[side]), "s")
        num_most = max(each.num_trainings for each in results[side])
        yield figure(f"{problem}: {side}, trainings", num_most)
    for other in (side for side in means if side != SEARCHED and SEARCHED in means):
        gain = mean(means[SEARCHED]) - mean(means[other])
        low, high = _interval([a - b for a, b in zip(means[SEARCHED], means[other], strict=True)])
        goal = ">= 0" if has_goals and (other in ("random", TPE) or problem in RECORDED) else ""
        yield Row(f"{problem}: above {other} [{low:+.4f}, {high:+.4f}]", gain, "", goal, not goal or gain >= 0)


def reference_rows(problem: str) -> Iterator[Row]:
    """Yield the mean test score of each standard method that a run of the problem compares with, on the same splits."""
    config, options = (PROBLEMS | RECORDED)[problem]
    with tempfile.TemporaryDirectory() as folder:
        task = GFNTrainer(load_config(config, [*options, *COMMON, f"log_dir={folder}/run"])).task
    for reference in task.references(seeds=range(FRESH_REPEAT, FRESH_REPEAT + NUM_FRESH)):
        yield figure(f"{problem}: {reference.name}", mean(reference.test or [0.0]), "test")


def trainings_of(problem: str, side: str, num: int) -> int:
    """Return the trainings of a side where the searched one has `num`."""
    return round(num * MULTIPLES.get(side, 1.0)) if problem in RECORDED else num


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of a mean."""
    half = student.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return mean(values) - half, mean(values) + half


def _job(path: Path, problem: str, side: str, seed: int, num_trainings: int) -> None:
    """Write the result of one side, unless it is there."""
    if not path.exists():
        with redirect_stdout(io.StringIO()):
            result = result_of(problem, side, seed, num_trainings)
        write_whole(path, json.dumps(asdict(result), indent=1))
        print(f"{problem}, {side}, seed {seed}: {mean(result.fresh):.4f}, {result.cpu_seconds:.0f} CPU s", flush=True)


def _start() -> None:
    import torch

    torch.set_num_threads(1)


def main() -> int:
    """Run the comparison and return the exit status."""
    arguments = _parser().parse_args()
    chosen = arguments.only.split(",") if arguments.only else PROBLEMS
    names = [name for name in PROBLEMS | RECORDED if name in chosen]
    names = names[-1:] if arguments.quick and not arguments.only else names
    num_trainings = QUICK_TRAININGS if arguments.quick else arguments.trainings
    seeds = range(QUICK_SEEDS if arguments.quick else arguments.seeds)
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        nums = {key: trainings_of(*key[:2], num_trainings) for key in product(names, SIDES, seeds)}
        jobs = {key: out / "_".join(map(str, (*key, num))) for key, num in nums.items()}
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.jobs, context, _start) as pool:
            futures = [pool.submit(_job, path, *key, nums[key]) for key, path in jobs.items()]
            for future in futures:
                future.result()
        found = {key: Result(**json.loads(path.read_text())) for key, path in jobs.items()}
    rows: list[Row] = []
    for name in names:
        results = {side: [found[name, side, seed] for seed in seeds] for side in SIDES}
        rows += [*rows_of(name, results, has_goals=not arguments.quick), *reference_rows(name)]
    return finish(rows, json_path=arguments.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        metavar="PROBLEM,...",
        default="",
        help=f"of {', '.join(PROBLEMS)} (default: all), {', '.join(RECORDED)}",
    )
    parser.add_argument("--seeds", type=int, metavar="N", default=NUM_SEEDS, help=f"default: {NUM_SEEDS}")
    parser.add_argument("--trainings", type=int, metavar="N", default=NUM_TRAININGS, help=f"default: {NUM_TRAININGS}")
    parser.add_argument("--jobs", type=int, metavar="N", default=2, help="sides at the same time; default: 2")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="results that stay")
    parser.add_argument("--quick", action="store_true", help="a smaller run of less than 60 CPU seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
