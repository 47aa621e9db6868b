"""Replay buffer: eviction, priorities, sampling, saved state."""

from __future__ import annotations

import io
from collections import Counter
from random import Random

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.learning.config import ReplayConfig
from gflownet.learning.replay import ActionSequences, ReplayBuffer, SeenStates, action_sequences, draw
from gflownet.learning.sampler import sample_backward, sample_forward
from gflownet.mdp.states import GraphStates
from gflownet.mdp.trajectory import Origin, TrajectoryBatch
from tests.contracts.environments import ENVIRONMENTS
from tests.learning.policies import keys, opinionated, unconditional
from tests.oracles.chi_square import p_value


@pytest.fixture(scope="module")
def terminal() -> GraphStates:
    graph = enumerate_states(ENVIRONMENTS["undirected"]())
    return graph.states[graph.terminal[:40]]


def filled(terminal: GraphStates, *, num: int = 40, capacity: int = 100) -> ReplayBuffer:
    """Return a buffer of the first `num` states under the keys "0", "1", ... with the scores 0, 1, ..."""
    buffer = ReplayBuffer(ReplayConfig(warmup=1, capacity=capacity))
    for index in torch.arange(num).split(7):
        buffer.add(SeenStates(terminal[index], index.float()), keys=[str(i) for i in index.tolist()])
    return buffer


def sampled(buffer: ReplayBuffer, num: int, *, seed: int) -> tuple[GraphStates, torch.Tensor]:
    found = buffer.sample(num, seed=seed)
    assert found is not None
    return found.terminal, found.scores


def drawn(buffer: ReplayBuffer, num: int, *, seed: int = 0) -> Counter:
    _, scores = sampled(buffer, num, seed=seed)
    return Counter(scores.int().tolist())


def test_replay_add_more_than_capacity_and_evicted_state_again(terminal):
    buffer = ReplayBuffer(ReplayConfig(warmup=1, capacity=3))
    buffer.add(SeenStates(terminal[:10], torch.arange(10.0)), keys=list("abcdefghij"))
    assert buffer.state_dict()["keys"] == ["h", "i", "j"]
    assert drawn(buffer, 200).keys() == {7, 8, 9}
    buffer.add(SeenStates(terminal[:1], torch.tensor([50.0])), keys=["a"])
    assert buffer.state_dict()["keys"] == ["i", "j", "a"]


def test_replay_duplicate_key_keeps_first_score(terminal):
    buffer = ReplayBuffer(ReplayConfig(warmup=1))
    buffer.add(SeenStates(terminal[:4], torch.tensor([1.0, 2.0, 3.0, 4.0])), keys=["a", "b", "a", "c"])
    buffer.add(SeenStates(terminal[:2], torch.tensor([9.0, 9.0])), keys=["c", "a"])
    assert len(buffer) == 3
    assert buffer.state_dict()["keys"] == ["a", "b", "c"]
    assert buffer.state_dict()["scores"].tolist() == [1.0, 2.0, 4.0]


def test_replay_mixed_priority_shares(terminal):
    buffer, num = filled(terminal), 10_000
    counts = drawn(buffer, num)
    best = range(36, 40)  # four of forty
    expected_best = num * (1 / 2 + 1 / 20)
    assert sum(counts[i] for i in best) == pytest.approx(expected_best, abs=4.5 * (num * 0.1 * 0.9) ** 0.5)
    for i in best:
        assert counts[i] == pytest.approx(expected_best / 4, rel=0.2)
    for i in range(36):
        assert counts[i] == pytest.approx(num / 80, rel=0.45)


def test_replay_uniform_draws_without_early_repeats(terminal):
    buffer = ReplayBuffer(ReplayConfig(warmup=1, priority="uniform"))
    buffer.add(SeenStates(terminal[:20], torch.arange(20.0)), keys=[str(i) for i in range(20)])
    assert drawn(buffer, 4_000) == dict.fromkeys(range(20), 200)
    assert drawn(buffer, 20, seed=1) == dict.fromkeys(range(20), 1)
    assert max(drawn(buffer, 7, seed=2).values()) == 1
    assert len({tuple(drawn(buffer, 7, seed=seed)) for seed in range(20)}) == 20  # others every time


