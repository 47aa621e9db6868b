"""What tables, reports and logs show of a task and its candidates, with defaults; reference methods on its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from gflownet.graphs.assignment import Assignment, as_yaml, differing
from gflownet.graphs.computation_graph import ComputationGraph


@dataclass(frozen=True)
class Reference:
    """A reference result on the task's data for the closing table."""

    name: str  # for example MLPClassifier(100)
    validation: Sequence[float]  # score of each seed
    test: Sequence[float]
    num_parameters: int | None = None
    code: str = ""  # lines of Python that build the untrained model; empty: none


@dataclass(frozen=True)
class ReferenceMethod:
    """A standard method, trained with each seed in a job of its own."""

    name: str
    result: Callable[[Sequence[int]], Reference | None]  # of seeds


def joined(references: Sequence[Reference]) -> Reference:
    """Return the result of a method for all seeds of its results."""
    validation, test = chain(*(each.validation for each in references)), chain(*(each.test for each in references))
    return replace(references[0], validation=tuple(validation), test=tuple(test))


class Presentation:
    """Names, words and lines of a task, none of which changes a score. A task overrides single ones."""

    score_name: str = "score"  # of Score.value, in tables
    metric_name: str = ""  # of the measured figure behind the score, such as bits per byte; empty: none
    # Lines about the data that was read, which the run prints at its start, and keeps for the report.
    summary: Sequence[str] = ()

    def network(self, candidate: Any) -> ComputationGraph | None:
        """Return the network of a candidate, for drawings and `gflownet.load`; None where it is no graph."""
        return candidate if isinstance(candidate, ComputationGraph) else None

    def metric_of(self, score: float) -> float:
        """Return the figure `metric_name` of a score, NaN for a score without one."""
        return math.nan

    def words(self, candidate: Any) -> str:
        """Return a candidate in a few words for tables and reports, such as "gru 128 > rhn 128"; empty: none.

        The store keeps them with each evaluation; empty ones where they fail, of which a run prints a line.
        """
        return ""

    def settings(self, candidates: Sequence[Any]) -> list[str]:
        """Return the choices of each candidate as a line of YAML, those that differ first; empty for other objects."""
        values = [each.as_dict() if isinstance(each, Assignment) else None for each in candidates]
        first = differing([each for each in values if each is not None])
        return ["" if each is None else as_yaml(each, first=first) for each in values]

    def load_line(self, candidate: Any, path: Path, *, has_weights: bool, rank: int = 0) -> str:
        """Return the Python that loads a rank of a file with entries; empty where no module is known."""
        if self.network(candidate) is None and "module" not in self.description(candidate):
            return ""
        return (
            f'import gflownet; model = gflownet.load("{path}", rank={rank}{"" if has_weights else ", weights=False"})'
        )

    def next_step(self, candidate: Any, folder: Path) -> str:
        """Return a line about what to do with the best candidate of a run folder; empty: none."""
        return ""

    def description(self, candidate: Any) -> Mapping[str, Any]:
        """Return further JSON values of a candidate by name, for its entry in top_architectures.json.

        `gflownet.load` reads an entry with `module`: {"build": "module:function"}. The function gets the choices by
        name, or with "of": NAME this value of the description, and returns the module.
        """
        return {}

    def reference(self, *, seeds: Sequence[int]) -> Reference | None:
        """Return the result of a standard method on the same data, one score per seed, for the closing table."""
        return None

    def reference_methods(self) -> Sequence[ReferenceMethod]:
        """Return the standard methods of the closing table; by default `reference`, where it is overridden."""
        if type(self).reference is Presentation.reference:
            return ()
        return (ReferenceMethod("of the task", lambda seeds: self.reference(seeds=seeds)),)

    def remarks(self) -> Sequence[str]:
        """Return lines about the data that a run prints at its start."""
        return ()


def references_of(task: Presentation, *, seeds: Sequence[int]) -> list[Reference]:
    """Return the results of all standard methods, one score per seed."""
    results = (method.result(seeds) for method in task.reference_methods())
    return [result for result in results if result is not None]


def words_of(task: Presentation, candidate: Any) -> str:
    """Return the words of a candidate, empty ones where the code of the user fails."""
    with suppress(Exception):
        return task.words(candidate)
    return ""
