"""The built-in tasks, and loading of a task class by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gflownet.plugins import BuiltIn, ExtensionPoint

if TYPE_CHECKING:
    from gflownet.evaluation.task import GFNTask

_ROOM = "gflownet.tasks"
TASKS = ExtensionPoint(
    "task",
    contract="gflownet.evaluation.task:GFNTask",
    options_key="task_options",
    built_in={
        "digits": BuiltIn(f"{_ROOM}.digits:DigitsTask", "classifiers of handwritten digits"),
        "coloured_graphs": BuiltIn(f"{_ROOM}.coloured_graphs:ColouredGraphsTask", "a reward on small coloured graphs"),
        "structure_learning": BuiltIn(f"{_ROOM}.structure_learning:StructureLearningTask", "Bayesian networks"),
        "hypergrid": BuiltIn(f"{_ROOM}.hypergrid:HypergridTask", "corners of a grid"),
        "bit_sequences": BuiltIn(f"{_ROOM}.bit_sequences:BitSequencesTask", "distance to hidden bit strings"),
        "cells": BuiltIn(f"{_ROOM}.cells:CellsTask", "tables of NAS benchmarks"),
        "tensor_program": BuiltIn(f"{_ROOM}.tensor_program:TensorProgramTask", "programs that compute a given tensor"),
        "tensor_mixing": BuiltIn(f"{_ROOM}.tensor_mixing:TensorMixingTask", "mixing layers of a classifier"),
        "language": BuiltIn(f"{_ROOM}.language:LanguageTask", "recurrent language models of a text"),
    },
)


def load_task_class(name: str) -> type[GFNTask]:
    """Return the class of a built-in task or of `module:Class`. Raises as `load_class`."""
    return TASKS.load(name)