def test_draw_counts_near_expectation():
    for rng in map(Random, range(40)):
        num, weights = (
            rng.randint(0, 60),
            [rng.choice((0, 0.01, 1, 10)) * rng.random() for _ in range(rng.randint(1, 30))],
        )
        weights = torch.tensor([*weights, 1.0])
        counts = draw(weights, num, torch.Generator().manual_seed(rng.getrandbits(31))).bincount(minlength=len(weights))
        expected = num * weights.double() / weights.double().sum()
        assert int(counts.sum()) == num
        assert bool(((counts - expected).abs() < 1 + 1e-9).all())
        assert not bool(counts[weights == 0].any())


def test_draw_frequencies_over_seeds():
    weights, num, num_seeds = torch.tensor([1.0, 4.0, 0.5, 2.0, 7.0, 0.0, 1.0]), 3, 1_500
    counts = torch.zeros(len(weights))
    for seed in range(num_seeds):
        counts += draw(weights, num, torch.Generator().manual_seed(seed)).bincount(minlength=len(weights))
    expected = num * weights / weights.sum()
    deviation = (expected.frac() * (1 - expected.frac()) / num_seeds) ** 0.5  # a count is one of two
    assert bool(((counts / num_seeds - expected).abs() <= 4.5 * deviation).all())


def test_replay_rank_weights(terminal):
    """Weights 1 / (0.01 n + rank), rank the number of better states."""
    scores = [3.0, 9.0, 1.0, 3.0, 7.0, 3.0, 0.0, 2.0, 8.0, 4.0]
    buffer = ReplayBuffer(ReplayConfig(warmup=1, priority="rank"))
    buffer.add(SeenStates(terminal[:10], torch.tensor(scores)), keys=[str(i) for i in range(10)])
    weights = [1 / (0.1 + sum(other > score for other in scores)) for score in scores]
    expected: dict[int, float] = {}
    for score, weight in zip(scores, weights, strict=True):
        expected[int(score)] = expected.get(int(score), 0) + weight / sum(weights)
    assert p_value(drawn(buffer, 20_000), expected) > 1e-3


def test_replay_rank_by_mean_utility(terminal):
    buffer = ReplayBuffer(ReplayConfig(warmup=1, evict="worst", capacity=2))
    buffer.add(SeenStates(terminal[:3], torch.tensor([[0.0, 1.0], [0.4, 0.4], [0.9, 0.3]])), keys=["a", "b", "c"])
    assert buffer.state_dict()["keys"] == ["a", "c"]


def test_replay_evicts_worst(terminal):
    buffer = ReplayBuffer(ReplayConfig(warmup=1, capacity=3, evict="worst"))
    assert buffer.add(SeenStates(terminal[:2], torch.tensor([5.0, 1.0])), keys=["a", "b"]) == 2
    assert buffer.add(SeenStates(terminal[2:5], torch.tensor([0.0, 1.0, 7.0])), keys=["c", "d", "e"]) == 3
    assert buffer.state_dict()["keys"] == ["a", "d", "e"]
    assert buffer.state_dict()["scores"].tolist() == [5.0, 1.0, 7.0]
    buffer.add(SeenStates(terminal[5:6], torch.tensor([0.5])), keys=["f"])
    assert buffer.state_dict()["keys"] == ["a", "d", "e"]


def test_replay_mixed_priority_with_equal_scores(terminal):
    buffer = ReplayBuffer(ReplayConfig(warmup=1))
    buffer.add(SeenStates(terminal[:20], torch.ones(20)), keys=[str(i) for i in range(20)])
    states, _ = sampled(buffer, 500, seed=2)
    assert all(bool(states.equals(GraphStates.cat([terminal[i : i + 1]] * 500)).any()) for i in range(20))


