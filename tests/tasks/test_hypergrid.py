"""The reward of hypergrids against its formula, and known figures of the standard grid."""

import math
from fractions import Fraction
from itertools import product

import pytest
import torch

from gflownet.certificate.exact import enumerate_states
from gflownet.config import load_config, with_task_options
from gflownet.envs.slots import HypergridEnv
from gflownet.graphs.assignment import Assignment
from tasks.hypergrid import HypergridRewardConfig, HypergridTask


def make_task(*overrides: str) -> HypergridTask:
    config = load_config("hypergrid", overrides)
    return HypergridTask(with_task_options(config, HypergridRewardConfig))


def reward_by_formula(place: tuple[int, ...], side: int) -> float:
    """Bengio et al. 2021, section 4.1, in fractions."""
    middles = [abs(Fraction(x, side - 1) - Fraction(1, 2)) for x in place]
    corner = math.prod(Fraction(1, 4) < middle <= Fraction(1, 2) for middle in middles)
    peak = math.prod(Fraction(3, 10) < middle < Fraction(4, 10) for middle in middles)
    return 0.1 + 0.5 * corner + 2.0 * peak


@pytest.mark.parametrize(("num_dims", "side"), [(2, 8), (3, 6), (1, 21), (2, 11)])
def test_scores_are_rewards_over_the_largest(num_dims, side):
    """Sides 11 and 21 have places right on the bounds 0.3 and 0.4, which are no peaks."""
    task, env = make_task(), HypergridEnv(num_dims, side)
    graph = enumerate_states(env)
    places = (graph.states.node_attr[..., 0].long() + 1).tolist()
    assert sorted(map(tuple, places)) == sorted(product(range(side), repeat=num_dims))
    for index, place in enumerate(places):
        score = task.evaluate(env.terminal(graph.states, index), seed=0)
        expected = reward_by_formula(tuple(place), side)
        assert score.value == pytest.approx(expected / 2.6, abs=1e-12)
        assert score.metrics["peak"] == (expected > 1)


def test_the_standard_grid_has_four_peaks_and_rewards_are_untouched_by_the_floor():
    task, env = make_task(), HypergridEnv(2, 8)
    graph = enumerate_states(env)
    values = torch.tensor([task.evaluate(env.terminal(graph.states, i), seed=0).value for i in range(64)])
    peaks = {env.terminal(graph.states, i).values for i in (values > 0.99).nonzero().flatten().tolist()}
    assert peaks == set(product(("1/7", "6/7"), repeat=2))
    conditioning = task.sample_conditioning(64, generator=torch.Generator())
    assert torch.allclose((task.log_reward(values, conditioning) / conditioning.beta).exp(), values)
    assert float(values.sum()) == pytest.approx((64 * 0.1 + 16 * 0.5 + 4 * 2.0) / 2.6, abs=1e-5)


def test_heights_are_options():
    task = make_task("task_options.r0=0.001", "task_options.r1=1", "task_options.r2=3")
    values = [task.evaluate(Assignment(("x0",), (value,)), seed=0).value for value in ("3/7", "0/7", "1/7")]
    assert values == pytest.approx([0.001 / 4.001, 1.001 / 4.001, 1.0])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("task_options.r1=-1", r"task_options\.r1: expected a number >= 0, got -1"),
        ("task_options.r0=0", r"task_options\.r0: expected r0 / \(r0 \+ r1 \+ r2\) >= evaluation\.floor_score=1e-06"),
        ("evaluation.floor_score=0.05", r"expected r0 .* >= evaluation\.floor_score=0\.05, got 0\.0384615"),
        ("env.name=labelled_dag", r"env\.name: expected hypergrid with this task, got labelled_dag"),
    ],
)
def test_invalid_rewards_raise(option, message):
    with pytest.raises(ValueError, match=message):
        make_task(option)
