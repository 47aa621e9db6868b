"""Rungs 1 to 3 of the test ladder of spec/gflownet.md on all its spaces: counted, balanced, and wrong where it must be.

    python scripts/ladder.py [--quick] [--json FILE]

`scripts/exactness.py` calls `ladder_rows`; a quick run leaves out the largest space.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.envs.tensor_graph import TensorGraphEnv
from gflownet.mdp.environment import Environment
from gflownet.metrics.exact import (
    BackwardActions,
    StateGraph,
    analytic_flows,
    class_log_backward,
    enumerate_backward,
    enumerate_states,
    l1_distance,
    target_distribution,
    terminating_distribution,
)
from scripts.bench import Row, figure, finish, parse_arguments

EXACT = 1e-6  # L1 of what is right; rounding alone leaves about 1e-15
DECIMALS = 5e-4  # three decimals of a published figure
SHOWS = 1e-2  # L1 that a wrong way of counting at least has


@dataclass(frozen=True)
class Space:
    """A space of the spec's table, and what the table says of it; of tensor programs, what their slow oracle counts."""

    name: str
    env: Environment
    num_classes: int
    uncorrected: float  # L1 to a uniform reward when symmetries are ignored


SPACES = (
    *(
        Space(f"connected graphs, {n} nodes", GraphBuildingEnv(["a"], max_nodes=n, min_nodes=n), num_classes, distance)
        for n, num_classes, distance in ((4, 6, 0.5965), (5, 21, 0.6264), (6, 112, 0.6254), (7, 853, 0.5530))
    ),
    *(
        Space(f"two-coloured graphs, up to {n} nodes", GraphBuildingEnv(["a", "b"], max_nodes=n), num_classes, distance)
        for n, num_classes, distance in ((4, 65, 0.4308), (5, 419, 0.4365), (6, 4302, 0.4612), (7, 72296, 0.4277))
    ),
    Space("DAGs, 2 types, up to 4 nodes", GraphBuildingEnv(["a", "b"], max_nodes=4, directed=True), 260, 0.1638),
    Space("DAGs, 1 type, up to 5 nodes", GraphBuildingEnv(["a"], max_nodes=5, directed=True), 185, 0.2490),
    Space(
        "tensor programs on a vector, up to 2 operations",
        TensorGraphEnv(
            {"a": (2,)},
            operations=("transform", "*", "-"),
            functions=(),
            new_extents=(2,),
            max_operations=2,
            max_rank=2,
        ),
        146,
        0.1186,
    ),
)
LARGEST = "two-coloured graphs, up to 7 nodes"


def num_orbit_violations(graph: StateGraph, backward: BackwardActions) -> int:
    """Return on how many edges G -> G' of the state graph n_forward |Aut G'| = n_backward |Aut G| does not hold."""
    moves, num = ~graph.stops, len(graph)
    forward, num_forward = (graph.parent[moves] * num + graph.child[moves]).unique(return_counts=True)
    reverse, num_backward = (backward.parent * num + backward.child).unique(return_counts=True)
    if not torch.equal(forward, reverse):
        return 2 * len(torch.cat([forward, reverse]).unique()) - len(forward) - len(reverse)  # one way only
    parent, child = forward.div(num, rounding_mode="floor"), forward % num
    symmetries = graph.num_automorphisms
    return int((num_forward * symmetries[child] != num_backward * symmetries[parent]).sum())


def mixed_log_backward(graph: StateGraph) -> Tensor:
    """Return log P_B [M] of the two schemes mixed: forwards equivalent actions are summed, backwards they are not."""
    pairs = graph.parent * len(graph) + graph.child
    _, position, num_equivalent = pairs.unique(return_inverse=True, return_counts=True)
    return -(graph.num_backward[graph.child].double().log() + num_equivalent[position].double().log())


def random_log_backward(env: Environment, graph: StateGraph, backward: BackwardActions) -> Tensor:
    """Return a random backward policy [K] that treats equivalent actions alike, as any policy on graphs does."""
    _, orbit = env.identify_actions(graph.states[backward.child], backward.action).unique(return_inverse=True)
    logits = torch.randn(len(orbit), generator=torch.Generator().manual_seed(1), dtype=torch.float64)[orbit]
    total = torch.zeros(len(graph), dtype=torch.float64).index_add(0, backward.child, logits.exp())
    return logits - total.log()[backward.child]


def distance(graph: StateGraph, log_reward: Tensor, target: Tensor, log_backward: Tensor | None = None) -> float:
    """Return the L1 distance of what the flows of a reward and a backward policy sample to a target."""
    flows = analytic_flows(graph, log_reward, log_backward)
    return l1_distance(terminating_distribution(graph, flows.log_forward), target)


def space_rows(space: Space) -> list[Row]:
    """Return what the three rungs find on one space."""
    start = time.perf_counter()
    graph = enumerate_states(space.env)
    seconds = time.perf_counter() - start
    backward = enumerate_backward(space.env, graph)
    log_symmetry, uniform = graph.num_automorphisms.log(), torch.zeros(len(graph))
    log_reward = 2 * torch.randn(len(graph), generator=torch.Generator().manual_seed(0))
    target, flat = target_distribution(graph, log_reward), target_distribution(graph, uniform)
    labelled = distance(graph, log_reward + log_symmetry, target)
    by_class = distance(graph, log_reward, target, class_log_backward(graph))
    other = backward.per_forward(random_log_backward(space.env, graph, backward))
    any_backward = distance(graph, log_reward + log_symmetry, target, other)
    uncorrected = distance(graph, uniform, flat)
    divided = distance(graph, uniform, target_distribution(graph, uniform - log_symmetry))
    mixed = distance(graph, uniform, flat, mixed_log_backward(graph))
    violations, num_classes = num_orbit_violations(graph, backward), len(graph.terminal)
    decimals = f"{space.uncorrected:.4f} to 3 decimals"
    rows = [
        ("classes", num_classes, f"{space.num_classes}", num_classes == space.num_classes),
        ("edges on which the orbit identity fails", violations, "0", violations == 0),
        ("L1, flows counted labelled, reward times |Aut|", labelled, f"< {EXACT}", labelled < EXACT),
        ("L1, flows counted by class", by_class, f"< {EXACT}", by_class < EXACT),
        ("L1, flows of a random backward policy", any_backward, f"< {EXACT}", any_backward < EXACT),
        ("L1, symmetries ignored", uncorrected, decimals, abs(uncorrected - space.uncorrected) < DECIMALS),
        ("L1 to R / |Aut|, symmetries ignored", divided, f"< {EXACT}", divided < EXACT),
        ("L1, schemes mixed", mixed, f"> {SHOWS}", mixed > SHOWS),
    ]
    found = [Row(f"{space.name}: {name}", value, "", goal, holds) for name, value, goal, holds in rows]
    return [*found, figure(f"{space.name}: time to enumerate", seconds, "s")]


def ladder_rows(*, quick: bool) -> list[Row]:
    """Return what rungs 1 to 3 find on all spaces, on a quick run on all but the largest."""
    rows = []
    for space in SPACES:
        if quick and space.name == LARGEST:
            continue
        rows += space_rows(space)
        print(f"{space.name}: {sum(not row.holds for row in rows)} goals missed so far", flush=True)
    return rows


if __name__ == "__main__":
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    sys.exit(finish(ladder_rows(quick=arguments.quick), json_path=arguments.json))