def test_replay_sample_pairs_and_seed(terminal):
    buffer = filled(terminal, capacity=25)
    (states, first), (_, second), (_, other) = (sampled(buffer, 50, seed=seed) for seed in (3, 3, 4))
    assert bool(states.equals(terminal[first.long()]).all())
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_replay_warmup(terminal):
    buffer = ReplayBuffer(ReplayConfig(warmup=3))
    buffer.add(SeenStates(terminal[:0], torch.zeros(0)), keys=[])
    for i in range(3):
        assert buffer.sample(1, seed=0) is None
        buffer.add(SeenStates(terminal[i : i + 1], torch.ones(1)), keys=[str(i)])
    assert buffer.sample(5, seed=0) is not None


def saved_and_loaded(buffer: ReplayBuffer, *, capacity: int = 100) -> ReplayBuffer:
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    again = ReplayBuffer(ReplayConfig(warmup=1, capacity=capacity))
    again.load_state_dict(torch.load(file, weights_only=True))
    return again


def test_replay_state_dict_round_trip(terminal):
    buffer = filled(terminal, num=20, capacity=30)
    again = saved_and_loaded(buffer, capacity=30)
    assert len(again) == 20
    for one in (buffer, again):
        one.add(SeenStates(terminal[15:40], torch.arange(15.0, 40.0)), keys=[str(i) for i in range(15, 40)])
    assert again.state_dict()["keys"] == buffer.state_dict()["keys"] == [str(i) for i in range(10, 40)]
    ours, theirs = (sampled(one, 100, seed=5) for one in (buffer, again))
    assert torch.equal(ours[1], theirs[1])
    assert bool(ours[0].equals(theirs[0]).all())


def test_replay_empty_state_dict(terminal):
    again = saved_and_loaded(ReplayBuffer(ReplayConfig(warmup=1)))
    assert len(again) == 0
    again.add(SeenStates(terminal[:2], torch.ones(2)), keys=["a", "b"])
    assert len(again) == 2


def test_replay_state_dict_is_a_snapshot(terminal):
    buffer = filled(terminal, num=5, capacity=5)
    state = buffer.state_dict()
    buffer.add(SeenStates(terminal[10:15], torch.arange(5.0) + 10), keys=list("abcde"))
    assert state["scores"].tolist() == [0, 1, 2, 3, 4]
    assert state["keys"] == ["0", "1", "2", "3", "4"]
    assert torch.equal(state["states"]["node_type"], terminal.node_type[:5])


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
def both_ways(request) -> tuple:
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


def test_action_sequences_replay_forward_trajectories_exactly(both_ways):
    env, fresh, _ = both_ways
    again = walked(env, action_sequences(env, fresh))
    assert bool(again.states.equals(fresh.states).all())
    assert bool(again.terminal.equals(fresh.terminal).all())
    for name in ("trajectory", "log_backward", "log_symmetry"):
        assert torch.equal(getattr(again, name), getattr(fresh, name))
    for ours, theirs in ((again.actions, fresh.actions), (again.backward, fresh.backward)):
        assert all(torch.equal(a, b) for a, b in zip(ours.parts, theirs.parts, strict=True))
    assert again.origin.tolist() == [int(Origin.REMEMBERED)] * NUM


def test_action_sequences_replay_backward_trajectories_up_to_isomorphism(both_ways):
    env, _, back = both_ways
    again = walked(env, action_sequences(env, back))
    env.step(again.states, again.actions)  # raises if one is illegal
    for i in range(NUM):
        ours, theirs = again[i], back[i]
        assert keys(env, ours.states) == keys(env, theirs.states)
        assert torch.allclose(ours.log_backward, theirs.log_backward)
        arrived = env.step(ours.states, ours.actions)
        assert len(arrived) == 1 or bool(arrived[: len(arrived) - 1].equals(ours.states[1:]).all())


def test_action_sequences_index_and_cat(both_ways):
    env, fresh, back = both_ways
    both = ActionSequences.cat([action_sequences(env, fresh), action_sequences(env, back)])
    index = torch.tensor([3, NUM + 2, 3, 0])
    chosen = walked(env, both[index])
    assert keys(env, chosen.terminal) == [keys(env, fresh.terminal)[i % NUM] for i in index.tolist()]
    assert torch.bincount(chosen.trajectory).tolist() == both.num_actions[index].tolist()
    assert both[:2].num_actions.tolist() == both.num_actions[:2].tolist()
    assert len(both[index[:0]]) == 0
