"""Measure bits per byte of RHN, GRU, LSTM, transformer and a searched stack at equal parameters and equal cost.

    python scripts/bench_language.py [--steps | --seconds] [--stack FILE] [--results FILE] [--quick] [--json FILE]
    python scripts/bench_language.py --blocks FOLDER [--trainings N] [--searches N] [--steps | --seconds] [...]

Every model has 97,000 parameters and reads bytes of the Python standard library (4 MB, split by file) in batches of 16
rows of 64 bytes. It is trained by the product's loop (evaluation/candidates/language.py: Adam, warm-up, cosine)
for 300 steps, or for 10 CPU seconds of training steps on one thread. For each budget and side: the form (depth, rank)
is the best on validation text at the rate 0.01, the rate is the best of a grid of four, extended while the best one is
at an edge; both with seed 0. The rows are means of the test text over the seeds 1, 2, 3.

--stack: the searched stack is the first entry of a top_architectures.json; without it, GRU > RHN of rank 2, the best of
an earlier search. --results: every training is saved as one line; a second call continues from there.

--blocks: at 200,000 parameters, the best of a search of each seed (configs/text_blocks.yaml, bits per byte alone) and
of random search with as many trainings, tuned and trained like the transformer, GRU and LSTM. No search and no tuning
reads the test text. FOLDER keeps the runs and trainings; a second call continues there.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.evaluation.candidates.language import UNIFORM_BITS, LanguageTraining
from gflownet.evaluation.data.byte_text import read_bytes
from gflownet.report.architectures import TOP_NAME
from gflownet.rhn.config import Norm, RHNConfig, StackLayer
from gflownet.train import main as train
from scripts.bench import Row, figure, finish, parse_arguments
from scripts.language_models import Form, Results, Trial, Trials, from_search, narrow_state, rhn, stack, transformer

Sides = Mapping[str, Sequence[Form]]
BUDGETS = "steps", "seconds"


@dataclass(frozen=True)
class Plan:
    """Sizes of a benchmark."""

    num_parameters: int = 97_000
    num_steps: int = 300
    seconds: float = 10.0  # CPU
    rows: int = 16
    sequence_length: int = 64
    rates: tuple[float, ...] = (0.0025, 0.005, 0.01, 0.02)
    form_rate: float = 0.01  # chooses among the forms of a side
    tuning_seed: int = 0
    seeds: tuple[int, ...] = (1, 2, 3)
    num_bytes: int = 65_536  # scored of each text
    num_searches: int = 3
    num_trainings: int = 48  # of a search of blocks, besides the final stage
    search_steps: int = 100


QUICK = Plan(
    num_parameters=20_000,
    num_steps=5,
    seconds=0.2,
    rows=4,
    sequence_length=16,
    rates=(0.01, 0.02),
    seeds=(1, 2),
    num_bytes=512,
    num_searches=1,
    num_trainings=6,
    search_steps=3,
)
SEARCHES = {"searched blocks": "auto", "random blocks": "random"}


def sides_of(num_parameters: int, searched: Path | None) -> Sides:
    """Return the forms of each side."""
    gru, lstm = StackLayer("gru"), StackLayer("lstm")
    mixed = gru, StackLayer("rhn", rank=2)
    norms: tuple[Norm, ...] = ("dora", "none")
    configs = [RHNConfig(depth=depth, rank=4, norm=norm) for norm in norms for depth in (1, 2)]
    return {
        "RHN": [rhn(num_parameters, config) for config in configs],
        "GRU": [
            *(stack(num_parameters, cells) for cells in ((gru,), (gru, gru))),
            narrow_state(num_parameters, state=64),
        ],
        "LSTM": [stack(num_parameters, (lstm,)), stack(num_parameters, (lstm, lstm))],
        "transformer": [transformer(num_parameters, depth=depth) for depth in (2, 4)],
        "searched stack": [from_search(searched) if searched else stack(num_parameters, mixed)],
    }


def with_blocks(sides: Sides, folder: Path, plan: Plan, results: Results) -> Sides:
    """Return transformer, GRU and LSTM, and the best blocks of a search of each seed, which continues in its folder.

    Raises:
        SystemExit: a search was stopped.
    """
    found = {name: sides[name] for name in ("transformer", "GRU", "LSTM")}
    sizes = [f"num_parameters={plan.num_parameters}", f"num_steps={plan.search_steps}"]
    sizes += [f"sequence_length={plan.sequence_length}", f"validation_bytes={plan.num_bytes // 8}"]
    options = [*(f"task_options.{size}" for size in sizes), f"evaluation.batch_size={plan.rows}", "resume=auto"]
    options += [f"budget.evaluations={plan.num_trainings}", "final.top=3", "final.num_seeds=2", "final.num_random=0"]
    options += ["evaluation.objectives=[]", "search.train_sampler=false", "wandb.mode=disabled", "console=quiet"]
    for seed in plan.seeds[: plan.num_searches]:
        for name, method in SEARCHES.items():
            run = folder / f"{method}_{seed}"
            if results.get([str(run.name), plan.num_trainings]) is None:
                own = [f"search.method={method}", f"seed={seed}", f"log_dir={run}"]
                if status := train(["--config", "text_blocks", *options, *own]):
                    raise SystemExit(status)
                results.add([str(run.name), plan.num_trainings], "ended")
            found[f"{name}, search {seed}"] = [from_search(run / TOP_NAME)]
    return found


def tuned(trials: Trials, sides: Sides, plan: Plan) -> dict[str, list[Trial]]:
    """Return the trials of all report seeds with the best form and rate of each side; sides take turns."""
    forms = {}
    for name, candidates in sides.items():
        by_form = {form: trials.train(form, plan.form_rate, plan.tuning_seed).validation for form in candidates}
        forms[name] = min(by_form, key=lambda form: by_form[form])
    rates = {name: trials.best_rate(form, plan.rates, plan.tuning_seed) for name, form in forms.items()}
    results: dict[str, list[Trial]] = {name: [] for name in sides}
    for seed in plan.seeds:
        for name, form in forms.items():
            results[name].append(trials.train(form, rates[name], seed, is_reported=True))
    return results


def rows_of(budget: str, sides: Sides, results: Mapping[str, Sequence[Trial]]) -> list[Row]:
    """Return the figures of each side under one budget."""
    rows = []
    for name, trials in results.items():
        form = next(form for form in sides[name] if form.name == trials[0].form)
        where = f"equal {budget}, {name} ({form.name}, rate {trials[0].learning_rate:g})"
        for part in ("validation", "test"):
            bits = [getattr(trial, part) for trial in trials]
            spread = f"bits per byte +- {statistics.stdev(bits):.3f} ({len(bits)} seeds)"
            rows.append(figure(f"{where}: {part}", statistics.mean(bits), spread))
        rows.append(figure(f"{where}: steps", statistics.mean(trial.steps for trial in trials)))
        rows.append(figure(f"{where}: CPU time", statistics.mean(trial.seconds for trial in trials), "s"))
        rows.append(figure(f"{where}: parameters", form.num_parameters))
        rows.append(figure(f"{where}: state of a sequence", form.state_floats, "floats"))
    for name in SEARCHES:
        if found := [trial for side, trials in results.items() if side.startswith(name) for trial in trials]:
            bits = [trial.test or UNIFORM_BITS for trial in found]
            spread = f"bits per byte +- {statistics.stdev(bits):.3f} ({len(bits)} trainings)"
            rows.append(figure(f"equal {budget}, {name}, all searches: test", statistics.mean(bits), spread))
    return rows


def main() -> int:
    """Run the benchmark and return the exit status."""
    paths = {"stack": "top_architectures.json of a search", "results": "file of the finished trainings"}
    paths["blocks"] = "folder of searches of blocks and their trainings"
    numbers = {"trainings": f"of a search of blocks; default: {Plan.num_trainings}"}
    numbers["searches"] = f"of blocks with each method; default: {Plan.num_searches}"
    budgets = {"steps": "only equal steps", "seconds": "only equal CPU seconds"}
    options = parse_arguments(__doc__, texts=None, numbers=numbers, paths=paths, **budgets)
    torch.set_num_threads(1)
    plan = QUICK if options.quick else Plan(num_parameters=200_000) if options.blocks else Plan()
    given = {"num_trainings": options.trainings, "num_searches": options.searches}
    plan = replace(plan, **{name: value for name, value in given.items() if value})
    text, sides = read_bytes("", megabytes=4.0, split_seed=0), sides_of(plan.num_parameters, options.stack)
    chosen = [budget for budget in BUDGETS if getattr(options, budget)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = options.blocks or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        results = Results(options.results or place / "trials.jsonl")
        sides = with_blocks(sides, place, plan, results) if options.blocks else sides
        for budget in chosen or BUDGETS:
            seconds = plan.seconds if budget == "seconds" else None
            training = LanguageTraining(plan.num_steps, seconds, plan.rows, plan.sequence_length)
            trials = Trials(budget, text, training, plan.num_bytes, results)
            rows += rows_of(budget, sides, tuned(trials, sides, plan))
    return finish(rows, json_path=options.json)


if __name__ == "__main__":
    sys.exit(main())
