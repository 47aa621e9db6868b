"""scripts/race_torchgfn.py: equal targets on both sides, tuning by one rule, and the rows of the result."""

import math
from dataclasses import replace

import pytest

from gflownet.data.source import Rollout
from gflownet.mdp.action import GraphActionType
from gflownet.mdp.trajectory import Origin
from scripts import race_torchgfn
from scripts.peers.process import PeerError, PeerProcess, find_environment
from scripts.race_sides import Learner, OurLearner, PeerLearner, Progress, Setting, bit_sequences, hypergrid
from scripts.race_torchgfn import BARS, FULL, PEER_SCRIPT, QUICK, Entry, Run, compete, tune

SETTING = Setting("tb", batch=16, replay=2, updates=2, learning_rate=3e-3, is_backward=False)


@pytest.fixture(autouse=True)
def turns_of_64_trajectories(monkeypatch):
    monkeypatch.setattr(race_torchgfn, "TURN", 64)


class Scripted(Learner):
    """A learner with given distances after each turn and a price in seconds per step."""

    def __init__(self, distances, *, price):
        self.distances, self.price, self.is_closed = iter(distances), price, False

    def train(self, steps):
        return Progress(self.price * steps, next(self.distances))

    def close(self):
        self.is_closed = True


def test_hypergrid_original_reward():
    target = hypergrid(2, 8).build().lexicographic_target().reshape(8, 8)
    reward = target / target[3, 3] * 0.1
    for place, expected in {(0, 0): 0.6, (1, 1): 2.6, (1, 6): 2.6, (0, 1): 0.6, (1, 3): 0.1, (2, 2): 0.1}.items():
        assert math.isclose(reward[place], expected, rel_tol=1e-5), place


def test_bit_sequences_reward_is_distance_to_the_nearest_mode():
    space = bit_sequences(6, 3, 2)
    target = space.build().lexicographic_target()
    modes = [int("".join(map(str, mode)), 2) for mode in space.message["modes"]]
    weights = [math.exp(-min((mode ^ sequence).bit_count() for mode in modes)) for sequence in range(64)]
    assert target.tolist() == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-6)


def test_our_learner_reduces_total_variation():
    learner = OurLearner(hypergrid(2, 4).build(), SETTING, seed=0)
    first = learner.train(1)
    last = learner.train(40)
    assert last.total_variation < first.total_variation / 3
    assert 0 < first.cpu_seconds < last.cpu_seconds


def test_our_learner_backward_trajectories_end_evenly_in_remembered_states():
    learner = OurLearner(hypergrid(2, 4).build(), replace(SETTING, replay=40, updates=1, is_backward=True), seed=0)
    learner.train(3)
    fresh = learner.with_backward(next(learner.rollouts())).trajectories.part(0, 16)
    batch = learner.with_backward(Rollout(fresh, 16, ())).trajectories
    replayed = batch.terminal[batch.origin == int(Origin.RESAMPLED)]
    counts = learner.space.env.identify(replayed).unique(return_counts=True)[1]
    assert len(replayed) == 640
    assert len(counts) == len(learner.terminal) > 5
    assert int(counts.max() - counts.min()) <= 1
    rewards = learner.space.rewards_of(batch.terminal)
    assert bool((batch.log_reward == rewards).all())


def test_run_records_the_first_time_at_each_bar():
    run = Run(Scripted([0.3, 0.04, 0.06, 0.01], price=0.5), SETTING)
    for _ in range(4):
        run.advance()
    assert run.is_done
    assert (run.result(BARS[0]).num_trajectories, run.result(BARS[0]).cpu_seconds) == (128, 4.0)
    assert (run.result(BARS[1]).num_trajectories, run.result(BARS[1]).cpu_seconds) == (256, 8.0)


