"""Races of finalists against numerical integration, and against an equal number of trainings for all."""

import math

import numpy as np
import pytest

from gflownet.evaluation.racing import (
    NormalMeans,
    Race,
    Winner,
    num_finalists,
    num_for_choice,
    pooled_noise,
    posterior,
    seeds_to_compare,
    shrunk,
)
from gflownet.evaluation.statistics import difference_margin, standard_error


def integrated(mean: float, std: float, sample: list[float], noise: float) -> tuple[float, float]:
    """Return mean and standard deviation of a posterior on a grid."""
    grid = np.linspace(mean - 12 * std, mean + 12 * std, 200_001)
    log_density = -(((grid - mean) / std) ** 2) / 2
    for score in sample:
        log_density -= ((score - grid) / noise) ** 2 / 2
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    value = float(density @ grid)
    return value, math.sqrt(float(density @ (grid - value) ** 2))


def test_posterior_equals_integral():
    prior = NormalMeans(np.array([0.9, 0.92, 0.88, 0.91]), np.array([0.02, 0.03, 0.02, 0.01]))
    samples = [[0.89, 0.91], [0.93], [0.885, 0.87, 0.9], []]  # none further from the prior than it allows
    found = posterior(prior, samples, noise=0.01)
    expected = [integrated(m, s, x, 0.01) for m, s, x in zip(prior.mean, prior.std, samples, strict=True)]
    assert found.mean.tolist() == pytest.approx([mean for mean, _ in expected], abs=1e-6)
    assert found.std.tolist() == pytest.approx([std for _, std in expected], abs=1e-6)


def test_posterior_of_wrong_prior_follows_scores():
    prior = NormalMeans(np.array([0.9, 0.8]), np.array([0.001, 0.001]))
    found = posterior(prior, [[0.7, 0.7], [0.95, 0.95]], noise=0.01)
    assert found.mean.tolist() == pytest.approx([0.7, 0.95], abs=0.002)
    exact = posterior(NormalMeans(np.array([0.5]), np.array([0.0])), [[0.6]], noise=0.0)
    assert (exact.mean.tolist(), exact.std.tolist()) == ([0.6], [0.0])


def test_shrunk_scores_are_less_wrong():
    generator = np.random.default_rng(0)
    true = generator.normal(0.9, 0.01, 500)
    scores = true + generator.normal(0, 0.01, 500)
    means = shrunk(scores.tolist(), 0.01)
    assert np.mean((means.mean - true) ** 2) < 0.6 * np.mean((scores - true) ** 2)
    errors = (means.mean - true) / means.std
    assert 0.9 < np.std(errors) < 1.1
    assert set(shrunk([0.5, 0.5, 0.5], 0.01).mean) == {0.5}


def test_pooled_noise_starts_from_guess():
    assert pooled_noise([[0.5], []], guess=0.02) == pytest.approx(0.02)
    samples = np.random.default_rng(1).normal(0, 0.01, (200, 3))
    assert pooled_noise(samples.tolist(), guess=0.05) == pytest.approx(0.01, rel=0.1)


