"""Sampling with states on the device of the policy: one wait for the device per step, the same actions as on the CPU.

The meta device has no values: every operation that reads one fails there, as does a mixture of devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import gflownet
from gflownet.envs.operation_graph import OperationGraphContext, OperationGraphEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.learning import sampler
from gflownet.learning.sampler import Exploration, sample_forward, sampled_steps
from gflownet.mdp.action import INVALID, ActionBatch
from gflownet.mdp.context import GraphBuildingEnvContext
from gflownet.mdp.dense_layout import DenseLayout
from gflownet.mdp.environment import Environment
from gflownet.mdp.states import GraphStates
from gflownet.policy.config import ModelConfig
from gflownet.policy.dense_transformer import DenseTransformerPolicy
from gflownet.policy.wrappers import PolicyOnDevice
from gflownet.report.results import read_results
from gflownet.train import main
from tests.contracts.environments import ENVIRONMENTS
from tests.device_with_values import device_with_values
from tests.fast_cases import slow_except
from tests.waits import counted_waits

CPU, META, NUM = torch.device("cpu"), torch.device("meta"), 8
# The others have no own rules, or the same ones with other options.
QUICK = frozenset({"undirected_attributes", "directed", "computation_graph_ordered", "operation_graph", "choices"})
PARAMETERS = slow_except(("directed",), ENVIRONMENTS)
OF_DEVICES = slow_except(("computation_graph_ordered", "choices"), sorted(QUICK))


def context_of(env: Environment) -> GraphBuildingEnvContext:
    context = OperationGraphContext(env) if isinstance(env, OperationGraphEnv) else GraphBuildingEnvContext(env)
    return context.with_layout(DenseTransformerPolicy.layout)


def small_policy(context: GraphBuildingEnvContext) -> DenseTransformerPolicy:
    torch.manual_seed(0)
    return DenseTransformerPolicy(context, ModelConfig(num_layers=1, num_emb=16))


def steps_of(context: GraphBuildingEnvContext, policy: Any, device: torch.device) -> list[sampler.SampledStep]:
    generator = torch.Generator().manual_seed(1)
    conditioning = Conditioning(torch.zeros(NUM, 1), torch.ones(NUM))
    return sampled_steps(context, policy, conditioning, generator, Exploration(0.1, 2.0), device)


@pytest.mark.parametrize("name", PARAMETERS)
def test_step_reads_no_value_of_a_device(name, monkeypatch):
    """The meta device runs all steps once the results of `read_ahead` are replayed from the CPU."""
    env = ENVIRONMENTS[name]()
    if not env.runs_on_device:
        pytest.skip("steps on the CPU")
    context = context_of(env)
    policy, original = small_policy(context), Environment.read_ahead
    known: list[tuple[Mapping[int, int] | None, int]] = []

    def record(self: Environment, states: GraphStates, actions: ActionBatch) -> tuple[ActionBatch, int]:
        counted, largest = original(self, states, actions)
        known.append((counted.counts, largest))
        return counted, largest

    def replay(self: Environment, states: GraphStates, actions: ActionBatch) -> tuple[ActionBatch, int]:
        counts, largest = next(replayed)
        return replace(actions, counts=counts), largest

    monkeypatch.setattr(Environment, "read_ahead", record)
    with monkeypatch.context() as patch:
        patch.setattr(sampler, "_CPU", META)  # the code for devices, on the CPU
        num_steps = len(steps_of(context, policy, CPU))
    monkeypatch.setattr(Environment, "read_ahead", replay)
    policy = policy.to(META)
    replayed = iter(known)
    steps_of(context, policy, META)  # computes tables once
    replayed = iter(known)
    with counted_waits() as waits:
        steps = steps_of(context, policy, META)
    assert len(steps) == num_steps
    assert {step.log_backward.device for step in steps} == {META}
    assert waits == {"int": 1}  # of the initial states, which are made on the CPU


@pytest.mark.parametrize("name", OF_DEVICES)
def test_device_samples_the_same_actions_with_one_wait_per_step(name, monkeypatch):
    """The code for devices runs on the CPU here: equal states are evaluated each, so logits differ by rounding."""
    context = context_of(ENVIRONMENTS[name]())
    policy = small_policy(context)
    expected = steps_of(context, policy, CPU)
    monkeypatch.setattr(sampler, "_CPU", META)
    with counted_waits() as waits:
        steps = steps_of(context, policy, CPU)
    assert len(steps) == len(expected)
    for step, other in zip(steps, expected, strict=True):
        assert torch.equal(step.trajectory, other.trajectory)
        assert all(torch.equal(a, b) for a, b in zip(step.actions.parts, other.actions.parts, strict=True))
        assert bool(step.states.equals(other.states).all())
        torch.testing.assert_close(step.log_backward, other.log_backward)
        assert step.states.largest == int(step.states.num_nodes.max())
    assert waits["tolist"] == len(steps)


def test_invalid_logits_name_their_graph_at_the_next_read():
    """A device samples INVALID; environment and layout keep it until the host reads the kinds of actions."""
    context = context_of(ENVIRONMENTS["directed"]())
    env, states = context.env, context.env.initial_states(NUM)
    categorical, _ = small_policy(context)(context.to_batch(states), torch.zeros(NUM, 1))
    slots = categorical.slots.index_fill(0, torch.tensor([3]), torch.nan)
    indices = categorical.with_slots(slots).sample_on_device(torch.Generator().manual_seed(0))
    assert indices[3].tolist() == [INVALID] * 3
    assert int((indices == INVALID).any(1).sum()) == 1
    with pytest.raises(FloatingPointError, match=r"^graph 3: expected numbers as logits, got nan or inf$"):
        categorical.with_slots(slots).sample()
    kind_at, _ = DenseLayout(context)._tables(4, context.action_types, CPU)
    actions = ActionBatch(kind_at[indices[:, 0]], indices[:, 1], indices[:, 2])
    with pytest.raises(FloatingPointError, match=r"^graph 3: expected numbers as logits, got nan or inf$"):
        env.read_ahead(states, actions)


def test_sparse_layout_stays_on_the_cpu():
    context = GraphBuildingEnvContext(ENVIRONMENTS["directed"]())
    policy = PolicyOnDevice(small_policy(context_of(context.env)), device=META, precision="float32")
    assert sampler._device_of_states(context, policy) == CPU
    assert sampler._device_of_states(context_of(context.env), policy) == META


@pytest.mark.parametrize("name", OF_DEVICES)
def test_device_samples_as_the_cpu(name):
    with device_with_values() as device:
        assert_samples_as_the_cpu(name, device)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", sorted(QUICK))
def test_cuda_samples_as_the_cpu(name):
    assert_samples_as_the_cpu(name, torch.device("cuda"))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_default_run_and_its_sampler_work_on_cuda(tmp_path):
    """A cap, one row for all samples, is expanded: its memory is pinned as a copy."""
    folder = tmp_path / "run"
    devices, sizes = ("device=cuda", "evaluation.device=cuda"), ("budget.evaluations=16", "final.num_seeds=2")
    assert main([*devices, *sizes, "final.caps=[600]", f"log_dir={folder}", "wandb.mode=disabled"]) == 0
    assert read_results(folder).sampler is not None
    assert len(gflownet.sample(folder, 3, max_parameters=800, device="cuda")) == 3
    assert gflownet.load(folder, set=True)(torch.zeros(2, 1, 40)).shape == (2, 10)


def assert_samples_as_the_cpu(name: str, device: torch.device) -> None:
    context = context_of(ENVIRONMENTS[name]())
    policy = small_policy(context)
    conditioning = Conditioning(torch.zeros(NUM, 1), torch.ones(NUM))
    here, there = (
        sample_forward(
            context,
            PolicyOnDevice(policy.to(each), device=each, precision="float32"),
            conditioning=conditioning,
            generator=torch.Generator().manual_seed(1),
        )
        for each in (CPU, device)
    )
    assert there.log_backward.device == CPU
    assert torch.equal(here.trajectory, there.trajectory)
    assert all(torch.equal(a, b) for a, b in zip(here.actions.parts, there.actions.parts, strict=True))
    assert bool(here.terminal.equals(there.terminal).all())