def test_tune_takes_the_least_cost_and_stops_hopeless_runs(monkeypatch, capsys):
    monkeypatch.setattr(race_torchgfn, "TUNING_SEEDS", (7,))
    costly, cheap, hopeless = [0.3, 0.01], [0.3, 0.3, 0.01], [0.3] * 9
    entry = Entry(
        hypergrid(2, 4),
        "tb",
        [(16, 0, 1, 3e-3, False, 1.0), (16, 0, 1, 1e-3, False, 1.0), (16, 3, 1, 1e-3, True, 1.0)],
        1_000,
    )
    learners = [Scripted(costly, price=2.0), Scripted(cheap, price=0.1), Scripted(hopeless, price=0.1)]
    queue = iter(learners)
    best = tune(entry, lambda setting, seed: next(queue), side="ours")
    assert best == entry.settings[1]
    assert all(learner.is_closed for learner in learners)
    assert next(learners[2].distances) == 0.3  # the last run was stopped
    assert (
        "(16, 0.003: 128, 16.0 s) (16, 0.001: 192, 1.2 s) (16 + 48 backward, 0.001: dropped) -> 16, 0.001"
        in capsys.readouterr().out
    )


def test_tune_drops_a_setting_when_most_seeds_have_stopped(monkeypatch, capsys):
    monkeypatch.setattr(race_torchgfn, "TUNING_SEEDS", (7, 8, 9))
    grid = [(16, 0, 1, 3e-3, False, 1.0), (16, 0, 1, 1e-3, False, 1.0), (16, 3, 1, 1e-3, False, 1.0)]
    entry = Entry(hypergrid(2, 4), "tb", grid, 1_000)
    stuck, quick, slow = [0.3] * 16, [0.01], [0.3, 0.01]
    queue = iter([Scripted(run, price=1.0) for run in (slow, slow, slow, stuck, quick, quick, stuck, quick, stuck)])
    best = tune(entry, lambda setting, seed: next(queue), side="ours")
    assert best == entry.settings[1]
    assert (
        "(16, 0.003: 128, 8.0 s) (16, 0.001: 64, 4.0 s) (16 + 48, 0.001: dropped) -> 16, 0.001"
        in capsys.readouterr().out
    )


def test_our_learner_sampling_temperature():
    space = hypergrid(2, 8).build()
    learners = [OurLearner(space, replace(SETTING, updates=1, temperature=t), seed=0) for t in (1.0, 1e3)]
    sampled = [next(learner.rollouts()).trajectories for learner in learners]
    numbers = [int((batch.actions.kind != int(GraphActionType.Stop)).sum()) for batch in sampled]
    assert numbers[0] != numbers[1]
    assert str(replace(SETTING, temperature=1.3)) == "16 + 32 x 2, 0.003, temperature 1.3"


def test_compete_rows_of_a_bar_that_was_not_reached(capsys):
    start = {
        "ours": lambda setting, seed: Scripted([0.3, 0.04] + [0.03] * 9, price=1.0),
        "torchgfn": lambda setting, seed: Scripted([0.3, 0.3, 0.01], price=2.0),
    }
    entry = Entry(hypergrid(2, 4), "tb", [(16, 0, 1, 1e-3, False, 1.0)], 512)
    rows = compete(entry, start, seeds=(0,))
    ratios = [row for row in rows if row.goal]
    assert [(row.value, row.holds) for row in ratios] == [(1.5, True), (3.0, True), (0.375, False), (0.75, False)]
    assert [row.value for row in rows if "not reached" in row.name] == [512, 32.0]
    assert "TV 0.02, ours: 512+ (32.00 s)" in capsys.readouterr().out


@pytest.mark.slow
def test_torchgfn_learner_target_and_training():
    try:
        python = find_environment()
    except PeerError as error:
        pytest.skip(str(error))
    spaces = {entry.space.name: entry.space for entry in (*QUICK, *FULL)}.values()
    with PeerProcess(python, PEER_SCRIPT) as peer:
        for space in spaces:  # a learner refuses a target that is not ours
            learner = PeerLearner(peer, space, space.build(), SETTING, seed=0)
            progress = learner.train(1)
            learner.close()
            assert 0 < progress.total_variation < 1
            assert progress.cpu_seconds > 0
        backward = replace(SETTING, is_backward=True)
        softened = replace(backward, objective="db", temperature=1.3)
        for setting in (replace(SETTING, objective="subtb"), backward, replace(backward, objective="db"), softened):
            learner = PeerLearner(peer, hypergrid(2, 8), hypergrid(2, 8).build(), setting, seed=0)
            before, after = learner.train(1), learner.train(20)
            assert after.total_variation < before.total_variation
