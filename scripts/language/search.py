"""The search for a stack: a run of task=language within a time limit, and what it found, best first."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from gflownet.config import load_config, with_task_options
from gflownet.evaluation.config import scoring_context
from gflownet.evaluation.store import EvaluationStore
from gflownet.graphs.assignment import Assignment
from gflownet.rhn.stack_config import StackConfig
from gflownet.run_folder import CONFIG_NAME, STORE_NAME
from gflownet.trainer import GFNTrainer
from tasks.language import LanguageConfig, LanguageTask


@dataclass(frozen=True)
class Found:
    """A stack and its score in the search."""

    stack: Assignment
    config: StackConfig
    bits: float  # per byte of validation text after the search's short training

    def __str__(self) -> str:
        chosen = zip(self.stack.names, self.stack.values, strict=True)
        return ", ".join(f"{name}={value}" for name, value in chosen if value != "none")


@dataclass(frozen=True)
class Outcome:
    """What a search came to."""

    found: list[Found]  # the best, best first
    num_stacks: int  # trained
    seconds: float  # wall time of their trainings


def search(folder: Path, *, seconds: float, overrides: list[str]) -> None:
    """Run a search of at most so many seconds of wall time, the report at its end not counted."""
    given = [f"log_dir={folder}", "wandb.mode=disabled", "overwrite_existing_exp=true", *overrides]
    trainer = GFNTrainer(load_config("language", given))
    # As Ctrl-C would: the run ends after its step, and reports.
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        trainer.run()
    finally:
        timer.cancel()


def outcome(folder: Path, *, num_best: int) -> Outcome:
    """Return what the run in a folder has found."""
    config = with_task_options(load_config(str(folder / CONFIG_NAME), []), LanguageConfig)
    task = LanguageTask(config)
    with EvaluationStore(folder / STORE_NAME, context=scoring_context(config)) as store:
        records, every = store.top(num_best), store.top(store.count())
    stacks = [Assignment.from_dict(json.loads(record.graph)) for record in records]
    pairs = zip(stacks, records, strict=True)
    found = [Found(stack, task.config_of(stack), record.metrics["bits_per_byte"]) for stack, record in pairs]
    return Outcome(found, len(every), sum(record.seconds for record in every))
