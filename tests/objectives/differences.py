"""Compare the loss and gradient of an objective with central differences of the reference losses, in float64."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gflownet.mdp.trajectory import TrajectoryBatch
from gflownet.objectives.base import Objective
from gflownet.objectives.config import OBJECTIVES, AlgoConfig
from gflownet.objectives.log_partition import LogPartition
from tests.objectives.spaces import log_symmetries, make_batch, make_space, rewards_of
from tests.oracles import losses
from tests.oracles.tabular import RememberingContext, TabularPolicy, labelled_flows, random_backward, tabular

STEP = 1e-4
CONDITIONINGS = (0.3, -0.8)
SHARED = (0, 1, 0, 0, 1, 0)  # index into CONDITIONINGS of each trajectory


@dataclass(frozen=True)
class Case:
    """An objective, a tabular policy away from its exact flows, and trajectories."""

    objective: Any
    context: RememberingContext
    policy: TabularPolicy
    batch: TrajectoryBatch
    offset: LogPartition | None = None  # float64 copy of the objective's log Z or offset of its flows

    @property
    def tables(self) -> list[Tensor]:
        """Parameters that the reference loss reads, in float64."""
        return [*self.policy.parameters(), *(self.offset.parameters() if self.offset else ())]

    @property
    def learned(self) -> list[Tensor]:
        """Parameters that the objective differentiates, in the same order."""
        offset = learned_offset(self.objective)
        return [*self.policy.parameters(), *(offset.parameters() if self.offset and offset else ())]

    def read_steps(self) -> losses.Trajectories:
        """Evaluate the policy on the batch, labelled actions counted one by one."""
        return losses.read_steps(self.context, self.policy, self.batch, self.offset)


@functools.cache
def trajectories() -> TrajectoryBatch:
    """Return six trajectories of the noisy policy under two conditionings."""
    space, (context, policy) = make_space("from_one_node_4"), noisy_policy()
    batch = make_batch(context, policy, space, rewards_of(space), num=3)
    return replace(batch, conditioning=torch.tensor(CONDITIONINGS)[list(SHARED)][:, None])


def noisy_policy() -> tuple[RememberingContext, TabularPolicy]:
    space = make_space("from_one_node_4")
    flows = labelled_flows(space, rewards_of(space) + log_symmetries(space), random_backward(space, seed=1))
    context, policy = tabular(space, flows, backward=True)
    add_noise(policy.parameters(), seed=5)
    return context, policy


def set_up(config: AlgoConfig, *, prior: TabularPolicy | None = None) -> Case:
    """Return an objective, a noisy policy and its trajectories."""
    context, policy = noisy_policy()
    objective_class: Any = OBJECTIVES.load(config.method)
    objective = objective_class(context, config, **({} if prior is None else {"prior": prior}))
    losses.SYMMETRY_OF = context.env.num_automorphisms
    return Case(objective, context, policy, trajectories())


def with_random_offset(case: Case) -> Case:
    offset = learned_offset(case.objective)
    if offset is None:
        return case
    add_noise(offset.parameters(), seed=8)
    return replace(case, offset=copy.deepcopy(offset).double())


def learned_offset(objective: Objective) -> LogPartition | None:
    return next((part for part in objective.children() if isinstance(part, LogPartition)), None)


def add_noise(parameters, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))


def assert_loss_and_gradient(case: Case, oracle: Callable[[], float]) -> None:
    loss = case.objective.loss(case.policy, case.batch)
    case.policy.zero_grad()
    case.objective.zero_grad()
    loss.value.backward()
    assert float(loss.value.detach()) == pytest.approx(oracle(), rel=1e-5)
    direction = next(directions(case.tables, 1))
    expected = slope(case.tables, oracle, direction)
    assert gradient_along(case.learned, direction) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def move(tables: Sequence[Tensor], direction: Sequence[Tensor], length: float) -> None:
    """Add `length` times a direction to the parameters in place."""
    with torch.no_grad():
        for table, part in zip(tables, direction, strict=True):
            table.add_(length * part)


def slope(tables: Sequence[Tensor], oracle: Callable[[], float], direction: Sequence[Tensor]) -> float:
    values = []
    for sign in (1, -1):
        move(tables, direction, sign * STEP)
        values.append(oracle())
        move(tables, direction, -sign * STEP)
    return (values[0] - values[1]) / (2 * STEP)


def directions(tables: Sequence[Tensor], num: int) -> Iterator[list[Tensor]]:
    generator = torch.Generator().manual_seed(6)
    for _ in range(num):
        yield [torch.randn(t.shape, dtype=torch.float64, generator=generator) for t in tables]


def gradient_along(tables: Sequence[Tensor], direction: Sequence[Tensor]) -> float:
    """Return the derivative along a direction from the stored gradients; a missing gradient counts as 0."""
    pairs = zip(tables, direction, strict=True)
    return sum(float((table.grad * part).sum()) for table, part in pairs if table.grad is not None)
