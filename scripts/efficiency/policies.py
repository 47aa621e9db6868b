"""GFlowNets on NAS-Bench-201 that learn from each reward as often as they like, and stop when all are spent."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, cast

from gflownet.config import load_config
from gflownet.data.workers import rollouts_here
from gflownet.evaluation.evaluator import Evaluation, Evaluator
from gflownet.evaluation.store import EvaluationStatus
from gflownet.trainer import GFNTrainer
from scripts.efficiency.searches import Budget, BudgetSpentError
from tasks.cells import CellsTask

NUM_UPDATES = 4  # optimiser steps per round beside the first
MOST_ROUNDS = 200  # of a policy that samples nothing new any more

# Chosen on seeds from 1000 on, which the script does not use.
SHARED = (
    "cond.temperature.dist_params=[128]",
    "algo.num_from_policy=4",
    "algo.train_random_action_prob=0.05",
    "opt.learning_rate=0.003",
    "opt.lr_decay=20000",
    "model.num_layers=2",
    "model.num_emb=128",
    "replay.warmup=1",
    "replay.priority=rank",
    "replay.num_from_replay=32",
)
REPLAY = {
    "": ("replay.use=false",),
    " + replay, remembered": ("replay.use=true", "replay.resample=false", f"replay.num_updates={NUM_UPDATES}"),
    " + replay, re-sampled": ("replay.use=true", "replay.resample=true", f"replay.num_updates={NUM_UPDATES}"),
}
SEARCH = {
    "": (),
    " + local search": ("local_search.num=4", "local_search.num_iterations=4", "local_search.share_back=0.17"),
}
# Every combination, by name.
VARIANTS: dict[str, Sequence[str]] = {
    f"GFlowNet{replay}{search}": (*SHARED, *options, *more)
    for search, more in SEARCH.items()
    for replay, options in REPLAY.items()
}


class BudgetEvaluator(Evaluator):
    """Answers from a budget; what was asked before is cached."""

    def __init__(self, task: CellsTask, budget: Budget) -> None:
        self.task, self.budget = task, budget

    def evaluate(self, candidates: Sequence[Any], *, step: int) -> list[Evaluation]:
        """Return one evaluation per cell. Raises BudgetSpentError."""
        assert self.task.cell is not None, "cells with places"
        codes = [self.task.cell.code(candidate) for candidate in candidates]
        known = [code in self.budget.known for code in codes]
        scores = [self.budget.score(code) / 100 for code in codes]
        pairs = zip(scores, known, strict=True)
        return [Evaluation(score, EvaluationStatus.OK, 0.0, None, None, {}, cached) for score, cached in pairs]


def run(overrides: Sequence[str], budget: Budget, *, table: Path, seed: int) -> int:
    """Train until the budget is spent or the last round is over, and return the number of rounds."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("cells", [*overrides, f"task_options.table={table}", f"seed={seed}", f"log_dir={folder}"])
        trainer = GFNTrainer(config)
    evaluator = BudgetEvaluator(cast(CellsTask, trainer.task), budget)
    policy = trainer.learner.sampling
    rollouts = rollouts_here(trainer.source, policy=policy, evaluator=evaluator, replay=trainer.replay, first_step=1)
    num_repeats = 1 if config.replay.use else 1 + NUM_UPDATES
    repeated = chain.from_iterable(repeat(rollout, num_repeats) for rollout in islice(rollouts, MOST_ROUNDS))
    with suppress(BudgetSpentError):
        for _ in trainer.fit(repeated):
            pass
    return trainer.step // num_repeats
