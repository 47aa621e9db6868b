"""Exact flows on eleven enumerable spaces: class counts, orbit identity, and wrong symmetry schemes.

Letters: S states, M forward actions of all states, K backward actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gflownet.certificate.exact import (
    StateGraph,
    analytic_flows,
    enumerate_states,
    l1_distance,
    target_distribution,
    terminating_distribution,
)
from gflownet.envs.graph_building import GraphBuildingEnv
from gflownet.envs.tensor_graph import TensorGraphEnv
from gflownet.mdp.environment import Environment
from tests.oracles.backward_actions import BackwardActions, class_log_backward, enumerate_backward

EXACT = 1e-12  # L1 distance; rounding alone leaves about 1e-15


@dataclass(frozen=True)
class Space:
    """An environment, its number of terminal classes, and the L1 error of ignoring symmetries at a uniform reward."""

    env: Environment
    num_classes: int
    uncorrected: float


_TENSOR_PROGRAMS = TensorGraphEnv(
    {"a": (2,)}, operations=("transform", "*", "-"), functions=(), new_extents=(2,), max_operations=2, max_rank=2
)
_CONNECTED = ((4, 6, 0.5965), (5, 21, 0.6264), (6, 112, 0.6254), (7, 853, 0.5530))
_TWO_COLOURS = ((4, 65, 0.4308), (5, 419, 0.4365), (6, 4302, 0.4612), (7, 72296, 0.4277))
SPACES = {
    **{
        f"connected, {n} nodes": Space(GraphBuildingEnv(["a"], max_nodes=n, min_nodes=n), k, d)
        for n, k, d in _CONNECTED
    },
    **{f"two colours, {n} nodes": Space(GraphBuildingEnv(["a", "b"], max_nodes=n), k, d) for n, k, d in _TWO_COLOURS},
    "DAGs of two types, 4 nodes": Space(GraphBuildingEnv(["a", "b"], max_nodes=4, directed=True), 260, 0.1638),
    "DAGs of one type, 5 nodes": Space(GraphBuildingEnv(["a"], max_nodes=5, directed=True), 185, 0.2490),
    "tensor programs": Space(_TENSOR_PROGRAMS, 146, 0.1186),
}
_QUICK = ("connected, 5 nodes", "two colours, 4 nodes", "tensor programs")


@dataclass(frozen=True)
class Enumerated:
    """A space with its states and backward actions."""

    space: Space
    graph: StateGraph
    backward: BackwardActions

    @property
    def log_symmetry(self) -> Tensor:
        """Return log |Aut(s)|, [S]."""
        return self.graph.num_automorphisms.log()

    def sampled(self, log_reward: Tensor, log_backward: Tensor | None = None) -> Tensor:
        """Return the terminating distribution [S] of the flows that balance a reward [S] and a backward policy [M]."""
        return terminating_distribution(self.graph, analytic_flows(self.graph, log_reward, log_backward).log_forward)


def enumerate_space(space: Space) -> Enumerated:
    graph = enumerate_states(space.env)
    return Enumerated(space, graph, enumerate_backward(space.env, graph))


@pytest.fixture(
    scope="module", params=[name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SPACES]
)
def enumerated(request) -> Enumerated:
    return enumerate_space(SPACES[request.param])


def num_orbit_violations(graph: StateGraph, backward: BackwardActions) -> int:
    """Count the edges G -> G' on which n_forward |Aut G'| = n_backward |Aut G| is violated."""
    moves, num = ~graph.stops, len(graph)
    forward, num_forward = (graph.parent[moves] * num + graph.child[moves]).unique(return_counts=True)
    reverse, num_backward = (backward.parent * num + backward.child).unique(return_counts=True)
    if not torch.equal(forward, reverse):
        return 2 * len(torch.cat([forward, reverse]).unique()) - len(forward) - len(reverse)  # edges in one direction
    parent, child = forward.div(num, rounding_mode="floor"), forward % num
    symmetries = graph.num_automorphisms
    return int((num_forward * symmetries[child] != num_backward * symmetries[parent]).sum())


def mixed_log_backward(graph: StateGraph) -> Tensor:
    """Return log P_B [M] of the mixed scheme: equivalent actions are summed forward but not backward."""
    pairs = graph.parent * len(graph) + graph.child
    _, position, num_equivalent = pairs.unique(return_inverse=True, return_counts=True)
    return -(graph.num_backward[graph.child].double().log() + num_equivalent[position].double().log())


def random_log_backward(enumerated: Enumerated) -> Tensor:
    """Return a random backward policy [M] that gives equivalent actions equal probabilities."""
    graph, backward = enumerated.graph, enumerated.backward
    codes = enumerated.space.env.identify_actions(graph.states[backward.child], backward.action)
    _, orbit = codes.unique(return_inverse=True)
    logits = torch.randn(len(orbit), generator=torch.Generator().manual_seed(1), dtype=torch.float64)[orbit]
    total = torch.zeros(len(graph), dtype=torch.float64).index_add(0, backward.child, logits.exp())
    return backward.per_forward(logits - total.log()[backward.child])


def maximum_entropy_log_backward(enumerated: Enumerated) -> Tensor:
    """Return the maximum-entropy backward policy [M]: P_B is proportional to the number of paths into the parent."""
    graph, backward = enumerated.graph, enumerated.backward
    num_paths = torch.zeros(len(graph), dtype=torch.float64)
    num_paths[0] = 1.0
    for level in range(1, int(graph.level.max()) + 1):
        in_level = graph.level[backward.child] == level
        num_paths.index_add_(0, backward.child[in_level], num_paths[backward.parent[in_level]])
    log_paths = num_paths.log()
    return backward.per_forward(log_paths[backward.parent] - log_paths[backward.child])


def test_enumeration_matches_known_class_count(enumerated):
    assert len(enumerated.graph.terminal) == enumerated.space.num_classes


def test_enumeration_satisfies_orbit_identity(enumerated):
    assert num_orbit_violations(enumerated.graph, enumerated.backward) == 0


def test_orbit_identity_detects_wrong_symmetries_and_missing_parents():
    space = enumerate_space(SPACES["two colours, 4 nodes"])
    graph, backward = space.graph, space.backward
    wrong_graph = replace(graph, num_automorphisms=graph.num_automorphisms.index_fill(0, graph.terminal[-1:], 5.0))
    assert num_orbit_violations(wrong_graph, backward) > 0
    fewer = replace(backward, child=backward.child[1:], parent=backward.parent[1:])
    assert num_orbit_violations(graph, fewer) > 0


def test_analytic_flows_sample_the_reward_in_every_scheme(enumerated):
    graph = enumerated.graph
    log_reward = 2 * torch.randn(len(graph), generator=torch.Generator().manual_seed(0))
    target, corrected = target_distribution(graph, log_reward), log_reward + enumerated.log_symmetry
    samples = [
        enumerated.sampled(corrected),
        enumerated.sampled(corrected, maximum_entropy_log_backward(enumerated)),
        enumerated.sampled(corrected, random_log_backward(enumerated)),
        enumerated.sampled(log_reward, class_log_backward(graph)),
    ]
    assert max(l1_distance(sampled, target) for sampled in samples) < EXACT
    assert max(l1_distance(a, b) for a, b in pairwise(samples)) < EXACT


def test_analytic_flows_with_wrong_symmetry_scheme_miss_the_reward(enumerated):
    graph, uniform = enumerated.graph, torch.zeros(len(enumerated.graph))
    flat, uncorrected = target_distribution(graph, uniform), enumerated.sampled(uniform)
    assert l1_distance(uncorrected, flat) == pytest.approx(enumerated.space.uncorrected, abs=5e-4)
    assert l1_distance(uncorrected, target_distribution(graph, -enumerated.log_symmetry)) < EXACT
    assert l1_distance(enumerated.sampled(uniform, mixed_log_backward(graph)), flat) > 1e-2
