"""Comparison of runs as data: groups, their figures, curves and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gflownet.files import json_text
from gflownet.report.compared.figures import CURVES, FIGURES, Estimate, GroupCurve, figures_of, group_curve
from gflownet.report.compared.groups import SEED, Difference, Group, Problem, differences, groups_of, problems_of
from gflownet.report.page.run_data import RunData, read_run

COMPARISON_FORMAT = "gflownet comparison 1"


@dataclass(frozen=True)
class Comparison:
    """Everything that the page shows."""

    groups: Sequence[Group]
    figures: Sequence[Mapping[str, Estimate]]  # of each group, by key
    curves: Mapping[str, Sequence[GroupCurve | None]]  # by key of the chart, of each group
    differences: Sequence[Difference]

    @property
    def problems(self) -> list[Problem]:
        """Groups by task, data and budget."""
        return problems_of(self.groups)

    @property
    def runs(self) -> list[tuple[Group, RunData]]:
        """All runs with their groups, in order."""
        return [(group, run) for group in self.groups for run in group.runs]

    def to_json(self) -> str:
        """Return the figures, curves and differences as JSON; unknown values are null."""
        content = {
            "format": COMPARISON_FORMAT,
            "groups": [self._group_entry(index) for index in range(len(self.groups))],
            "problems": [asdict(problem) for problem in self.problems],
            "differences": [asdict(difference) for difference in self.differences],
        }
        return json_text(content, indent=1)

    def _group_entry(self, index: int) -> dict[str, Any]:
        group = self.groups[index]
        return {
            "name": group.name,
            "runs": [
                {"folder": str(run.folder), "run": run.run_id, "seed": run.option(SEED), "state": state_of(run)}
                for run in group.runs
            ],
            "figures": {kind.key: asdict(self.figures[index][kind.key]) for kind in FIGURES},
            "curves": {
                key: asdict(curve) for key, curves in self.curves.items() if (curve := curves[index]) is not None
            },
        }


def comparison_of(folders: Sequence[Path]) -> Comparison:
    """Return the comparison of the runs in folders.

    Raises:
        UserError: no run in a folder.
    """
    groups = groups_of([read_run(folder) for folder in folders])
    return Comparison(
        groups=groups,
        figures=[figures_of(group) for group in groups],
        curves={kind.key: [group_curve(group, kind) for group in groups] for kind in CURVES},
        differences=differences(groups),
    )


def state_of(run: RunData) -> str:
    """Return the state of a run in a word."""
    return "unknown" if run.status is None else run.status.state.value
