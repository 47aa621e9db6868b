"""Conditioning: temperatures, preferences and focus regions; distributions, encodings, scalarisations, log-rewards."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch

from gflownet.errors import UserError
from gflownet.evaluation.conditioning import (
    LIMIT_WIDTH,
    Conditioning,
    FocusConditional,
    PreferenceConditional,
    RewardConditional,
    TemperatureConditional,
)
from gflownet.evaluation.config import ConditionalsConfig, FocusConfig, PreferencesConfig, TemperatureConfig
from gflownet.evaluation.task import GFNTask, Score
from tests.evaluation.candidates import config_with


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def preferences(*, num_objectives: int = 3, **options: Any) -> PreferenceConditional:
    return PreferenceConditional(PreferencesConfig(**options), num_objectives=num_objectives)


def focus(*, num_objectives: int = 3, **options: Any) -> FocusConditional:
    return FocusConditional(FocusConfig(use=True, **options), num_objectives=num_objectives)


@pytest.mark.parametrize("make", [preferences, focus])
def test_sampled_weights_are_uniform_on_the_simplex(make):
    num = 20_000
    drawn = make().sample(num, generator=generator())
    assert drawn.shape == (num, 3)
    assert drawn.dtype == torch.float32
    assert float(drawn.min()) >= 0
    assert torch.allclose(drawn.sum(1), torch.ones(num))
    assert torch.allclose(drawn.mean(0), torch.tensor(1 / 3), atol=5 * math.sqrt(1 / 18 / num))
    assert torch.allclose(drawn.var(0), torch.tensor(1 / 18), rtol=0.05)


def test_fixed_preferences_are_everybody_s_and_sum_to_1():
    drawn = preferences(weights=[1.0, 0.0, 3.0]).sample(4, generator=generator())
    assert drawn.tolist() == [[0.25, 0.0, 0.75]] * 4


def test_listed_directions_come_equally_often_and_sum_to_1():
    drawn = focus(directions=[[2.0, 2.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 2.0]]).sample(9_000, generator=generator())
    found, counts = torch.unique(drawn, dim=0, return_counts=True)
    assert found.tolist() == [[0.0, 0.0, 1.0], [0.25, 0.25, 0.5], [0.5, 0.5, 0.0]]
    assert all(abs(count - 3_000) < 5 * math.sqrt(2_000) for count in counts.tolist())


def slow_score(scalarisation: str, utilities: list[float], weights: list[float]) -> float:
    if scalarisation == "weighted_sum":
        return sum(w * u for w, u in zip(weights, utilities, strict=True))
    if scalarisation == "weighted_log_sum":
        return math.exp(sum(w * math.log(u) for w, u in zip(weights, utilities, strict=True)))
    return min(1 - w * (1 - u) for w, u in zip(weights, utilities, strict=True))


@pytest.mark.parametrize("scalarisation", ["weighted_sum", "weighted_log_sum", "tchebycheff"])
@pytest.mark.parametrize("num_objectives", [2, 4])
def test_scalarisations_against_a_loop(scalarisation, num_objectives):
    conditional = preferences(num_objectives=num_objectives, scalarisation=scalarisation)
    weights = conditional.sample(50, generator=generator(1))
    utilities = torch.rand(50, num_objectives, generator=generator(2))
    expected = [slow_score(scalarisation, *pair) for pair in zip(utilities.tolist(), weights.tolist(), strict=True)]
    assert conditional.scalarise(utilities, weights).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_weight_of_0_forgives_a_utility_of_0():
    weights, utilities = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.4, 0.0], [0.4, 0.0]])
    score = preferences(num_objectives=2, scalarisation="weighted_log_sum").scalarise(utilities, weights)
    assert score.tolist() == pytest.approx([0.4, 0.0])


def slow_coefficient(utilities: list[float], direction: list[float], *, cosim: float) -> float:
    length = math.hypot(*utilities) * math.hypot(*direction)
    cosine = sum(u * d for u, d in zip(utilities, direction, strict=True)) / length if length else 0.0
    return cosine ** (math.log(0.1) / math.log(cosim)) if cosine >= cosim else 0.0


@pytest.mark.parametrize("cosim", [0.9, 0.98, 0.6])
def test_cones_against_a_loop(cosim):
    conditional = focus(cosim=cosim)
    utilities, directions = torch.rand(200, 3, generator=generator(3)), torch.rand(200, 3, generator=generator(4))
    pairs = zip(utilities.tolist(), directions.tolist(), strict=True)
    expected = [slow_coefficient(utility, direction, cosim=cosim) for utility, direction in pairs]
    assert 10 < sum(value > 0 for value in expected) < 190
    found = conditional.coefficient(utilities, directions)
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
    assert torch.allclose(conditional.coefficient(3 * utilities, directions), found, rtol=1e-4)


class TwoObjectives(GFNTask):
    objectives = ("bright", "cheap", "odd")

    def evaluate(self, graph, *, seed):
        return Score(0.5, metrics={"bright": 0.5, "cheap": 0.25})

    def utility(self, objective, value):
        if value < 0:
            raise RuntimeError("too cheap")
        return 1 - value if objective == "cheap" else value


CHOSEN = "evaluation.objectives=[bright,cheap]"
TEMPERATURE = ("cond.temperature.sample_dist", "cond.temperature.dist_params")


def test_the_encoding_is_thermometer_preferences_focus():
    task = TwoObjectives(config_with(CHOSEN, "cond.focus.use=true"))
    sample = task.sample_conditioning(20, generator=generator())
    assert task.num_cond_dim == 12
    assert sample.encoding.shape == (20, 12)
    assert bool((sample.encoding[:, :8] == 0).all())  # a constant beta is encoded as zeros
    for part in (sample.encoding[:, 8:10], sample.encoding[:, 10:]):
        assert torch.allclose(part.sum(1), torch.ones(20))
    assert not torch.allclose(sample.encoding[:, 8:10], sample.encoding[:, 10:])


def test_one_objective_draws_only_temperatures():
    config = ConditionalsConfig(TemperatureConfig("uniform", [1.0, 9.0]))
    one = RewardConditional(config).sample(6, generator=generator(5))
    alone = TemperatureConditional(config.temperature).sample(6, generator=generator(5))
    assert torch.equal(one.beta, alone.beta)
    assert torch.equal(one.encoding, alone.encoding)


@pytest.mark.parametrize("scalarisation", ["weighted_sum", "weighted_log_sum", "tchebycheff"])
@pytest.mark.parametrize("use_focus", [False, True])
def test_the_log_reward_is_read_back_from_the_encoding(scalarisation, use_focus):
    task = TwoObjectives(
        config_with(
            CHOSEN,
            "cond.temperature.sample_dist=uniform",
            "cond.temperature.dist_params=[1,8]",
            f"cond.preferences.scalarisation={scalarisation}",
            f"cond.focus.use={use_focus}",
            "cond.focus.cosim=0.7",
            "evaluation.floor_score=0.01",
        )
    )
    sample = task.sample_conditioning(100, generator=generator(6))
    utilities = torch.rand(100, 2, generator=generator(7))
    expected = []
    for utility, beta, encoding in zip(utilities.tolist(), sample.beta.tolist(), sample.encoding.tolist(), strict=True):
        score = slow_score(scalarisation, utility, encoding[8:10])
        if use_focus:
            score *= slow_coefficient(utility, encoding[10:12], cosim=0.7)
        expected.append(beta * math.log(max(score, 0.01)))
    found = task.log_reward(utilities, Conditioning(sample.encoding, sample.beta))
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert not use_focus or 5 < sum(value == pytest.approx(0.01) for value in (found / sample.beta).exp().tolist()) < 95


def test_a_chosen_conditioning_is_encoded_as_a_drawn_one_is():
    options = ["cond.temperature.sample_dist=uniform", "cond.temperature.dist_params=[0,8]"]
    task = TwoObjectives(config_with(CHOSEN, *options, "cond.focus.use=true"))
    given = {"beta": 2.5, "preferences": [3, 1], "focus": [0, 2]}
    chosen = task.override_conditioning(task.sample_conditioning(3, generator=generator()), **given)
    assert chosen.encoding.tolist() == [[1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.75, 0.25, 0.0, 1.0]] * 3
    assert chosen.beta.tolist() == [2.5] * 3


def test_utilities_follow_the_order_of_the_chosen_objectives():
    score = Score(0.9, metrics={"cheap": 0.25, "bright": 0.5, "other": 3.0})
    assert TwoObjectives(config_with(CHOSEN)).utilities(score) == (0.5, 0.75)
    assert TwoObjectives(config_with("evaluation.objectives=[cheap,bright]")).utilities(score) == (0.75, 0.5)
    assert TwoObjectives(config_with()).utilities(score) == ()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"bright": 0.5}, r"^metrics: expected the objective cheap, got bright$"),
        ({}, r"^metrics: expected the objective bright, got none$"),
        ({"bright": math.nan, "cheap": 0.1}, r"^objective bright: expected a finite utility >= 0, got nan$"),
        ({"bright": 0.5, "cheap": -7.0}, r"^objective cheap: expected a utility of -7.0, got RuntimeError: too cheap$"),
        ({"bright": 0.5, "cheap": 1.5}, r"^objective cheap: expected a finite utility >= 0, got -0.5$"),
    ],
)
def test_metrics_that_are_no_objectives_are_named(metrics, message):
    with pytest.raises(ValueError, match=message):
        TwoObjectives(config_with(CHOSEN)).utilities(Score(0.5, metrics=metrics))


class Undirected(GFNTask):
    objectives = ("share", "validation_mse", "energy-use", "depth")
    costs: Mapping[str, float] = {}

    def evaluate(self, graph, *, seed):
        return Score(0.5)


class Directed(Undirected):
    costs: Mapping[str, float] = {"validation_mse": 0.5, "depth": 4.0}


def of(task: type[GFNTask], *names: str) -> GFNTask:
    return task(config_with(f"evaluation.objectives=[{','.join(names)}]"))


def test_directions_follow_costs_and_utilities():
    assert of(Directed, "share", "validation_mse").directions() == {"share": "max", "validation_mse": "min"}
    assert of(Directed, "depth", "share").utilities(Score(0.5, metrics={"depth": 12, "share": 0.3})) == (0.25, 0.3)
    assert of(TwoObjectives, "bright", "cheap").directions() == {"bright": "max", "cheap": "min"}


@pytest.mark.parametrize("name", ["validation_mse", "energy-use"])
def test_an_objective_with_the_name_of_a_cost_asks_for_its_direction(name):
    message = (
        rf"^evaluation.objectives: {name}: expected its direction, Undirected.costs = .*utility\(objective, value\)"
    )
    with pytest.raises(ValueError, match=message):
        of(Undirected, "share", name)


def test_an_objective_above_one_asks_for_its_direction():
    task = of(Undirected, "share", "depth")
    assert task.utilities(Score(0.5, metrics={"share": 1, "depth": 0.5})) == (1, 0.5)
    with pytest.raises(ValueError, match=r"^objective depth: expected its direction, .* got a value above 1, 12$"):
        task.utilities(Score(0.5, metrics={"share": 1, "depth": 12}))


class Plain(TwoObjectives):
    objectives = ()


def test_an_objective_that_the_task_does_not_know_is_named():
    with pytest.raises(ValueError, match=r"^evaluation.objectives: expected some of bright, cheap, odd, got 'speed'$"):
        TwoObjectives(config_with("evaluation.objectives=[bright,speed]"))
    with pytest.raises(ValueError, match=r"expected some of nothing, digits has none, got 'bright'$"):
        Plain(config_with(CHOSEN))


def asked(task: GFNTask, **given) -> Conditioning:
    return task.override_conditioning(task.sample_conditioning(2, generator=generator()), **given)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ([], {"beta": 64}, "beta: expected 32, by cond.temperature, got 64"),
        (["loguniform [4,64]"], {"beta": 3}, r"beta: expected a number in \[4, 64\], by .*, got 3"),
        (["gamma [4,2]"], {"beta": 16.5}, r"beta: expected a number in \[0, 16\], by .*, got 16.5"),
        (["beta [2,2]"], {"beta": 1.5}, r"beta: expected a number in \[0, 1\], by .*, got 1.5"),
        ([], {"preferences": [1, 0]}, r"preferences: expected none without evaluation.objectives, got \[1, 0\]"),
        ([CHOSEN], {"focus": [1, 0]}, r"focus: expected none without cond.focus.use=true, got \[1, 0\]"),
        (
            [CHOSEN, "cond.preferences.weights=[1,3]"],
            {"preferences": [1, 1]},
            r"preferences: expected one of \[0.25, 0.75\], .*, got \[1, 1\]",
        ),
        (
            [CHOSEN, "cond.focus.use=true", "cond.focus.directions=[[1,1],[0,2]]"],
            {"focus": [1, 0]},
            r"focus: expected one of \[0.5, 0.5\], \[0.0, 1.0\], by cond.focus, got \[1, 0\]",
        ),
    ],
)
def test_conditioning_that_is_never_drawn_raises(options, given, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        asked(TwoObjectives(config_with(*spelled(options))), **given)


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ([], {"beta": 32}),
        (["loguniform [4,64]"], {"beta": 64}),
        (["gamma [4,2]"], {"beta": 16}),
        ([CHOSEN, "cond.preferences.weights=[1,3]"], {"preferences": [2, 6]}),
        ([CHOSEN, "cond.focus.use=true", "cond.focus.directions=[[1,1],[0,2]]"], {"focus": [0, 1]}),
    ],
)
def test_conditioning_that_may_be_drawn_is_accepted(options, given):
    task = TwoObjectives(config_with(*spelled(options)))
    assert len(asked(task, **given).encoding.unique(dim=0)) <= 2
    assert asked(task, **given).encoding.shape == (2, task.num_cond_dim)


def spelled(options: list[str]) -> list[str]:
    """Return overrides; `DISTRIBUTION PARAMETERS` stands for the distribution of the temperature."""
    return [
        override
        for option in options
        for override in ([option] if "=" in option else map("=".join, zip(TEMPERATURE, option.split(), strict=True)))
    ]


# distribution, parameters, mean of beta, standard deviation of beta
CASES = [
    ("constant", [32.0], 32.0, 0.0),
    ("uniform", [2.0, 8.0], 5.0, 6.0 / math.sqrt(12)),
    ("loguniform", [1.0, math.e], math.e - 1, math.sqrt((math.e**2 - 1) / 2 - (math.e - 1) ** 2)),
    ("gamma", [4.0, 0.5], 2.0, 1.0),
    ("beta", [2.0, 2.0], 0.5, math.sqrt(0.05)),
]


def conditional(sample_dist: str, dist_params: list[float]) -> TemperatureConditional:
    return TemperatureConditional(TemperatureConfig(sample_dist, dist_params))  # type: ignore[arg-type]


@pytest.mark.parametrize(("sample_dist", "params", "mean", "deviation"), CASES)
def test_moments(sample_dist, params, mean, deviation):
    num = 20_000
    sample = conditional(sample_dist, params).sample(num, generator=torch.Generator().manual_seed(0))
    assert sample.beta.shape == (num,)
    assert sample.encoding.shape == (num, 8)
    assert sample.beta.dtype == sample.encoding.dtype == torch.float32
    # Five standard errors; for the deviation they are below 2 / sqrt(num) for these distributions.
    assert float(sample.beta.mean()) == pytest.approx(mean, abs=5 * deviation / math.sqrt(num) + 1e-6)
    assert float(sample.beta.std()) == pytest.approx(deviation, abs=10 * deviation / math.sqrt(num) + 1e-6)


@pytest.mark.parametrize("make", [preferences, focus, *(partial(conditional, *case[:2]) for case in CASES)])
def test_draws_depend_on_the_generator_alone_which_moves_on(make):
    draws = []
    for global_seed, seed in [(0, 7), (1, 7), (0, 8)]:
        torch.manual_seed(global_seed)
        one = generator(seed)
        drawn = (make().sample(16, generator=one) for _ in range(2))
        draws += [each.beta if isinstance(each, Conditioning) else each for each in drawn]
    is_constant = getattr(make, "args", ("",))[0] == "constant"
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[0], draws[4]) == torch.equal(draws[0], draws[1]) == is_constant


# distribution, parameters, beta at which the thermometer is full
UPPER_ENDS = [
    ("uniform", [2.0, 8.0], 8.0),
    ("loguniform", [1.0, 16.0], 16.0),
    ("gamma", [4.0, 0.5], 4.0),  # mean 2, deviation 1: two deviations above
    ("beta", [2.0, 5.0], 1.0),
]


@pytest.mark.parametrize(("sample_dist", "params", "upper_end"), UPPER_ENDS)
def test_the_thermometer_is_full_at_the_upper_end_of_its_distribution(sample_dist, params, upper_end):
    shares = torch.tensor([0.0, 0.0625, 0.3125, 0.96875, 1.0, 1.5])
    encoding = conditional(sample_dist, params).encode(upper_end * shares)
    assert encoding.sum(1).tolist() == [0.0, 0.5, 2.5, 7.75, 8.0, 8.0]
    assert encoding[2].tolist() == [1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_thermometer_of_an_unbounded_beta_stays_within_its_bins():
    sample = conditional("gamma", [2.0, 3.0]).sample(10_000, generator=torch.Generator().manual_seed(0))
    assert 0.0 <= float(sample.encoding.min()) <= float(sample.encoding.max()) == 1.0
    assert 0.9 < float((sample.encoding[:, -1] < 1.0).float().mean()) < 1.0


LIMIT = ("cond.limit.metric=parameters",)


def limited(*overrides: str, names=("parameters", "multiply_adds"), smallest=(20, 5), caps=(2_000, 900)) -> GFNTask:
    task = Plain(config_with(*LIMIT, *overrides))
    task.use_limits(names, smallest=smallest, caps=caps)
    return task


def test_limit_is_log_uniform_and_encoded_by_its_logarithm():
    task = limited("cond.limit.low=50", "cond.limit.high=1000")
    sample = task.sample_conditioning(4_000, generator=generator(1))
    assert task.num_cond_dim == sample.encoding.shape[1] == 8 + LIMIT_WIDTH == 28
    assert sample.limit is not None
    caps, others = sample.limit.double().unbind(1)
    assert set(others.tolist()) == {900}  # of the other metric: the environment's own
    assert 50 <= int(caps.min()) <= 52
    assert 980 <= int(caps.max()) <= 1_000
    place = (caps / 50).log() / math.log(20)
    assert torch.allclose(place.sort().values, torch.linspace(0, 1, 4_000).double(), atol=0.03)
    bins, value = sample.encoding[:, 8:-1], sample.encoding[:, -1]
    torch.testing.assert_close(value, place.float())
    torch.testing.assert_close(bins.mean(1), value)
    assert bool((bins.diff(dim=1) <= 0).all())


def test_limit_ends_are_by_default_the_smallest_network_and_the_own_cap():
    caps = limited().sample_conditioning(2_000, generator=generator()).limit
    assert caps is not None
    assert int(caps[:, 0].min()) in range(20, 24)
    assert int(caps[:, 0].max()) in range(1_960, 2_001)


def test_limit_reaches_the_sizes_of_known_networks():
    task = limited("cond.limit.low=50", "cond.limit.high=1000")
    sample, sizes = task.sample_conditioning(500, generator=generator()), torch.tensor([[600, 1], [20, 1], [1_500, 1]])
    sizes = sizes.repeat(167, 1)[:500]
    reaching = task.reaching(sample, sizes)
    assert reaching.limit is not None
    assert sample.limit is not None
    assert bool((reaching.limit[:, 0] >= sizes[:, 0]).all())
    assert 500 > int((reaching.limit[::3, 0]).unique().numel()) > 50  # between 600 and 1,000
    assert torch.equal(reaching.limit[1::3], sample.limit[1::3])  # smaller than any cap
    assert torch.equal(reaching.encoding[1::3], sample.encoding[1::3])
    assert set(reaching.limit[2::3, 0].tolist()) == {1_500}
    assert set(reaching.encoding[2::3, -1].tolist()) == {1.0}  # above the largest cap


def test_limit_is_overridden_and_joins_preferences():
    task = TwoObjectives(config_with(*LIMIT, CHOSEN))
    task.use_limits(["parameters"], smallest=[20], caps=[2_000])
    sample = task.sample_conditioning(3, generator=generator())
    changed = task.override_conditioning(sample, limit=200, preferences=[1, 3])
    assert changed.limit is not None
    assert changed.limit.tolist() == [[200]] * 3
    assert changed.encoding[:, -1].tolist() == pytest.approx([0.5] * 3)
    assert changed.encoding[:, 8:10].tolist() == [[0.25, 0.75]] * 3
    utilities = torch.tensor([[1.0, 0.0]] * 3)
    assert task.log_reward(utilities, changed).exp().tolist() == pytest.approx([0.25 ** float(sample.beta[0])] * 3)
    # Outside the range of the training, but not below the smallest network.
    outside = limited("cond.limit.low=50")
    sample = outside.sample_conditioning(2, generator=generator())
    assert outside.override_conditioning(sample, limit=20).limit.tolist() == [[20, 900]] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: limited(names=(), smallest=(), caps=()), r"cond.limit.metric: expected a size that the .* \(none\)"),
        (lambda: limited("cond.limit.low=19"), r"within \[20, 2,000\], .*got \[19, 2,000\]"),
        (lambda: limited("cond.limit.high=2001"), r"within \[20, 2,000\], .*got \[20, 2,001\]"),
        (lambda: limited("cond.limit.low=70", "cond.limit.high=70"), r"expected low < high .*got \[70, 70\]"),
        (lambda: asked(Plain(config_with()), limit=3), "limit: expected none without cond.limit.metric, got 3"),
    ],
)
def test_invalid_limit_raises(use, message):
    with pytest.raises(UserError, match=message):
        use()
