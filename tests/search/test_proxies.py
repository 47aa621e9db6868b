"""Proxies of architectures as features: standardised, cached, missing values, and tasks without models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gflownet.config import load_config, with_task_options
from gflownet.data.sampler import uniform_states
from gflownet.envs.cell_design import CIFAR_CLASSES, CIFAR_SHAPE, NAS_BENCH_201, read_design
from gflownet.envs.config import ENVIRONMENTS
from gflownet.errors import UserError
from gflownet.evaluation.halving import rank_correlation
from gflownet.evaluation.tasks import TASKS
from gflownet.graphs.assignment import Assignment
from gflownet.search.proxies import (
    MODEL_PROXIES,
    ProxyFeatures,
    check_proxies,
    jacov,
    mean_and_deviation,
    naswot,
    synflow,
)
from gflownet.translation import to_pytorch_model
from tests.benchmark_tables import real_rows
from tests.oracles import zero_cost as oracle
from tests.tiny_run import TINY_TASKS

SMALL_SKELETON = "env.cells.skeleton.stages=[{features: 2}]"
ALL = ("naswot", "jacov", "synflow", "parameters", "multiply_adds")


def task_and_env(name: str, *options: str) -> tuple[Any, Any]:
    config = load_config(name, [*TINY_TASKS.get(name, ()), *options])
    task: Any = TASKS.load(name)(with_task_options(config, TASKS.load(name).Config))
    context: Any = ENVIRONMENTS.load(config.env.name)
    sizes = {"input_sizes": task.input_sizes, "output_sizes": task.output_sizes}
    return task, context.from_config(config.env, **sizes, num_cond_dim=task.num_cond_dim).env


@pytest.fixture(scope="module")
def setting() -> tuple[Any, Any]:
    return task_and_env("digits")


@pytest.mark.parametrize("name", ["digits", pytest.param("images", marks=pytest.mark.slow), "nas_bench_201_train"])
def test_proxies_are_finite_and_differ(name):
    small = [SMALL_SKELETON] if name == "nas_bench_201_train" else []
    task, env = task_and_env(name, *small)
    proxies = ProxyFeatures(env, task, ALL, seed=0)
    states = uniform_states(env, 6, generator=torch.Generator().manual_seed(0))
    features = proxies(states)
    assert features.shape == (6, 5)
    assert bool(features.isfinite().all())
    assert bool((features.std(0) > 0).all())
    expected = torch.tensor([task.cost(env.terminal(states, i)).num_parameters for i in range(6)])
    torch.testing.assert_close(proxies.raw(states)[:, 3], expected.double().log1p())


def test_proxies_depend_on_architecture_and_seed_only(setting):
    task, env = setting
    states = uniform_states(env, 8, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    expected, before = ProxyFeatures(env, task, ALL, seed=0)(states), torch.get_rng_state()
    proxies = ProxyFeatures(env, task, ALL, seed=0)
    assert torch.equal(proxies(states[4:]), expected[4:])
    assert torch.equal(proxies(states), expected)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(ProxyFeatures(env, task, ALL, seed=1)(states), expected)


def test_proxies_are_computed_once_per_architecture(setting, monkeypatch):
    task, env = setting
    proxies = ProxyFeatures(env, task, ["naswot"], seed=0)
    states = uniform_states(env, 6, generator=torch.Generator().manual_seed(2))
    expected = proxies(states)
    monkeypatch.setattr(task, "build_model", None)
    assert torch.equal(proxies(states), expected)


def test_proxies_that_fail_have_the_mean(setting, monkeypatch):
    task, env = setting
    states = uniform_states(env, 6, generator=torch.Generator().manual_seed(3))
    proxies = ProxyFeatures(env, task, ["synflow", "parameters"], seed=0)
    proxies(states[:0])
    monkeypatch.setattr(task, "build_model", None)
    new = [code not in proxies._values for code in env.identify(states).tolist()]
    features = proxies(states)
    assert any(new)
    assert features[new, 0].tolist() == [0.0] * sum(new)
    assert bool((features[:, 1] != 0).any())


def test_proxies_that_always_fail_are_refused(setting, monkeypatch):
    task, env = setting

    def build_model(candidate: Any) -> None:
        raise ValueError("no kernel")

    monkeypatch.setattr(task, "build_model", build_model)
    with pytest.raises(UserError, match=r"expected jacov of some random architectures, got none: no kernel$"):
        ProxyFeatures(env, task, ["jacov"], seed=0)(env.initial_states(0))


def test_proxies_sizes_of_a_task_without_models():
    task, _ = task_and_env("hypergrid")
    for names, expected in (
        (["naswot"], "expected a task that trains models on examples for naswot, got task=hypergrid"),
        (["parameters"], "expected a task that defines cost for parameters, got task=hypergrid"),
        (["size"], "expected some of naswot, jacov, synflow, parameters, multiply_adds, got 'size'"),
        (["jacov", "jacov"], "expected different names, got jacov, jacov"),
    ):
        with pytest.raises(UserError, match=f"search.surrogate.proxies: {expected}"):
            check_proxies(names, task)


def test_mean_and_deviation_leave_out_missing_values():
    values = torch.tensor([[1.0, 5.0], [3.0, 5.0], [float("nan"), 5.0]], dtype=torch.float64)
    mean, deviation = mean_and_deviation(values)
    assert mean.tolist() == [2.0, 5.0]
    assert deviation.tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_proxies_rank_cells_like_the_table_of_nas_bench_suite_zero():
    """Networks of the benchmark's skeleton with one cell per stage and 8 to 32 channels, on random images."""
    codes = {row["index"]: row["code"] for row in real_rows("nb201.csv.gz")}
    rows = real_rows("nb201_c10_zero_cost.csv.gz")[::150]
    skeleton = "env.cells.skeleton.stages=[{features: 8}, {features: 16}, {features: 32}]"
    networks: Any = read_design(load_config("nas_bench_201_train", [skeleton]).env.cells).networks(
        CIFAR_SHAPE, CIFAR_CLASSES
    )
    inputs = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for name, column, least in (("naswot", "nwot", 0.9), ("jacov", "jacov", 0.6), ("synflow", "synflow", 0.95)):
        pairs = []
        for row in rows:
            operations = tuple(NAS_BENCH_201.operations[int(digit)] for digit in codes[row["index"]])
            torch.manual_seed(0)
            model = to_pytorch_model(networks.graph(Assignment(NAS_BENCH_201.places, operations)))
            pairs.append((MODEL_PROXIES[name](model, inputs), float(row[column])))
        assert rank_correlation(pairs) > least


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3))


