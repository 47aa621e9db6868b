"""The built-in tasks."""

from __future__ import annotations

from gflownet.plugins import BuiltIn, ExtensionPoint

_ROOM = "gflownet.tasks"
TASKS = ExtensionPoint(
    "task",
    contract="gflownet.evaluation.task:GFNTask",
    options_key="task_options",
    group="gflownet.tasks",
    built_in={
        "digits": BuiltIn(f"{_ROOM}.digits:DigitsTask", "classifiers of handwritten digits"),
        "images": BuiltIn(f"{_ROOM}.images:ImagesTask", "convolutional networks for images, signals and masks"),
        "mnist1d": BuiltIn(f"{_ROOM}.mnist1d:MNIST1DTask", "convolutional classifiers of generated signals"),
        "table": BuiltIn(f"{_ROOM}.table:TableTask", "networks for the columns of a table"),
        "coloured_graphs": BuiltIn(f"{_ROOM}.coloured_graphs:ColouredGraphsTask", "a reward on small coloured graphs"),
        "structure_learning": BuiltIn(f"{_ROOM}.structure_learning:StructureLearningTask", "Bayesian networks"),
        "hypergrid": BuiltIn(f"{_ROOM}.hypergrid:HypergridTask", "corners of a grid"),
        "bit_sequences": BuiltIn(f"{_ROOM}.bit_sequences:BitSequencesTask", "distance to hidden bit strings"),
        "cells": BuiltIn(f"{_ROOM}.cells:CellsTask", "tables of NAS benchmarks"),
        "recorded": BuiltIn(f"{_ROOM}.recorded:RecordedTask", "candidates of any space in a table of evaluations"),
        "catalogue": BuiltIn(f"{_ROOM}.catalogue:CatalogueTask", "recorded results of listed graphs"),
        "nas_bench_201_train": BuiltIn(
            f"{_ROOM}.nas_bench_201_train:NasBench201TrainTask", "networks of cells, trained on images"
        ),
        "choices": BuiltIn(f"{_ROOM}.choices:ChoicesTask", "choices in your own code"),
        "tensor_program": BuiltIn(f"{_ROOM}.tensor_program:TensorProgramTask", "programs that compute a given tensor"),
        "tensor_mixing": BuiltIn(f"{_ROOM}.tensor_mixing:TensorMixingTask", "mixing layers of a classifier"),
        "language": BuiltIn(f"{_ROOM}.language:LanguageTask", "recurrent language models of a text"),
    },
)
