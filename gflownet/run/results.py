"""Results of a run, read from its folder for the logs that show them elsewhere."""

from __future__ import annotations

from pathlib import Path

from gflownet.config import CONFIG_NAME
from gflownet.report.architectures import PICTURES_NAME, TOP_NAME
from gflownet.report.leaders import final_leaders
from gflownet.report.page import PAGE_NAME
from gflownet.report.pareto import FRONT_NAME, FRONT_PICTURE_NAME
from gflownet.report.references import RANDOM_NAME, REFERENCES_NAME
from gflownet.run.run_log import RunResults
from gflownet.run_status import RunState, read_status

_ARCHITECTURE_FILES = (TOP_NAME, REFERENCES_NAME, RANDOM_NAME, FRONT_NAME, FRONT_PICTURE_NAME, CONFIG_NAME)


def read_results(folder: Path, *, checkpoint: Path | None) -> RunResults:
    """Return the results of the run in a folder; missing files give empty fields.

    Raises:
        OSError, ValueError, KeyError, TypeError: a file is damaged.
    """
    status = read_status(folder)
    report = folder / PAGE_NAME
    has_top = (folder / TOP_NAME).exists()
    files = [folder / name for name in _ARCHITECTURE_FILES if (folder / name).exists()]
    drawings = sorted(path for path in (folder / PICTURES_NAME).glob("ran*") if path.is_file())
    return RunResults(
        leaders=final_leaders(folder),
        checkpoint=checkpoint if checkpoint is not None and checkpoint.exists() else None,
        architectures=[*files, *drawings] if has_top else [],
        report=report if report.exists() else None,
        state=RunState.RUNNING if status is None else status.state,
        seconds=None if status is None else sum(status.seconds.values()),
    )
