"""Synthetic sequence tasks: composition of permutations (state tracking) and associative recall.

R is the number of rows, T of tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, permutations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.evaluation.language_training import LanguageTraining
from gflownet.training.optimisers import Adam
from gflownet.training.steps import Steps

IGNORED = -100  # target of a position that is not scored, as in torch's cross_entropy
_MAX_GRADIENT_NORM = 1.0
_TEST_ROWS = 256

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
    table = torch.tensor([[index[_swapped(element, *swap)] for swap in swaps] for element in elements])

    def draw(rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(len(swaps), (rows, length), generator=generator)
        state, targets = torch.zeros(rows, dtype=torch.long), []
        for token in tokens.unbind(1):
            state = table[state, token]
            targets.append(state)
        return tokens, torch.stack(targets, 1)

    name = f"products of transpositions of {num_items} items"
    return Task(name, draw, max(len(elements), len(swaps)), length, (length, 4 * length))


def _swapped(element: tuple[int, ...], first: int, second: int) -> tuple[int, ...]:
    items = list(element)
    items[first], items[second] = items[second], items[first]
    return tuple(items)


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
