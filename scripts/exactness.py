"""How exactly the sampler hits p(x) ~ R(x): analytic flows on every toy space, and trained networks.

    PYTHONPATH=. python scripts/exactness.py [--quick] [--json FILE] [--keep FOLDER]

`--ladder`, `--objectives`, `--backward`, `--estimates`, `--trained`, `--large` and `--cells` run these parts only. The
trained networks are runs of `python -m gflownet.train` under `configs/exact.yaml` and `configs/cells_exact.yaml`.
Every distance is that of the exact push-forward of a policy's terminating distribution; estimates are shown beside it,
never in its place. In full this takes hours: every run of every seed is reported. With `--keep FOLDER` the run folders
stay there, and a run that has its certificate is read, not repeated.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import torch
from bench import Row, at_most, figure, finish, make_parser, skip
from estimated import estimate_rows
from ladder import SPACES, ladder_rows, random_log_backward
from torch import Tensor

from gflownet.config import load_config
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.mdp.environment import Environment
from gflownet.metrics.exact import (
    StateGraph,
    analytic_flows,
    enumerate_backward,
    enumerate_states,
    l1_distance,
    terminating_distribution,
)
from gflownet.objectives.config import AlgoConfig, BackwardName
from gflownet.run_folder import CERTIFICATE_NAME
from gflownet.trainer import GFNTrainer
from tests.objectives.balanced import COMBINATIONS, FLOW_OBJECTIVES, set_up, set_up_relative
from tests.objectives.spaces import FromOneNode
from tests.oracles.tabular import classes_of

SEEDS = (0, 1, 2)
TABLE = Path(__file__).resolve().parents[2] / "shared" / "data" / "nb201.csv.gz"
CELL_TV, CELL_LOG_Z = 0.05, 0.05
CELL_TARGETS = {32: 1.400, 128: -16.691}  # beta: log of the sum of (validation / 100)^beta over all cells
EVERY_STATE_MAY_STOP = FromOneNode(["a"], max_nodes=4)  # as modified detailed balance asks
QUICK_CLASSES = 6
BALANCED = 1e-9  # a loss at exact flows, in float64 from rewards in float32
INDEPENDENT = 1e-6  # L1 between what different backward policies sample at exact flows


@dataclass(frozen=True)
class Space:
    """An enumerable space, the options of `configs/exact.yaml` that describe it, and what is trained on it."""

    name: str
    make: Callable[[], Environment]
    goal: float  # total variation
    overrides: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("tb", "db", "subtb")
    backward_policies: tuple[BackwardName, ...] = ("uniform", "learned")


SMALL = (
    Space(
        "two-coloured graphs, up to 4 nodes (65)",
        lambda: GraphBuildingEnv(["a", "b"], max_nodes=4),
        0.01,
        ("env.coloured_graph.max_nodes=4", "num_training_steps=300"),
    ),
    Space(
        "DAGs, 2 types, up to 4 nodes (260)",
        lambda: GraphBuildingEnv(["a", "b"], max_nodes=4, directed=True),
        0.01,
        ("env.coloured_graph.max_nodes=4", "env.coloured_graph.directed=true", "num_training_steps=160"),
    ),
    Space("two-coloured graphs, up to 5 nodes (419)", lambda: GraphBuildingEnv(["a", "b"], max_nodes=5), 0.01),
)
LARGE = Space(
    "two-coloured graphs, up to 6 nodes (4,302)",
    lambda: GraphBuildingEnv(["a", "b"], max_nodes=6),
    0.03,
    (
        "env.coloured_graph.max_nodes=6",
        "num_training_steps=400",
        "algo.num_from_policy=256",
        "replay.num_batches=40",
        "opt.learning_rate=0.02",
        "model.num_heads=4",
    ),
    methods=("tb",),
    backward_policies=("uniform",),
)


def trained_rows(spaces: Sequence[Space], *, quick: bool, keep: Path | None = None) -> Iterator[Row]:
    """Yield the distances of trained networks; quick: of one short run."""
    runs = [
        (f"{space.name}, {method}, P_B {backward_policy}, seed {seed}", space, method, backward_policy, seed)
        for seed, space in product(SEEDS, spaces)
        for backward_policy, method in product(space.backward_policies, space.methods)
    ]
    for label, space, method, backward_policy, seed in runs[: 1 if quick else None]:
        options = (
            f"algo.method={method}",
            f"algo.backward_policy={backward_policy}",
            f"task_options.reward_seed={seed}",
        )
        short = ("num_training_steps=5",) if quick else ()
        found = certified("exact", label, (*space.overrides, *options, f"seed={seed}", *short), keep=keep)
        yield from _distances(label, found, goal=None if quick else space.goal)


def certified(config: str, label: str, overrides: Sequence[str], *, keep: Path | None) -> dict[str, float]:
    """Return the figures of the exact certificate of a run, which is read where its folder holds one already."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)) / re.sub(r"[^a-z0-9]+", "_", label.lower())
        path = folder / CERTIFICATE_NAME
        if not path.is_file():
            given = [*overrides, f"log_dir={folder}", "wandb.mode=disabled", "overwrite_existing_exp=true"]
            GFNTrainer(load_config(config, given)).run()
        (part,) = json.loads(path.read_text(encoding="utf-8"))["certificates"]
    return {name: value for name, value in part.items() if isinstance(value, float)}


