"""Architectures from uniformly random actions."""

import torch

from gflownet.data.sampler import uniform_candidates
from gflownet.envs.graph_building import GraphBuildingEnv


def num_nodes(candidate) -> int:
    return len(candidate.to_dict()["nodes"])


def test_first_candidate_is_an_unbiased_sample():
    """After one node, Stop and AddNode are the two actions. Short trajectories must not come first."""
    env = GraphBuildingEnv(["a"], max_nodes=2)
    generator, num = torch.Generator().manual_seed(0), 40
    sizes = [num_nodes(uniform_candidates(env, 1, generator=generator)[0]) for _ in range(num)]
    assert 1 in sizes
    assert abs(sizes.count(1) - num / 2) < 3.5 * (num / 4) ** 0.5


def test_candidates_are_different_and_repeatable():
    env = GraphBuildingEnv(["a", "b"], max_nodes=4)
    first, second = (uniform_candidates(env, 40, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    keys = [candidate.canonical_key() for candidate in first]
    assert len(set(keys)) == len(keys) == 40
    assert keys == [candidate.canonical_key() for candidate in second]


def test_small_space_has_fewer_candidates():
    env = GraphBuildingEnv(["a", "b"], max_nodes=1)
    assert len(uniform_candidates(env, 50, generator=torch.Generator().manual_seed(0))) == 2
    assert uniform_candidates(env, 0, generator=torch.Generator()) == []
