"""Action sequences of trajectories and their replay."""

import pytest
import torch

from gflownet.data.replay import ActionSequences, action_sequences
from gflownet.data.sampler import sample_backward, sample_forward
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from tests.contracts.environments import ENVIRONMENTS
from tests.data.policies import keys, opinionated, unconditional

NUM = 4
# Other cases of the same class are fast.
CASES = [
    *("catalogue", "undirected_attributes", "directed_attributes", "labelled_dag", "computation_graph_ordered"),
    *("computation_graph_recurrent", "operation_graph_projections", "hypergrid", "cells_capped", "choices"),
    *("recurrent_stack_of_gru", "tensor_graph_new_indices"),
]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in CASES else pytest.mark.slow) for name in ENVIRONMENTS],
)
def sampled(request) -> tuple:
    env = ENVIRONMENTS[request.param]()
    context, policy = opinionated(env, sharpness=1.0)
    generator = torch.Generator().manual_seed(1)
    told = unconditional(NUM)
    fresh = sample_forward(
        context, policy, conditioning=told, generator=generator, random_action_prob=0.5, temperature=3.0
    )
    return env, fresh, sample_backward(context, fresh.terminal, conditioning=told, generator=generator)


def walked(env, sequences: ActionSequences) -> TrajectoryBatch:
    return sequences.walk(env, conditioning=unconditional(len(sequences)), origin=Origin.REMEMBERED)


def test_action_sequences_replay_forward_trajectories_exactly(sampled):
    env, fresh, _ = sampled
    again = walked(env, action_sequences(env, fresh))
    assert bool(again.states.equals(fresh.states).all())
    assert bool(again.terminal.equals(fresh.terminal).all())
    for name in ("trajectory", "log_backward", "log_symmetry"):
        assert torch.equal(getattr(again, name), getattr(fresh, name))
    for ours, theirs in ((again.actions, fresh.actions), (again.backward, fresh.backward)):
        assert all(torch.equal(a, b) for a, b in zip(ours.parts, theirs.parts, strict=True))
    assert again.origin.tolist() == [int(Origin.REMEMBERED)] * NUM


def test_action_sequences_replay_backward_trajectories_up_to_isomorphism(sampled):
    env, _, back = sampled
    again = walked(env, action_sequences(env, back))
    env.step(again.states, again.actions)  # raises if one is illegal
    for i in range(NUM):
        ours, theirs = again[i], back[i]
        assert keys(env, ours.states) == keys(env, theirs.states)
        assert torch.allclose(ours.log_backward, theirs.log_backward)
        arrived = env.step(ours.states, ours.actions)
        assert len(arrived) == 1 or bool(arrived[: len(arrived) - 1].equals(ours.states[1:]).all())


def test_action_sequences_index_and_cat(sampled):
    env, fresh, back = sampled
    both = ActionSequences.cat([action_sequences(env, fresh), action_sequences(env, back)])
    index = torch.tensor([3, NUM + 2, 3, 0])
    chosen = walked(env, both[index])
    assert keys(env, chosen.terminal) == [keys(env, fresh.terminal)[i % NUM] for i in index.tolist()]
    assert torch.bincount(chosen.trajectory).tolist() == both.num_actions[index].tolist()
    assert both[:2].num_actions.tolist() == both.num_actions[:2].tolist()
    assert len(both[index[:0]]) == 0
