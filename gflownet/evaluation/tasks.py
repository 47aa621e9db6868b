"""The tasks by name, and the only door through which a task's class comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gflownet.plugins import check_name, load_class

if TYPE_CHECKING:
    from gflownet.evaluation.task import GFNTask

TASKS = {
    "digits": "gflownet.tasks.digits:DigitsTask",
    "coloured_graphs": "gflownet.tasks.coloured_graphs:ColouredGraphsTask",
    "structure_learning": "gflownet.tasks.structure_learning:StructureLearningTask",
    "hypergrid": "gflownet.tasks.hypergrid:HypergridTask",
    "bit_sequences": "gflownet.tasks.bit_sequences:BitSequencesTask",
    "cells": "gflownet.tasks.cells:CellsTask",
    "tensor_program": "gflownet.tasks.tensor_program:TensorProgramTask",
    "tensor_mixing": "gflownet.tasks.tensor_mixing:TensorMixingTask",
    "language": "gflownet.tasks.language:LanguageTask",
}


def check_task_name(name: str) -> None:
    """Raises ValueError unless `name` is a built-in task or of the form module:Class; imports nothing."""
    check_name("task", name, TASKS)


def load_task_class(name: str) -> type[GFNTask]:
    """Returns the class of a built-in task, or the GFNTask subclass that module:Class names.

    Raises:
        ValueError: no such name, or what it names is not a subclass of GFNTask. Nothing but such a class is called.
    """
    from gflownet.evaluation.task import GFNTask

    return load_class("task", name, TASKS, contract=GFNTask)
