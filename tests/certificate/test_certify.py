"""Certificates of policies under caps of their trajectories."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gflownet.certificate.exact import (
    enumerate_states,
    forward_scores,
    policy_log_prob,
    terminating_distribution,
    total_variation,
)
from gflownet.certificate.result import Check
from gflownet.certificate.words import errors, findings, has_converged
from gflownet.envs.operation_graph import OperationGraphEnv
from gflownet.evaluation.conditioning import Conditioning
from gflownet.objectives.config import AlgoConfig
from gflownet.objectives.trajectory_balance import TrajectoryBalance
from tests.certificate.subjects import Case, RewardsScores
from tests.contracts.environments import operation_graphs
from tests.objectives.spaces import rewards_of
from tests.oracles.tabular import RememberingContext, TabularPolicy, classes_of, labelled_flows, uniform_backward

CAPS = (25, 90, 200)  # of 420 parameters; the smallest network has 20


class RewardsUnderCaps(RewardsScores):
    """A cap of each trajectory out of CAPS, which is also its encoding."""

    def sample_conditioning(self, num, *, generator):
        limit = torch.tensor(CAPS)[torch.arange(num) * len(CAPS) // num][:, None]
        return Conditioning(limit.float(), torch.ones(num), limit)


class TableOfEachCap(nn.Module):
    """Exact flows of each cap; a batch has one cap."""

    def __init__(self, tables: dict[int, TabularPolicy]) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({str(cap): table for cap, table in tables.items()})

    def forward(self, batch, conditioning):
        (cap,) = set(conditioning[:, 0].int().tolist())
        return self.tables[str(cap)](batch, conditioning)


class LogZOfEachCap(nn.Module):
    def __init__(self, values: dict[int, float]) -> None:
        super().__init__()
        self.values, self.base = values, nn.Parameter(torch.zeros(()))

    def forward(self, conditioning: Tensor) -> Tensor:
        return torch.tensor([self.values[int(cap)] for cap in conditioning[:, 0]]) + self.base * 0


def capped_case(*, ignores_limits: bool, max_edges: int = 3) -> tuple[Case, Tensor]:
    """Return the flows that balance R under each cap, and log R of all states without a cap."""
    env = operation_graphs(max_parameters=420, max_edges=max_edges)
    if ignores_limits:
        env.caps_of = partial(_own_caps, env)  # type: ignore[method-assign]
    space = classes_of(env, enumerate_states(env))
    rewards, context = rewards_of(space), RememberingContext(env).with_layout(TabularPolicy.layout)
    tables, log_z = {}, {}
    for cap in CAPS:
        part = classes_of(env, enumerate_states(env, limit=torch.tensor([cap])))
        log_reward = rewards[space.graph.locate(part.graph.code)]
        symmetry = part.graph.num_automorphisms.log()
        flows = labelled_flows(part, log_reward + symmetry, uniform_backward(part))
        tables[cap] = TabularPolicy(context, part, flows)
        log_z[cap] = float(log_reward[part.graph.terminal].logsumexp(0))
    objective: Any = TrajectoryBalance(context, AlgoConfig())
    objective.log_z = LogZOfEachCap(log_z)
    return Case(space, objective, TableOfEachCap(tables), context, RewardsUnderCaps()), rewards


def _own_caps(env: OperationGraphEnv, states, *names) -> Tensor:
    """Return the environment's caps in place of those of the states: an error."""
    return type(env).caps_of(env, env.initial_states(len(states)), *names)


@pytest.mark.parametrize("ignores_limits", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_policy_samples_the_networks_within_each_cap_in_proportion(ignores_limits):
    """The target is R on {x: size(x) <= cap}, computed without masks."""
    case, rewards = capped_case(ignores_limits=ignores_limits, max_edges=4)
    env, whole, numbers = case.space.env, case.space.graph, []
    for cap in CAPS:
        is_inside = torch.zeros(len(whole), dtype=torch.bool)
        is_inside[whole.terminal] = (env.sizes(whole.states[whole.terminal]) <= cap).all(1)
        target = rewards.masked_fill(~is_inside, -torch.inf).softmax(0)
        part = enumerate_states(env, limit=torch.tensor([cap]))
        log_prob = policy_log_prob(part, forward_scores(case.context, case.policy, torch.tensor([float(cap)])))
        sampled = torch.zeros(len(whole), dtype=torch.float64)
        sampled[whole.locate(part.code)] = terminating_distribution(part, log_prob)
        distance = total_variation(sampled, target)
        assert distance > 0.1 if ignores_limits else distance < 1e-9
        numbers.append(int(is_inside.sum()))
    assert 1 < numbers[0] < numbers[1] < numbers[2] < len(whole.terminal)


def test_certificate_of_each_cap_is_exact():
    case, _ = capped_case(ignores_limits=False)
    certificate = case.certified()
    assert [part.limits for part in certificate.parts] == [{"parameters": cap} for cap in CAPS]
    assert not errors(certificate)
    for part in certificate.parts:
        assert has_converged(part)
        assert part.certificate.kind == "exact"
        assert part.certificate.total_variation < 1e-6
        assert part.certificate.learned_log_z == pytest.approx(part.certificate.log_z, abs=1e-5)
    terminal = [part.certificate.num_terminal for part in certificate.parts]  # type: ignore[union-attr]
    assert terminal == sorted(set(terminal))


@pytest.mark.parametrize("max_states", [10_000, pytest.param(10, marks=pytest.mark.slow)])
def test_masks_that_ignore_limits_are_an_error(max_states):
    case, _ = capped_case(ignores_limits=True)
    certificate = case.certified(max_states=max_states)
    assert Check.LIMIT.value in errors(certificate)
    (violation,) = (v for v in certificate.rules.violations[-1:] if v.check is Check.LIMIT)
    assert "parameters" in violation.example
    if max_states > 10:
        assert not has_converged(certificate.parts[0])
        assert any("total variation" in each.text for each in findings(certificate, certificate.parts[0]))


@pytest.mark.slow
def test_estimates_of_each_cap_agree_with_its_target():
    case, _ = capped_case(ignores_limits=False)
    certificate = case.certified(max_states=10)
    assert not errors(certificate)
    for part in certificate.parts:
        figures = part.certificate
        assert figures.kind == "estimated"
        assert figures.flow_consistency.value < 1e-5
