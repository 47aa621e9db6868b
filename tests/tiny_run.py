"""The smallest run of a real search, and its files."""

import json
from pathlib import Path

from gflownet.run.logging import TIME_KEYS
from tests.recorded_space import RECORDED_DIGITS, RECORDED_MNIST1D

# Every stage of the default search, as small as it gets; a policy that is trained on scores makes two steps.
TINY_RUN = (
    "num_training_steps=2",
    "budget.evaluations=10",
    "search.random.even_share=0",
    "search.sampler.num_updates=1",
    "algo.num_from_policy=2",
    "model.num_layers=1",
    "model.num_emb=8",
    "env.max_hidden_nodes=1",
    "env.max_edges=3",
    "evaluation.num_epochs=1",
    "replay.use=false",
    "evaluation.executor=inline",
    "final.share=0.6",
    "final.num_seeds=2",
    "final.num_random=6",
    "wandb.mode=disabled",
    "report.every=null",
)
# A search method ends with its budget, not after some steps.
_SEARCH = ("budget.evaluations=4",)
_TRAINED_ONCE = ("final.epochs=1", "final.top=1", "final.num_seeds=1", "final.num_random=0")
# Further options for small runs of some configs.
_TENSORS = ("env.operation_graph.max_hidden_nodes=2", "final.epochs=1", "final.top=1")
TINY_TASKS = {
    "images_large": _TENSORS,
    "mnist1d_large": _TENSORS,
    "images": _TENSORS,
    "images_small": _TENSORS,
    "mnist1d": _TENSORS,
    "cells_exact": ("certify=false",),
    "recorded_digits": (*_SEARCH, f"task_options.table={RECORDED_DIGITS}"),
    "recorded_mnist1d": (*_SEARCH, f"task_options.table={RECORDED_MNIST1D}"),
    "tensor_mixing": ("final.top=1", "final.num_seeds=1", "final.num_random=0"),
    "cells": _SEARCH,
    "catalogue": _SEARCH,
    "nas_bench_201_train": ("budget.evaluations=2", *_TRAINED_ONCE),
    "nas_bench_201_full": ("budget.evaluations=1", "task_options.data=digits", *_TRAINED_ONCE),
    "language": (
        "task_options.num_steps=2",
        "evaluation.halving.min_fidelity=0",
        "task_options.seconds=0.1",
        "task_options.validation_bytes=64",
        "task_options.megabytes=1",
    ),
    "text_blocks": (
        *("budget.evaluations=2", "task_options.num_steps=2", "task_options.num_parameters=9000"),
        *("task_options.validation_bytes=64", "task_options.megabytes=1", *_TRAINED_ONCE),
    ),
}


def metric_rows(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of every step in a run's folder, but for times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIME_KEYS} for line in lines]
