"""Objectives with tabular policies at the exact flows of a space, for which the loss is zero."""

import math
from typing import Any

import torch

from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.config import OBJECTIVES, AlgoConfig, BackwardName, SymmetryName
from gflownet.objectives.relative import RelativeTrajectoryBalance
from gflownet.objectives.soft_q import Munchausen
from tests.objectives.spaces import log_symmetries, make_batch, rewards_of
from tests.oracles.tabular import (
    Classes,
    Flows,
    Pair,
    TabularPolicy,
    class_flows,
    labelled_flows,
    maximum_entropy_backward,
    random_backward,
    tabular,
    uniform_backward,
)

FLOW_OBJECTIVES = ("tb", "vargrad", "db", "subtb", "fl_db", "fl_subtb", "soft_q", "munchausen")
SCHEMES: tuple[SymmetryName, ...] = ("reward", "flows", "actions", "none")
# Every symmetry scheme with a fixed and a learned backward policy; the other backward policies with some schemes.
COMBINATIONS: list[tuple[SymmetryName, BackwardName]] = [
    *((symmetry, "uniform") for symmetry in SCHEMES),
    *((symmetry, "learned") for symmetry in SCHEMES),
    ("reward", "maxent"),
    ("reward", "tlm"),
    ("reward", "pessimistic"),
    ("flows", "maxent"),
    ("flows", "tlm"),
    ("actions", "maxent"),
    ("actions", "tlm"),
    ("actions", "pessimistic"),
]
LogForward = dict[tuple[int, int, bool], float]  # of one labelled action: (s, s', is Stop); for Stop, s' = s
ALPHA = Munchausen.munchausen


def _maximum_entropy(space: Classes, config: AlgoConfig) -> tuple[dict[Pair, float], dict[int, float]]:
    """Return log P_B of one labelled action and log n(s), the log-number of paths into s in the scheme of `config`."""
    return maximum_entropy_backward(space, by_class=config.symmetry == "actions")


def flows_of(space: Classes, config: AlgoConfig, log_reward: torch.Tensor) -> Flows:
    if config.backward_policy == "uniform" and config.symmetry == "actions":
        log_backward = {
            (after, before): -math.log(len(space.parents(after)) * count)
            for (after, before), count in space.num_backward.items()
        }
    elif config.backward_policy == "uniform":
        log_backward = uniform_backward(space)
    elif config.backward_policy == "maxent":
        log_backward = _maximum_entropy(space, config)[0]
    else:
        log_backward = random_backward(space, seed=11)
    if config.symmetry == "actions":
        return class_flows(space, log_reward, log_backward)
    scaled = log_reward if config.symmetry == "none" else log_reward + log_symmetries(space)
    return labelled_flows(space, scaled, log_backward)


def set_up(space: Classes, config: AlgoConfig) -> tuple[Any, TabularPolicy, TrajectoryBatch, Flows]:
    """Return an objective, a tabular policy at its exact flows, trajectories and the flows."""
    log_reward = rewards_of(space)
    flows = flows_of(space, config, log_reward)
    symmetry, entropy_weight = log_symmetries(space).tolist(), 1 / (1 - ALPHA)

    def state_output(s: int) -> float:
        log_symmetry = symmetry[s] if config.symmetry == "flows" else 0.0
        state_log_reward = float(log_reward[s]) if config.method.startswith("fl_") and s in space.may_stop else 0.0
        return flows.log_flow[s] - log_symmetry - state_log_reward

    def logit_shift(s: int) -> float:
        return {"soft_q": 1.0, "fm": 1.0, "munchausen": 1 / entropy_weight}.get(config.method, 0.0) * flows.log_flow[s]

    log_num_paths = _maximum_entropy(space, config)[1]
    context, policy = tabular(
        space,
        flows,
        backward=config.backward_policy != "uniform",
        state_output=state_output,
        logit_shift=logit_shift,
        backward_shift=lambda s: log_num_paths[s] if config.backward_policy == "maxent" else 0.0,
    )
    objective_class: Any = OBJECTIVES.load(config.method)
    objective = objective_class(context, config)
    if config.method == "tb":
        torch.nn.init.constant_(objective.log_z.base, flows.log_flow[0])
    return objective, policy, make_batch(context, policy, space, log_reward), flows


def uniform_prior(space: Classes) -> LogForward:
    keys = [(s, s, True) for s in space.may_stop] + [(*pair, False) for pair in space.num_forward]
    return _normalised(space, dict.fromkeys(keys, 1.0))


def random_prior(space: Classes, *, seed: int) -> LogForward:
    """Return a random forward policy that is equal for equivalent actions."""
    generator = torch.Generator().manual_seed(seed)
    return _normalised(
        space, {key: math.exp(float(torch.randn((), generator=generator))) for key in uniform_prior(space)}
    )


def _normalised(space: Classes, weight: dict[tuple[int, int, bool], float]) -> LogForward:
    total = dict.fromkeys(range(len(space.graph)), 0.0)
    for key, value in weight.items():
        total[key[0]] += value * _num_actions(space, key)
    return {key: math.log(value / total[key[0]]) for key, value in weight.items()}


def _num_actions(space: Classes, key: tuple[int, int, bool]) -> int:
    return 1 if key[2] else space.num_forward[key[:2]]


def prior_policy(space: Classes, log_prior: LogForward) -> TabularPolicy:
    """Return a tabular policy with these log-probabilities of labelled actions."""
    flows = Flows(dict.fromkeys(range(len(space.graph)), 0.0), log_prior, uniform_backward(space))
    return tabular(space, flows, backward=True)[1]


def set_up_relative(
    space: Classes, *, log_prior: LogForward | None = None, config: AlgoConfig | None = None
) -> tuple[RelativeTrajectoryBalance, TabularPolicy, TrajectoryBatch]:
    """Return relative trajectory balance, its exact policy and trajectories; the prior is uniform by default.

    Exact: P(t | s) ~ P_prior(t | s) V(t), V the expected reward under the prior, independent of the symmetry scheme.
    """
    log_reward = rewards_of(space)
    prior = None if log_prior is None else prior_policy(space, log_prior)
    log_prior = log_prior or uniform_prior(space)
    value: dict[int, float] = {}
    log_forward: LogForward = {}
    for s in space.by_level:
        successors = {(s, s, True): math.exp(float(log_reward[s]))} if s in space.may_stop else {}
        successors |= {(s, after, False): value[after] for after in space.children(s)}
        weights = {key: math.exp(log_prior[key]) * v for key, v in successors.items()}
        value[s] = sum(_num_actions(space, key) * weight for key, weight in weights.items())
        log_forward |= {key: math.log(weight / value[s]) for key, weight in weights.items()}
    flows = Flows({s: math.log(v) for s, v in value.items()}, log_forward, uniform_backward(space))
    context, policy = tabular(space, flows, backward=False)
    objective = RelativeTrajectoryBalance(context, config or AlgoConfig(method="relative_tb"), prior=prior)
    torch.nn.init.constant_(objective.log_z.base, flows.log_flow[0])
    return objective, policy, make_batch(context, policy, space, log_reward)


def perturb(policy: TabularPolicy, *, scale: float = 0.3) -> None:
    """Add normal noise to the forward logits, which takes the policy off its exact flows."""
    with torch.no_grad():
        policy.forward_logits.add_(scale * torch.randn(policy.forward_logits.shape, dtype=torch.float64))
