"""Searches for a recurrent stack on the standard library's source, and compares what it finds at equal parameters.

    python scripts/language_search.py [--quick] [--json FILE] [--run FOLDER] [--save FOLDER]
    python scripts/language_search.py [--quick] [--json FILE] --figure FILE

The best stacks of a search of short trainings are trained once at full length, the best of these with three seeds,
beside the plain LSTM and GRU of at least as many parameters with the best of their depths and learning rates: bits per
byte of validation and test files. `--run` takes what a run of task=language has found, `--save` trains the best stack
longer and keeps it for `python -m gflownet.generate FOLDER`.

`--figure` draws learning curves of the RHN, plain LSTM and GRU and a transformer instead, at as many steps and at as
many CPU seconds.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gflownet.evaluation.byte_text import read_bytes
from gflownet.evaluation.language_training import LanguageTraining
from gflownet.rhn.checkpoint import save_language_model
from gflownet.rhn.stack_model import RecurrentStack
from scripts.bench import Row, at_most, figure, finish, make_parser
from scripts.language.figure import draw, panels
from scripts.language.models import NUM_PLAIN_LAYERS, Make, plain, rhn, size_of, transformer
from scripts.language.search import Found, outcome, search
from scripts.language.trials import Bench, Trial


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    num_parameters: int = 97_000
    search_seconds: float = 600.0  # wall, the report of the run not counted
    search_options: tuple[str, ...] = ("task_options.num_steps=80", "evaluation.learning_rate=0.01")
    num_finalists: int = 2
    num_seeds: int = 3
    num_steps: int = 300
    rows: int = 16
    sequence_length: int = 64
    learning_rates: tuple[float, ...] = (0.01, 0.02)  # the first one chooses among models
    num_bytes: int = 65_536  # that a model is scored on
    curve_every: int = 15  # steps
    save_steps: int = 600


QUICK = Plan(
    num_parameters=20_000,
    search_seconds=8.0,
    search_options=("task_options.num_steps=4", "num_training_steps=2", "task_options.validation_bytes=512"),
    num_finalists=1,
    num_seeds=2,
    num_steps=6,
    rows=4,
    sequence_length=16,
    learning_rates=(0.01,),
    num_bytes=1024,
    curve_every=3,
    save_steps=2,
)


def searched(plan: Plan, run: Path | None) -> tuple[list[Found], list[Row]]:
    """Return the finalists of a run, of a new one if none is given, and what the search took."""
    if run is None:
        with tempfile.TemporaryDirectory() as name:
            budget = f"task_options.num_parameters={plan.num_parameters}"
            overrides = ["num_threads=1", budget, "num_training_steps=1000", *plan.search_options]
            search(Path(name), seconds=plan.search_seconds, overrides=overrides)
            result = outcome(Path(name), num_best=plan.num_finalists)
    else:
        result = outcome(run, num_best=plan.num_finalists)
    for each in result.found:
        print(f"found: {each.bits:.3f} bits per byte after a short training: {each}", flush=True)
    return result.found, [
        at_most("search: time of all trainings", result.seconds, "s", 1800),
        figure("search: stacks trained", result.num_stacks),
    ]


def competitors(plan: Plan, found: Sequence[Found]) -> dict[str, Sequence[Make]]:
    """Return what each name may be: the finalists, and plain networks of one and two layers."""
    cells: dict[str, type[nn.LSTM | nn.GRU]] = {"plain LSTM": nn.LSTM, "plain GRU": nn.GRU}
    return {
        "found stack": [partial(RecurrentStack, each.config) for each in found],
        **{
            name: [plain(cell, num_layers, plan.num_parameters) for num_layers in NUM_PLAIN_LAYERS]
            for name, cell in cells.items()
        },
    }


def compared(plan: Plan, bench: Bench, found: Sequence[Found]) -> tuple[Make, float, list[Row]]:
    """Return what makes the best stack, its learning rate, and the figures of all seeds."""
    rows, means, best = [], {}, None
    for name, makes in competitors(plan, found).items():
        # Choices are made with a seed that does not count.
        make, trial = bench.best(makes, learning_rates=plan.learning_rates, seed=plan.num_seeds)
        best = best or (make, trial.learning_rate)
        trials = [bench.train(make, learning_rate=trial.learning_rate, seed=seed) for seed in range(plan.num_seeds)]
        print(
            f"{name}: {[round(each.validation, 3) for each in trials]} validation, rate {trial.learning_rate}",
            flush=True,
        )
        means[name] = statistics.mean(each.validation for each in trials)
        rows += _rows_of(name, make, trials, others=means)
    assert best is not None
    return *best, rows


def _rows_of(name: str, make: Make, trials: Sequence[Trial], *, others: Mapping[str, float]) -> list[Row]:
    """Return the figures of one competitor; the found stack, which comes first, is to beat each that follows."""
    validation, test = ([getattr(trial, part) for trial in trials] for part in ("validation", "test"))
    mean, ours = statistics.mean(validation), others["found stack"]
    spread = statistics.stdev(validation)
    is_ours = name == "found stack"
    return [
        figure(f"{name}: parameters", size_of(make)),
        Row(
            f"{name}: validation bits per byte",
            mean,
            f"+- {spread:.3f} ({len(trials)} seeds)",
            "" if is_ours else f"> {ours:.3f}, the found stack's",
            is_ours or mean > ours,
        ),
        figure(f"{name}: test bits per byte", statistics.mean(test)),
        figure(f"{name}: CPU seconds of a training", statistics.mean(t.last.seconds for t in trials), "s"),
    ]


def curves(plan: Plan, bench: Bench, path: Path) -> list[Row]:
    """Draw learning curves of plain networks, RHN and transformer, and return how they end."""
    makes: dict[str, Sequence[Make]] = {
        "RHN": [rhn(2, plan.num_parameters)],
        "LSTM": [plain(nn.LSTM, 1, plan.num_parameters)],
        "GRU": [plain(nn.GRU, 1, plan.num_parameters)],
        "transformer": [transformer(plan.sequence_length, plan.num_parameters)],
    }
    rates = plan.learning_rates
    by_steps = {
        name: bench.best(choice, learning_rates=rates, seed=0, every=plan.curve_every) for name, choice in makes.items()
    }
    seconds = by_steps["RHN"][1].last.seconds
    by_seconds = {}
    for name, (make, trial) in by_steps.items():
        if name == "RHN":
            by_seconds[name] = trial
            continue
        # As many scores along the way as the RHN gets.
        steps = plan.num_steps * seconds / trial.last.seconds
        every = max(1, round(steps / plan.num_steps * plan.curve_every))
        longer = replace(bench, training=replace(bench.training, seconds=seconds))
        by_seconds[name] = longer.train(make, learning_rate=trial.learning_rate, seed=0, every=every)
    both = panels(
        {name: trial.points for name, (_, trial) in by_steps.items()},
        {name: trial.points for name, trial in by_seconds.items()},
    )
    title = f"Validation bits per byte, {plan.num_parameters:,} parameters, source of Python's standard library"
    path.write_text(draw(both, title=title), encoding="utf-8")
    return [
        figure(f"{name}, equal {budget}: validation bits per byte", trial.validation, f"({trial.last.step} steps)")
        for budget, trials in (("steps", {n: t for n, (_, t) in by_steps.items()}), ("CPU seconds", by_seconds))
        for name, trial in trials.items()
    ]


def main() -> int:
    """Run what was asked for and return the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="do not search, take what this run has found")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="train the best stack longer and save it there")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="instead draw learning curves as SVG")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan = QUICK if arguments.quick else Plan()
    training = LanguageTraining(num_steps=plan.num_steps, rows=plan.rows, sequence_length=plan.sequence_length)
    text = read_bytes("", megabytes=4.0, split_seed=0)
    bench = Bench(text, training, num_bytes=plan.num_bytes, num_bytes_between=min(8192, plan.num_bytes))
    if arguments.figure:
        return finish(curves(plan, bench, arguments.figure), json_path=arguments.json)
    found, rows = searched(plan, arguments.run)
    make, rate, more = compared(plan, bench, found)
    rows += more
    if arguments.save:
        longer = replace(bench, training=replace(training, num_steps=plan.save_steps))
        trial = longer.train(make, learning_rate=rate, seed=0)
        save_language_model(arguments.save, trial.model)
        rows.append(figure("found stack, trained longer: test bits per byte", trial.test, f"({plan.save_steps} steps)"))
    return finish(rows, json_path=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
