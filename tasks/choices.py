"""Scores of choices in a user's own code: a function of the choices returns the score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gflownet.errors import UserError
from gflownet.evaluation.config import TaskConfig
from gflownet.evaluation.fingerprint import function_digest
from gflownet.evaluation.task import GFNTask, Score
from gflownet.graphs.assignment import Assignment
from gflownet.options import option
from gflownet.plugins import load_function


@dataclass
class ChoicesTaskConfig:
    """The user's functions."""

    score: str = option("", "module:function of (choices, seed): the score of a setting, in [0, 1]")
    test: str = option("", "module:function of (choices, seed): the test score in the final report; empty: none")


class ChoicesTask(GFNTask):
    """Scores a setting of `env.choices` by a function of the user's, which gets the choices as a dict and a seed."""

    Config = ChoicesTaskConfig
    environment = "choices"
    max_score = 1.0

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        options = config.task_options
        if not options.score:
            raise UserError("task_options.score: expected module:function of (choices, seed), got none")
        self.score = load_function("task_options.score", options.score)
        self.test_score = load_function("task_options.test", options.test) if options.test else None

    def fingerprint(self) -> str:
        """Return a digest of the code behind the function."""
        return function_digest(self.score)

    def evaluate(self, graph: Assignment, *, seed: int) -> Score:
        """Return the score of a setting."""
        return self._called(self.score, "score", graph, seed)

    def test(self, graph: Assignment, *, seed: int) -> float | None:
        """Return the test score of a setting, None without a function for it."""
        return None if self.test_score is None else self._called(self.test_score, "test", graph, seed).value

    def _called(self, function: Callable[..., Any], option_name: str, graph: Assignment, seed: int) -> Score:
        """Return the result of a function: a number, or a Score with parameters and metrics."""
        result = function(graph.as_dict(), seed)
        if isinstance(result, Score):
            return result
        try:
            return Score(float(result))
        except (TypeError, ValueError):
            raise ValueError(f"task_options.{option_name}: expected a number or a Score, got {result!r}") from None
