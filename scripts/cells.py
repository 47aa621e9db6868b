"""The cells of NAS-Bench-201 with the accuracies of its table as rewards, all 15,625 of them."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import torch
from enumerated import EnumeratedSpace

from gflownet.envs.cell_space import NAS_BENCH_201, CellEnv
from gflownet.metrics.exact import enumerate_states

TABLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "nb201.csv.gz"
VALIDATION, TEST = "c10_val12", "c10_test200"  # accuracies in per cent: after 12 epochs, after 200
CELL_TARGETS = {32: 1.400, 128: -16.691}  # beta: log of the sum of (validation / 100)^beta over all cells


def read_column(name: str) -> dict[str, float] | None:
    """Return a column of the table by the cell's code, in per cent; None where there is no table."""
    if not TABLE.exists():
        return None
    with gzip.open(TABLE, "rt", newline="") as file:
        return {row["code"]: float(row[name]) for row in csv.DictReader(file)}


def cell_space(beta: float) -> EnumeratedSpace | None:
    """Return all cells with log R = beta log(validation accuracy); None where there is no table."""
    accuracies = read_column(VALIDATION)
    if accuracies is None:
        return None
    env = CellEnv(NAS_BENCH_201)
    graph = enumerate_states(env)
    log_reward = torch.zeros(len(graph), dtype=torch.float64)
    for index in graph.terminal.tolist():
        accuracy = accuracies[NAS_BENCH_201.code(env.terminal(graph.states, index))] / 100
        log_reward[index] = beta * torch.tensor(accuracy, dtype=torch.float64).log()
    return EnumeratedSpace(env, graph, log_reward)
