"""Measure RHN, GRU, LSTM and transformer where an RHN may pay: narrow states, state tracking, recall.

    python scripts/bench_language_regimes.py [--state] [--tracking] [--recall] [--results FILE] [--quick] [--json FILE]

- state: bits per byte of the text of bench_language.py after 300 steps, 97,000 parameters, with 16 and 32 floats from
  token to token (an RHN's bottlenecks; a GRU's units, with feed-forward layers for the remaining parameters); rate
  0.01, two seeds;
- tracking: accuracy of the product of all transpositions of 3 items so far, in sequences of the trained length and of
  four times the length; 30,000 parameters, 400 steps of 32 rows, rate 0.01, one seed;
- recall: accuracy of values that were read with their keys before, the same.

--results: every training is saved as one line; a second call continues from there. A file of bench_language.py serves.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.evaluation.byte_text import read_bytes
from gflownet.evaluation.language_training import LanguageTraining
from gflownet.rhn.config import RHNConfig, StackLayer
from scripts.bench import Row, figure, finish, parse_arguments
from scripts.language_models import Form, narrow_state, rhn, stack, transformer
from scripts.language_tasks import Outcome, Task, permutation_task, recall_task, train
from scripts.language_trials import Results, Trials


@dataclass(frozen=True)
class Plan:
    """Sizes of the experiments."""

    num_parameters: int = 97_000
    num_steps: int = 300
    num_bytes: int = 65_536
    rates: tuple[float, ...] = (0.01,)
    seeds: tuple[int, ...] = (1, 2)
    task_parameters: int = 30_000
    task_steps: int = 400
    task_rates: tuple[float, ...] = (0.01,)
    task_rows: int = 32


QUICK = Plan(10_000, 3, 512, (0.01,), (1, 2), 5_000, 3, (0.01,), 4)


def state_rows(plan: Plan, results: Results) -> list[Row]:
    """Return bits per byte at equal parameters and equal floats from token to token."""
    budget = plan.num_parameters
    forms = {
        "16 floats, RHN": rhn(budget, RHNConfig(depth=1, rank=4)),
        "16 floats, GRU": narrow_state(budget, state=16),
        "32 floats, RHN": rhn(budget, RHNConfig(depth=2, rank=4)),
        "32 floats, GRU, one layer": narrow_state(budget, state=32),
        "32 floats, GRU, two layers": narrow_state(budget, state=16, depth=2),
    }
    text = read_bytes("", megabytes=4.0, split_seed=0)
    trials = Trials("steps", text, LanguageTraining(plan.num_steps, None, 16, 64), plan.num_bytes, results)
    rows = []
    for name, form in forms.items():
        by_rate = {rate: trials.train(form, rate, 0).validation for rate in plan.rates}
        rate = min(by_rate, key=lambda rate: by_rate[rate])
        reported = [trials.train(form, rate, seed, is_reported=True) for seed in plan.seeds]
        bits = [trial.test for trial in reported if trial.test is not None]
        seconds = statistics.mean(trial.seconds for trial in reported)
        unit = f"test bits per byte +- {statistics.stdev(bits):.3f}, {seconds:.1f} CPU s"
        rows.append(figure(f"state, {name} ({form.name}, rate {rate:g})", statistics.mean(bits), unit))
    return rows


def task_rows(plan: Plan, task: Task, results: Results) -> list[Row]:
    """Return the accuracies of a synthetic task at the best rate of each form."""
    rows = []
    for form in task_forms(plan.task_parameters, task.vocabulary_size):
        outcomes = [_outcome(plan, task, form, rate, results) for rate in plan.task_rates]
        best = max(outcomes, key=lambda outcome: outcome.accuracy[task.length])
        for length, accuracy in best.accuracy.items():
            unit = f"accuracy, {best.seconds:.1f} CPU s"
            rows.append(figure(f"{task.name}, {length} tokens, {form.name}", accuracy, unit))
    return rows


def task_forms(num_parameters: int, vocabulary_size: int) -> Sequence[Form]:
    """Return the models of a synthetic task."""
    gru, lstm, size = StackLayer("gru"), StackLayer("lstm"), vocabulary_size
    return [
        rhn(num_parameters, RHNConfig(depth=2, rank=2, vocabulary_size=size)),
        rhn(num_parameters, RHNConfig(depth=1, rank=1, bottleneck=48, vocabulary_size=size)),
        stack(num_parameters, (gru, gru), vocabulary_size=size),
        stack(num_parameters, (lstm, lstm), vocabulary_size=size),
        transformer(num_parameters, depth=2, vocabulary_size=size),
    ]


def _outcome(plan: Plan, task: Task, form: Form, rate: float, results: Results) -> Outcome:
    key = [task.name, form.name, plan.task_steps, rate]
    saved = results.get(key)
    if saved is None:
        torch.manual_seed(1)
        options = LanguageTraining(plan.task_steps, None, plan.task_rows, task.length, rate)
        saved = asdict(train(form.make(), task, options=options, seed=1))
        results.add(key, saved)
        print(f"{key}: {saved}", flush=True)
    accuracy = {int(length): value for length, value in saved["accuracy"].items()}
    return Outcome(accuracy, saved["steps"], saved["seconds"])


def main() -> int:
    """Run the experiments and return the exit status."""
    options = parse_arguments(
        __doc__,
        paths={"results": "file of the finished trainings"},
        state="only narrow states",
        tracking="only products of transpositions",
        recall="only associative recall",
    )
    torch.set_num_threads(1)
    plan, rows = QUICK if options.quick else Plan(), []
    with tempfile.TemporaryDirectory() as folder:
        results = Results(options.results or Path(folder) / "trials.jsonl")
        regimes: dict[str, Callable[[], list[Row]]] = {
            "state": lambda: state_rows(plan, results),
            "tracking": lambda: task_rows(plan, permutation_task(3, 24), results),
            "recall": lambda: task_rows(plan, recall_task(16, 4), results),
        }
        for name in [name for name in regimes if getattr(options, name)] or regimes:
            rows += regimes[name]()
    return finish(rows, json_path=options.json)


if __name__ == "__main__":
    sys.exit(main())
