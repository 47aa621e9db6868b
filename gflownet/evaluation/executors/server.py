"""Preparation of the fork server, which imports this module after all others; without effect in other processes."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from pathlib import Path

from gflownet.evaluation.executors.descendants import adopt_orphans
from gflownet.evaluation.executors.parent import is_server, stop_watching
from gflownet.evaluation.executors.sources import digest_of

# Packages of a source checkout, whose files may be edited while the server runs.
_PACKAGES = ("gflownet", "tasks")


def loaded_sources() -> dict[str, str]:
    """Return digests of the source files of the modules that the server has imported; empty in other processes."""
    return _LOADED


def _digests() -> dict[str, str]:
    digests = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and name.partition(".")[0] in _PACKAGES:
            with suppress(OSError):
                digests[name] = digest_of(Path(file))
    return digests


if is_server():
    stop_watching()
    adopt_orphans()  # of monitors that are killed
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")  # of an orphan
_LOADED = _digests() if is_server() else {}
