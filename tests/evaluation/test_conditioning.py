"""Temperature conditioning: distributions, encodings, log-rewards."""

import math

import pytest
import torch

from gflownet.evaluation.conditioning import TemperatureConditional
from gflownet.evaluation.config import TemperatureConfig

# distribution, parameters, mean of beta, standard deviation of beta
CASES = [
    ("constant", [32.0], 32.0, 0.0),
    ("uniform", [2.0, 8.0], 5.0, 6.0 / math.sqrt(12)),
    ("loguniform", [1.0, math.e], math.e - 1, math.sqrt((math.e**2 - 1) / 2 - (math.e - 1) ** 2)),
    ("gamma", [4.0, 0.5], 2.0, 1.0),
    ("beta", [2.0, 2.0], 0.5, math.sqrt(0.05)),
]


def conditional(sample_dist: str, dist_params: list[float], *, num_bins: int = 8) -> TemperatureConditional:
    return TemperatureConditional(TemperatureConfig(sample_dist, dist_params, num_bins))  # type: ignore[arg-type]


@pytest.mark.parametrize(("sample_dist", "params", "mean", "deviation"), CASES)
def test_moments(sample_dist, params, mean, deviation):
    num = 40_000
    sample = conditional(sample_dist, params).sample(num, generator=torch.Generator().manual_seed(0))
    assert sample.beta.shape == (num,)
    assert sample.encoding.shape == (num, 8)
    assert sample.beta.dtype == sample.encoding.dtype == torch.float32
    # Five standard errors; for the deviation they are below 2 / sqrt(num) for these distributions.
    assert float(sample.beta.mean()) == pytest.approx(mean, abs=5 * deviation / math.sqrt(num) + 1e-6)
    assert float(sample.beta.std()) == pytest.approx(deviation, abs=10 * deviation / math.sqrt(num) + 1e-6)


@pytest.mark.parametrize(("sample_dist", "params", "mean", "deviation"), CASES)
def test_draws_depend_on_the_generator_alone(sample_dist, params, mean, deviation):
    draws = []
    for global_seed, seed in [(0, 7), (1, 7), (0, 8)]:
        torch.manual_seed(global_seed)
        draws.append(conditional(sample_dist, params).sample(16, generator=torch.Generator().manual_seed(seed)).beta)
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2]) == (sample_dist == "constant")


def test_generator_moves_on():
    generator = torch.Generator().manual_seed(0)
    temperature = conditional("uniform", [0.0, 1.0])
    assert not torch.equal(
        temperature.sample(4, generator=generator).beta, temperature.sample(4, generator=generator).beta
    )


def test_thermometer_fills_bin_by_bin():
    encoding = conditional("uniform", [0.0, 8.0], num_bins=4).encode(torch.tensor([0.0, 1.0, 5.0, 8.0]))
    expected = [[0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0]]
    assert encoding.tolist() == expected


# distribution, parameters, beta at which the thermometer of four bins is full
UPPER_ENDS = [
    ("uniform", [2.0, 8.0], 8.0),
    ("loguniform", [1.0, 16.0], 16.0),
    ("gamma", [4.0, 0.5], 4.0),  # mean 2, deviation 1: two deviations above
    ("beta", [2.0, 5.0], 1.0),
]


@pytest.mark.parametrize(("sample_dist", "params", "upper_end"), UPPER_ENDS)
def test_the_thermometer_is_full_at_the_upper_end_of_its_distribution(sample_dist, params, upper_end):
    shares = torch.tensor([0.0, 0.125, 0.625, 0.9375, 1.0, 1.5])
    encoding = conditional(sample_dist, params, num_bins=4).encode(upper_end * shares)
    assert encoding.tolist() == [
        [0.0, 0.0, 0.0, 0.0],
        [0.5, 0.0, 0.0, 0.0],
        [1.0, 1.0, 0.5, 0.0],
        [1.0, 1.0, 1.0, 0.75],
        [1.0, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 1.0],
    ]


def test_thermometer_of_an_unbounded_beta_stays_within_its_bins():
    sample = conditional("gamma", [2.0, 3.0]).sample(10_000, generator=torch.Generator().manual_seed(0))
    assert 0.0 <= float(sample.encoding.min()) <= float(sample.encoding.max()) == 1.0
    assert 0.9 < float((sample.encoding[:, -1] < 1.0).float().mean()) < 1.0


def test_constant_beta_has_a_zero_encoding():
    sample = conditional("constant", [3.0], num_bins=2).sample(3, generator=torch.Generator())
    assert sample.encoding.tolist() == [[0.0, 0.0]] * 3
