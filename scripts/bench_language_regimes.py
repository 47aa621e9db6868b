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

import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, permutations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.evaluation.candidates.language import LanguageTraining
from gflownet.evaluation.data.byte_text import read_bytes
from gflownet.rhn.config import RHNConfig, StackLayer
from gflownet.training.optimisers import Adam
from gflownet.training.steps import Steps
from scripts.bench import Row, figure, finish, parse_arguments
from scripts.language_models import Form, Results, Trials, narrow_state, rhn, stack, transformer

IGNORED = -100  # target of a position that is not scored, as in torch's cross_entropy
_MAX_GRADIENT_NORM = 1.0
_TEST_ROWS = 256
_RATE = 0.01

# Arguments: rows, length of the sequences, generator. Returns tokens and targets [R, T].
Draw = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """A source of sequences with a target at every scored position."""

    name: str
    draw: Draw
    vocabulary_size: int
    length: int  # in training
    test_lengths: tuple[int, ...]


def permutation_task(num_items: int, length: int) -> Task:
    """Return the task to name the product of all transpositions so far, one of `num_items` factorial classes."""
    elements = list(permutations(range(num_items)))
    index = {element: number for number, element in enumerate(elements)}
    swaps = list(combinations(range(num_items), 2))
    # places after each swap of two items
    orders = [[{i: j, j: i}.get(place, place) for place in range(num_items)] for i, j in swaps]
    table = torch.tensor([[index[tuple(each[place] for place in order)] for order in orders] for each in elements])

    def draw(rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(len(swaps), (rows, length), generator=generator)
        state, targets = torch.zeros(rows, dtype=torch.long), []
        for token in tokens.unbind(1):
            state = table[state, token]
            targets.append(state)
        return tokens, torch.stack(targets, 1)

    name = f"products of transpositions of {num_items} items"
    return Task(name, draw, max(len(elements), len(swaps)), length, (length, 4 * length))


def recall_task(num_keys: int, num_pairs: int) -> Task:
    """Return the task to give the value of each key, all keys asked in another order after all pairs were read."""

    def draw(rows: int, _length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        keys = torch.rand(rows, num_keys, generator=generator).argsort(1)[:, :num_pairs]
        values = torch.randint(num_keys, (rows, num_pairs), generator=generator)
        order = torch.rand(rows, num_pairs, generator=generator).argsort(1)
        pairs = torch.stack([keys, values + num_keys], 2).flatten(1)
        answers = (values + num_keys).gather(1, order)
        targets = torch.cat([torch.full_like(pairs, IGNORED), answers], 1)
        return torch.cat([pairs, keys.gather(1, order)], 1), targets

    return Task(f"recall of {num_pairs} pairs", draw, 2 * num_keys, 3 * num_pairs, (3 * num_pairs,))


@dataclass(frozen=True)
class Outcome:
    """Accuracy by length after a training."""

    accuracy: dict[int, float]
    steps: int
    seconds: float  # CPU seconds of the training steps


def train(model: nn.Module, task: Task, *, options: LanguageTraining, seed: int) -> Outcome:
    """Train a model [R, T] -> (logits [R, T, V], ...) on fresh sequences and test it on others."""
    generator, parameters = torch.Generator().manual_seed(seed), list(model.parameters())
    optimiser = Adam(parameters, lr=options.learning_rate, fused=True)
    steps = Steps([optimiser], parameters, schedule=options.rates, max_norm=_MAX_GRADIENT_NORM)
    seconds, done = 0.0, 0.0
    while done < 1:
        tokens, targets = task.draw(options.rows, task.length, generator)
        start = time.process_time()
        loss = F.cross_entropy(model(tokens)[0].flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        steps.compute_gradients(loss.backward)
        steps.update(done)
        seconds += time.process_time() - start
        done = steps.number / options.num_steps if options.seconds is None else seconds / options.seconds
        if not math.isfinite(loss.item()):
            break
    return Outcome({length: accuracy(model, task, length) for length in task.test_lengths}, steps.number, seconds)


@torch.no_grad()
def accuracy(model: nn.Module, task: Task, length: int) -> float:
    """Return the share of scored positions whose likeliest token is the target; always the same sequences."""
    tokens, targets = task.draw(_TEST_ROWS, length, torch.Generator().manual_seed(2**31))
    scored = targets != IGNORED
    return float((model(tokens)[0].argmax(-1) == targets)[scored].double().mean())


@dataclass(frozen=True)
class Plan:
    """Sizes of the experiments."""

    num_parameters: int = 97_000
    num_steps: int = 300
    num_bytes: int = 65_536
    seeds: tuple[int, ...] = (1, 2)
    task_parameters: int = 30_000
    task_steps: int = 400
    task_rows: int = 32


QUICK = Plan(10_000, 3, 512, (1, 2), 5_000, 3, 4)


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
        reported = [trials.train(form, _RATE, seed, is_reported=True) for seed in plan.seeds]
        bits = [trial.test for trial in reported if trial.test is not None]
        seconds = statistics.mean(trial.seconds for trial in reported)
        unit = f"test bits per byte +- {statistics.stdev(bits):.3f}, {seconds:.1f} CPU s"
        rows.append(figure(f"state, {name} ({form.name}, rate {_RATE:g})", statistics.mean(bits), unit))
    return rows


def task_rows(plan: Plan, task: Task, results: Results) -> list[Row]:
    """Return the accuracies of each form at a synthetic task."""
    rows = []
    for form in task_forms(plan.task_parameters, task.vocabulary_size):
        outcome = _outcome(plan, task, form, results)
        for length, accuracy in outcome.accuracy.items():
            unit = f"accuracy, {outcome.seconds:.1f} CPU s"
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


def _outcome(plan: Plan, task: Task, form: Form, results: Results) -> Outcome:
    key = [task.name, form.name, plan.task_steps, _RATE]
    saved = results.get(key)
    if saved is None:
        torch.manual_seed(1)
        options = LanguageTraining(plan.task_steps, None, plan.task_rows, task.length, _RATE)
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
