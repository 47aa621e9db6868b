"""The tasks by name, and the only door through which a task's class comes in."""

from __future__ import annotations

import difflib
import importlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gflownet.evaluation.task import GFNTask

TASKS = {"digits": "gflownet.tasks.digits:DigitsTask"}

_MODULE_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def check_task_name(name: str) -> None:
    """Raises ValueError unless `name` is a built-in task or of the form module:Class; imports nothing."""
    if name in TASKS or _MODULE_CLASS.fullmatch(name):
        return
    nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
    raise ValueError(f"task: expected one of {', '.join(TASKS)} or module:Class, got {name!r}; did you mean {nearest}?")


def load_task_class(name: str) -> type[GFNTask]:
    """Returns the class of a built-in task, or the GFNTask subclass that module:Class names.

    Raises:
        ValueError: no such name, or what it names is not a subclass of GFNTask. Nothing but such a class is called.
    """
    check_task_name(name)
    from gflownet.evaluation.task import GFNTask

    module_name, class_name = TASKS.get(name, name).split(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(f"task: expected an importable module, got {module_name!r} ({error})") from error
    task_class = getattr(module, class_name, None)
    if not (isinstance(task_class, type) and issubclass(task_class, GFNTask)):
        nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
        raise ValueError(f"task: expected a subclass of GFNTask, got {name!r}; did you mean {nearest}?")
    return task_class