def objective_rows(*, quick: bool) -> Iterator[Row]:
    """Yield the largest loss of every objective at flows that balance, over schemes of symmetries, P_B and spaces.

    Quick: on the smallest spaces alone.
    """
    found: dict[str, list[float]] = {method: [] for method in (*FLOW_OBJECTIVES, "fm", "modified_db", "relative_tb")}
    ladder = [space.env for space in SPACES if not quick or space.num_classes <= QUICK_CLASSES]
    for env in (*ladder, EVERY_STATE_MAY_STOP):
        space = classes_of(env, enumerate_states(env))
        methods = (*FLOW_OBJECTIVES, "fm", *(["modified_db"] if env is EVERY_STATE_MAY_STOP else []))
        for config in (config for method in methods for config in _configs_of(method)):
            objective, policy, batch, _ = set_up(space, config)
            found[config.method].append(objective.loss(policy, batch).metrics["loss"])
        objective, policy, batch = set_up_relative(space)
        found["relative_tb"].append(objective.loss(policy, batch).metrics["loss"])
        print(f"{len(space.graph):,} states are done", flush=True)
    for method, losses in found.items():
        name = f"{method}: largest loss at flows that balance, {len(losses)} cases"
        yield Row(name, max(losses), "", f"< {BALANCED}", max(losses) < BALANCED)


def _configs_of(method: str) -> Iterator[AlgoConfig]:
    """Yield an objective with every scheme of symmetries and backward policy; flow matching has no P_B to learn."""
    for symmetry, backward_policy in COMBINATIONS:
        if method != "fm" or backward_policy == "uniform":
            yield AlgoConfig(method=method, symmetry=symmetry, backward_policy=backward_policy)


def cell_rows(*, quick: bool, keep: Path | None = None) -> Iterator[Row]:
    """Yield the distances on the 15,625 cells of NAS-Bench-201 under two temperatures; none without its table."""
    if not TABLE.exists():
        skip("the cells of NAS-Bench-201", "no table ../shared/data/nb201.csv.gz")
        return
    for beta, log_z in CELL_TARGETS.items():
        for seed in SEEDS[:1] if quick else SEEDS:
            label = f"NAS-Bench-201, beta {beta}, tb, seed {seed}"
            options = [f"task_options.table={TABLE}", f"cond.temperature.dist_params=[{beta}]", f"seed={seed}"]
            options += ["num_training_steps=2", "model.compile=false"] if quick else []
            found = certified("cells_exact", label, options, keep=keep)
            yield Row(f"{label}: true log Z", found["log_z"], "", f"{log_z}", abs(found["log_z"] - log_z) < 5e-4)
            yield from _distances(
                label, found, goal=None if quick else CELL_TV, log_z_goal=None if quick else CELL_LOG_Z
            )
        if quick:
            return


def backward_rows() -> Iterator[Row]:
    """Yield how far apart what exact flows of different backward policies sample is, on spaces up to 419 classes."""
    for space in SMALL:
        env = space.make()
        graph = enumerate_states(env)
        backward = enumerate_backward(env, graph)
        log_reward = torch.randn(len(graph), generator=torch.Generator().manual_seed(0)) + graph.num_automorphisms.log()
        log_ways = _log_ways(graph, backward.child, backward.parent)
        by_policy = {
            "uniform": None,
            "maxent": backward.per_forward(log_ways[backward.parent] - log_ways[backward.child]),
            "random": backward.per_forward(random_log_backward(env, graph, backward)),
        }
        sampled = [
            terminating_distribution(graph, analytic_flows(graph, log_reward, log_backward).log_forward)
            for log_backward in by_policy.values()
        ]
        apart = max(l1_distance(a, b) for a, b in pairwise(sampled))
        name = f"{space.name}: largest L1 between exact flows of P_B {', '.join(by_policy)}"
        yield Row(name, apart, "", f"< {INDEPENDENT}", apart < INDEPENDENT)


def _log_ways(graph: StateGraph, child: Tensor, parent: Tensor) -> Tensor:
    """Return the log of the number of labelled ways back to the initial state, [S]."""
    ways = torch.zeros(len(graph), dtype=torch.float64)
    ways[0] = 1.0
    for level in range(1, int(graph.level.max()) + 1):
        here = graph.level[child] == level
        ways.index_add_(0, child[here], ways[parent[here]])
    return ways.log()


def _distances(
    label: str, found: Mapping[str, float], *, goal: float | None, log_z_goal: float | None = None
) -> list[Row]:
    """Return the rows of one certificate; a figure without a goal holds."""
    print(f"{label}: total variation {found['total_variation']:.4f}", flush=True)
    rows = [
        at_most(f"{label}: total variation", found["total_variation"], "", goal),
        figure(f"{label}: Jensen-Shannon divergence", found["jensen_shannon"], "nats"),
        figure(f"{label}: Spearman(p, R)", found["spearman"]),
    ]
    if "log_z_error" in found:  # of objectives that learn log Z
        rows.append(at_most(f"{label}: error of log Z", found["log_z_error"], "nats", log_z_goal))
    return rows


if __name__ == "__main__":
    parts = {
        "ladder": lambda quick: ladder_rows(quick=quick),
        "objectives": lambda quick: objective_rows(quick=quick),
        "backward": lambda quick: backward_rows(),
        "estimates": lambda quick: estimate_rows(quick=quick),
        "trained": lambda quick: trained_rows(SMALL, quick=quick, keep=arguments.keep),
        "large": lambda quick: trained_rows([LARGE], quick=quick, keep=arguments.keep),
        "cells": lambda quick: cell_rows(quick=quick, keep=arguments.keep),
    }
    parser = make_parser(__doc__, **{name: f"only this part: {name}" for name in parts})
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep run folders there, and read finished ones")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # scripts/ladder.py and scripts/estimated.py have their own quick runs
    default = [name for name in parts if not arguments.quick or name not in ("ladder", "estimates")]
    chosen = [name for name in parts if getattr(arguments, name)] or default
    rows = [row for name in chosen for row in parts[name](arguments.quick)]
    sys.exit(finish(rows, json_path=arguments.json))
