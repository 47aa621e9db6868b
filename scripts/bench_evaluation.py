"""Candidates evaluated per second: all at once against one by one, on the default digits search.

    python scripts/bench_evaluation.py [--quick] [--json FILE]

Architectures are drawn by uniformly random legal actions, as a search's first ones are. Both sides translate, train and
validate each of them from the same seed, batch after batch in turn within one run, with no generated code left from
an earlier batch or from the other side, on one thread; times are the process's own CPU time. One by one is what the
project did before it trained many at once: autograd and one fused optimiser per candidate (tests/oracles/training.py).
"""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from gflownet.config import load_config
from gflownet.data.sampler import sample_forward
from gflownet.evaluation.supervised import SupervisedTask
from gflownet.graphs.computation_graph import ComputationGraph
from gflownet.trainer import GFNTrainer
from gflownet.translation import clear_translation_cache
from scripts.bench import Row, at_least, figure, finish, median_ratio, parse_arguments
from tests.oracles.training import score_one_by_one

BATCH_SIZE = 16  # candidates that one side evaluates before it is the other's turn
NUM_BATCHES, NUM_BATCHES_QUICK = 13, 5
GOAL = 3.0
# Two correct trainings round differently, which moves an example across a decision boundary now and then.
MIN_SAME_SHARE = 0.9


def draw(num: int) -> tuple[SupervisedTask, list[ComputationGraph]]:
    """Return the task of the default search and `num` architectures drawn by uniformly random actions."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(None, [f"log_dir={folder}", "wandb.mode=disabled"])
        trainer = GFNTrainer(config)
    assert isinstance(trainer.task, SupervisedTask)
    generator = torch.Generator().manual_seed(config.seed)
    conditioning = trainer.task.sample_conditioning(num, generator=generator)
    batch = sample_forward(
        trainer.context, trainer.policy, conditioning=conditioning, generator=generator, random_action_prob=1.0
    )
    graphs = [trainer.env.terminal(batch.terminal, position) for position in range(num)]
    return trainer.task, [graph for graph in graphs if isinstance(graph, ComputationGraph)]


class Sides:
    """The two ways to evaluate a batch of candidates, and what they gave."""

    def __init__(self, task: SupervisedTask) -> None:
        self.task, self.splits = task, task.splits()
        self.seconds: dict[str, list[float]] = {"one by one": [], "at once": []}
        self.accuracies: dict[str, list[float]] = {"one by one": [], "at once": []}

    def run(self, side: str, graphs: list[ComputationGraph], seeds: list[int]) -> None:
        """Evaluate one batch one way, from a cold cache, and keep time and accuracies."""
        clear_translation_cache()
        gc.collect()
        start = process_time()
        accuracies = self.one_by_one(graphs, seeds) if side == "one by one" else self.at_once(graphs, seeds)
        self.seconds[side].append(process_time() - start)
        self.accuracies[side] += accuracies

    def one_by_one(self, graphs: list[ComputationGraph], seeds: list[int]) -> list[float]:
        """Return the validation accuracies by the slow twin."""
        config = self.task.config.evaluation
        pairs = zip(graphs, seeds, strict=True)
        return [score_one_by_one(graph, self.splits, config=config, seed=seed)[0] for graph, seed in pairs]

    def at_once(self, graphs: list[ComputationGraph], seeds: list[int]) -> list[float]:
        """Return the validation accuracies by evaluate_many."""
        outcomes = self.task.evaluate_many(graphs, seeds=seeds)
        # Infinitely wrong where an evaluation failed, so that no failure passes for the same score.
        return [float("inf") if isinstance(o, Exception) else o.metrics["validation_accuracy"] for o in outcomes]

    def drop_warm_up(self) -> None:
        """Forget the first batch, in which PyTorch sets itself up."""
        for side in self.seconds:
            del self.seconds[side][0], self.accuracies[side][:BATCH_SIZE]


def main() -> int:
    """Run everything and return the exit status."""
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    num_batches = NUM_BATCHES_QUICK if arguments.quick else NUM_BATCHES
    task, graphs = draw(num_batches * BATCH_SIZE)
    sides = Sides(task)
    for number in range(num_batches):
        seeds = list(range(number * BATCH_SIZE, (number + 1) * BATCH_SIZE))
        for side in ("one by one", "at once") if number % 2 else ("at once", "one by one"):
            sides.run(side, graphs[seeds[0] : seeds[-1] + 1], seeds)
    sides.drop_warm_up()
    return finish(rows(sides), json_path=arguments.json)


def rows(sides: Sides) -> list[Row]:
    """Return speeds, their ratio, and how far the scores agree."""
    slow, fast = sides.seconds["one by one"], sides.seconds["at once"]
    pairs = list(zip(sides.accuracies["one by one"], sides.accuracies["at once"], strict=True))
    same = sum(one == other for one, other in pairs) / len(pairs)
    largest = max(abs(one - other) for one, other in pairs)
    label = f"digits, {len(pairs)} random architectures in batches of {BATCH_SIZE}"
    return [
        figure(f"{label}: one by one", BATCH_SIZE / median(slow), "candidates/s"),
        figure(f"{label}: at once", BATCH_SIZE / median(fast), "candidates/s"),
        at_least(f"{label}: ratio", median_ratio(slow, fast), "x", GOAL),
        at_least(f"{label}: same accuracy", same, "share", MIN_SAME_SHARE),
        figure(f"{label}: largest difference of accuracy", largest),
    ]


if __name__ == "__main__":
    sys.exit(main())