def returned(true: np.ndarray, generator: np.random.Generator, *, num: int, is_race: bool) -> float:
    """Return the true mean of the winner after `num` trainings in all."""
    flat = NormalMeans(np.full(len(true), 0.9), np.full(len(true), 0.02))
    race = Race(lambda noise: flat, len(true), num_trainings=num, num_seeds=num, guess=0.01)
    wanted = race.rounds() if is_race else [[(k, 1) for k in range(len(true))] * (num // len(true))]
    for trainings in wanted:
        for finalist, _ in trainings:
            race.scores[finalist].append(float(generator.normal(true[finalist], 0.01)))
    assert sum(map(len, race.scores)) <= num
    return float(true[race.means.mean.argmax()])


@pytest.mark.slow
def test_race_returns_better_winner_than_equal_shares():
    generator, true = np.random.default_rng(2), 0.92 - 0.004 * np.arange(8)
    raced, equal = (
        np.mean([returned(true, generator, num=24, is_race=is_race) for _ in range(400)]) for is_race in (True, False)
    )
    assert raced > equal


def test_race_stops_what_is_out_of_reach():
    flat = NormalMeans(np.zeros(3), np.full(3, 10.0))
    race = Race(lambda noise: flat, 3, num_trainings=15, num_seeds=5, guess=0.01)
    for trainings in race.rounds():
        for finalist, _ in trainings:
            race.scores[finalist].append((0.5, 0.9, 0.3)[finalist])
            if finalist == 2:
                race.failed.add(finalist)
    assert [len(scores) for scores in race.scores] == [1, 5, 1]


def test_seeds_at_once_follow_the_first_and_are_shared_out():
    flat = NormalMeans(np.zeros(3), np.full(3, 10.0))
    race = Race(lambda noise: flat, 3, num_trainings=12, num_seeds=5, guess=0.5, num_at_once=4)
    rounds = []
    for trainings in race.rounds():
        rounds.append(sorted(trainings))
        for finalist, _ in trainings:
            race.scores[finalist].append(0.5)
    assert rounds[0] == [(0, 1), (1, 1), (2, 1)]
    assert rounds[1] == [(finalist, seed) for finalist in range(3) for seed in (2, 3, 4)]
    flat = NormalMeans(np.zeros(1), np.full(1, 10.0))
    race = Race(lambda noise: flat, 1, num_trainings=9, num_seeds=7, guess=0.5, num_at_once=4)
    for trainings in race.rounds():
        race.scores[0] += [0.5] * len(trainings)
        rounds.append(trainings)
    assert [[seed for _, seed in trainings] for trainings in rounds[2:]] == [[1], [2, 3, 4, 5], [6, 7]]


def test_finalist_behind_returns_when_the_best_turns_out_worse():
    flat = NormalMeans(np.zeros(2), np.full(2, 10.0))
    race = Race(lambda noise: flat, 2, num_trainings=8, num_seeds=5, guess=0.01)
    order = []
    for trainings in race.rounds():
        order.append([finalist for finalist, _ in trainings])
        for finalist, seed in trainings:
            race.scores[finalist].append(0.6 if finalist else 0.9 if seed == 1 else 0.1)
    assert order[1] == [0]  # finalist 1 is out of reach
    assert len(race.scores[1]) > 1


@pytest.mark.parametrize(("num", "expected"), [(0, 0), (1, 1), (5, 1), (8, 2), (15, 5), (50, 10)])
def test_num_finalists(num: int, expected: int):
    assert num_finalists(num, 10) == expected


@pytest.mark.parametrize(("num", "finalists", "expected"), [(2, 1, 0), (6, 2, 2), (15, 5, 5), (25, 8, 15), (4, 10, 4)])
def test_trainings_for_the_choice_leave_the_others_to_its_winner(num: int, finalists: int, expected: int):
    assert num_for_choice(num, finalists, num_seeds=5) == expected


def winner(mean: float, noise: float = 0.01) -> Winner:
    return Winner(mean, 0.001, noise)


def test_seeds_go_to_differences_that_they_can_separate():
    own = [winner(0.5), winner(0.52), winner(0.9)]
    random = [winner(0.5), winner(0.5), winner(0.7)]
    pairs = [(2, 2), (1, 1), (0, 0)]
    assert seeds_to_compare([own, random], pairs, [17, 17], most=10) == [[4, 10, 3], [4, 10, 3]]
    assert seeds_to_compare([own, random], pairs, [7, 9], most=10) == [[1, 3, 3], [3, 3, 3]], "the first pairs first"
    assert seeds_to_compare([own, random], [(2, 0), (2, 1)], [9, 20], most=4) == [[0, 0, 4], [4, 4, 0]]
    assert seeds_to_compare([own, []], [(2, None), (1, None)], [5, 0], most=10) == [[0, 3, 2], []]


def shares_of_verdicts(gap: float, num: int) -> tuple[float, float, float]:
    """Return the shares of separated differences, of one of four caps and of the others, and of the mean error.

    Both sides have 17 trainings. The first cap has a true difference of `gap` standard errors of three seeds; the
    means before are known up to the noise of a training.
    """
    generator, noise = np.random.default_rng(7), 0.01
    true = np.array([gap * math.sqrt(2 / 3) * noise, 0.0, 0.0, 0.0])
    separated, errors = [], []
    for _ in range(num):
        before = generator.normal(np.stack([true, np.zeros(4)]), noise)
        sides = [[Winner(mean, noise, noise) for mean in side] for side in before.tolist()]
        counts = seeds_to_compare(sides, [(k, k) for k in range(4)], [17, 17], most=10)
        draws = [
            [generator.normal(mean, noise, n) for mean, n in zip(*side, strict=True)]
            for side in zip([true, np.zeros(4)], counts, strict=True)
        ]
        pairs = [[standard_error(scores.tolist()) for scores in pair] for pair in zip(*draws, strict=True)]
        differences = np.array([first.mean() - second.mean() for first, second in zip(*draws, strict=True)])
        separated.append(np.abs(differences) > [difference_margin(pair, num=4) for pair in pairs])
        errors.append(differences - true)
    shares = np.mean(separated, axis=0)
    return float(shares[0]), float(np.any(np.array(separated)[:, 1:], axis=1).mean()), float(np.mean(errors)) / noise


def test_seeds_for_verdicts_name_differences_and_separate_no_equal_sides():
    """Of four equal shares, 4 or 5 trainings each, 18 to 30 % are named; of three trainings 7 %."""
    equal, difference = shares_of_verdicts(0.0, 300), shares_of_verdicts(2.0, 300)
    assert max(equal[:2] + difference[1:2]) <= 0.05
    assert difference[0] > 0.2
    assert max(abs(equal[2]), abs(difference[2])) < 0.05, "means are unbiased"
