"""Searches on small tasks without a run folder, for tests of search methods."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

from gflownet.components import Components
from gflownet.config import load_config
from gflownet.evaluation.dispatcher import Dispatcher
from gflownet.evaluation.evaluator import Evaluation
from gflownet.evaluation.status import EvaluationStatus
from gflownet.search.loop import SearchLoop, SearchStep

RIDGE = "search.surrogate.name=tests.search.toy_surrogates:RidgeRegression"


def macro_table(folder: Path) -> Path:
    """Write a table with a score for each of the 6,561 cells of NAS-Bench-Macro: better to the right; return its path.

    The best cell is 22222222, with 97 %.
    """
    path = folder / "macro.csv"
    rows = (f"{''.join(code)},{17 + 10 * sum(map(int, code)) / 2}" for code in product("012", repeat=8))
    path.write_text("code,mean\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def build_components(overrides: Sequence[str]) -> Components:
    """Return the components of a run with the toy surrogate."""
    return Components(load_config(None, ["wandb.mode=disabled", RIDGE, *overrides]))


class DirectEvaluator:
    """Scores candidates in the main process, without a store."""

    run = "test"

    def __init__(self, task: Any) -> None:
        self.task, self.hashes = task, set()

    def evaluate(self, candidates: Sequence[Any], *, step: int) -> list[Evaluation]:
        evaluations = []
        for candidate in candidates:
            identity = candidate.canonical_hash()
            score = self.task.evaluate(candidate, seed=0).value
            status, is_known = EvaluationStatus.OK, identity in self.hashes
            evaluations.append(Evaluation(score, status, 0.0, None, None, {}, is_known, (), identity))
            self.hashes.add(identity)
        return evaluations


def run_search(components: Components) -> tuple[SearchLoop, list[SearchStep]]:
    """Run the search of components to its end; return its loop and steps."""
    assert components.search is not None
    return components.search, list(components.search.steps(cast(Dispatcher, DirectEvaluator(components.task))))
