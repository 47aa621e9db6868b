"""Neural-architecture search that samples computation graphs in proportion to their reward."""

from importlib import import_module
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent
# In a wheel `tasks` and `configs` lie inside the package; in a checkout they are its neighbours, found through there.
if not (_PACKAGE / "tasks").is_dir():
    __path__.append(str(_PACKAGE.parent))

# Short imports for users, resolved on first use: the package itself must not import torch.
_HOMES = {
    "ComputationGraph": "gflownet.graphs.computation_graph",
    "GFNTask": "gflownet.evaluation.task",
    "GFNTrainer": "gflownet.trainer",
    "load": "gflownet.translation",
    "load_graph": "gflownet.translation",
    "sample": "gflownet.sampling",
    "Score": "gflownet.evaluation.task",
    "to_pytorch_model": "gflownet.translation",
}


def __getattr__(name: str) -> Any:
    """Return a short import by name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