def test_naswot_equals_the_count_over_pairs(model, inputs):
    assert naswot(model, inputs) == pytest.approx(oracle.naswot(list(model), inputs), rel=1e-9)


def test_naswot_counts_all_activation_functions(inputs):
    expected = naswot(nn.ReLU(), inputs)
    for activation in (nn.GELU(), nn.SiLU(), nn.Tanh(), nn.ReLU6(), nn.ELU(), nn.LeakyReLU(inplace=True)):
        assert naswot(activation, inputs.clone()) == pytest.approx(expected)
    assert naswot(nn.Linear(5, 3), inputs) == 0


def test_jacov_equals_the_definition(model, inputs):
    assert jacov(model, inputs) == pytest.approx(oracle.jacov(model, inputs), rel=1e-3)


def test_synflow_equals_the_definition(model, inputs):
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    expected = oracle.synflow([each.weight for each in linear], [each.bias for each in linear])
    assert synflow(model, inputs) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", MODEL_PROXIES)
def test_proxies_leave_weights_and_dtype(name, inputs):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    MODEL_PROXIES[name](model, inputs)
    for key, value in model.named_parameters():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(inputs, torch.randn(6, 5, generator=torch.Generator().manual_seed(0)))


def test_synflow_restores_weights_after_an_error(inputs):
    first = nn.Linear(5, 4)
    before = first.weight.detach().clone()
    with pytest.raises(RuntimeError):
        synflow(nn.Sequential(first, nn.Linear(3, 2)), inputs)
    assert torch.equal(first.weight, before)
    assert first.weight.dtype == torch.float32
