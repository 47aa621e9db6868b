"""An objective beside a table that is off, and its gradient against central differences of the loops, in float64."""

import copy
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
SHARED = (0, 1, 0, 0, 1, 0)  # which of them each trajectory is under


@dataclass(frozen=True)
class Case:
    """An objective, the policy and what they are asked about."""

    objective: Any
    context: RememberingContext
    policy: TabularPolicy
    batch: TrajectoryBatch
    beside: LogPartition | None = None  # in float64, as the objective's own: log Z, or the offset of its flows

    @property
    def tables(self) -> list[Tensor]:
        """What the loops read, all of it in float64."""
        return [*self.policy.parameters(), *(self.beside.parameters() if self.beside else ())]

    @property
    def learned(self) -> list[Tensor]:
        """What the objective gives a gradient to, in the same order."""
        own = learned_beside(self.objective)
        return [*self.policy.parameters(), *(own.parameters() if self.beside and own else ())]

    def listen(self) -> losses.Trajectories:
        """Return what the policy says, actions counted one by one."""
        return losses.listen(self.context, self.policy, self.batch, self.beside)


def set_up(config: AlgoConfig, *, prior: TabularPolicy | None = None) -> Case:
    """Make an objective and six trajectories under two conditionings; nothing balances."""
    space = make_space("from_one_node_4")
    log_reward = rewards_of(space)
    flows = labelled_flows(space, log_reward + log_symmetries(space), random_backward(space, seed=1))
    context, policy = tabular(space, flows, backward=True)
    shake(policy.parameters(), seed=5)
    batch = make_batch(context, policy, space, log_reward, num=3)
    batch = replace(batch, conditioning=torch.tensor(CONDITIONINGS)[list(SHARED)][:, None])
    objective_class: Any = OBJECTIVES.load(config.method)
    objective = objective_class(context, config, **({} if prior is None else {"prior": prior}))
    losses.SYMMETRY_OF = space.env.num_automorphisms
    return Case(objective, context, policy, batch)


def bent(case: Case) -> Case:
    """Return the same with what is learned beside the policy no longer zero, nor the same under all conditionings."""
    own = learned_beside(case.objective)
    if own is None:
        return case
    shake(own.parameters(), seed=8)
    return replace(case, beside=copy.deepcopy(own).double())


def learned_beside(objective: Objective) -> LogPartition | None:
    """Return the objective's log Z, or the offset of its flows."""
    return next((part for part in objective.children() if isinstance(part, LogPartition)), None)


def shake(tables, *, seed: int) -> None:
    """Add standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for table in tables:
            table.add_(torch.randn(table.shape, dtype=torch.float64, generator=generator))


def assert_loss_and_gradient(case: Case, oracle: Callable[[], float], *, num_directions: int = 2) -> None:
    """Raises AssertionError where the loss is not what `oracle` says, or its gradient not that one's slope."""
    loss = case.objective.loss(case.policy, case.batch)
    case.policy.zero_grad()
    case.objective.zero_grad()
    loss.value.backward()
    assert float(loss.value.detach()) == pytest.approx(oracle(), rel=1e-5)
    for direction in directions(case.tables, num_directions):
        expected = slope(case.tables, oracle, direction)
        assert gradient_along(case.learned, direction) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def move(tables: Sequence[Tensor], direction: Sequence[Tensor], length: float) -> None:
    """Add a direction of a length."""
    with torch.no_grad():
        for table, part in zip(tables, direction, strict=True):
            table.add_(length * part)


def slope(tables: Sequence[Tensor], oracle: Callable[[], float], direction: Sequence[Tensor]) -> float:
    """Return the central difference of the loops along a direction of the tables."""
    values = []
    for sign in (1, -1):
        move(tables, direction, sign * STEP)
        values.append(oracle())
        move(tables, direction, -sign * STEP)
    return (values[0] - values[1]) / (2 * STEP)


def directions(tables: Sequence[Tensor], num: int) -> Iterator[list[Tensor]]:
    """Yield random directions of all tables at once."""
    generator = torch.Generator().manual_seed(6)
    for _ in range(num):
        yield [torch.randn(t.shape, dtype=torch.float64, generator=generator) for t in tables]


def gradient_along(tables: Sequence[Tensor], direction: Sequence[Tensor]) -> float:
    """Return the slope along a direction that the gradients say; what has none counts as 0."""
    pairs = zip(tables, direction, strict=True)
    return sum(float((table.grad * part).sum()) for table, part in pairs if table.grad is not None)
