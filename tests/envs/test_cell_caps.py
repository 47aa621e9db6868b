"""Hard caps on networks of cells: the terminal states are the cells within the caps."""

import random
from itertools import product
from typing import Any

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.cell_networks import Cell, SlotCosts
from gflownet.envs.cells import CellEnv, CellsContext, CostCaps
from gflownet.envs.config import CellsEnvConfig, EnvConfig
from gflownet.errors import UserError
from gflownet.graphs.operation_costs import OperationCost
from gflownet.operations.tensor_shape import Shape
from tests.envs.test_cell_networks import OWN_EDGES, OWN_LAYERS, networks

DIGITS = Shape.of((1, 8, 8))


def cells_within(env: CellEnv) -> set[tuple[Any, ...]]:
    """Return the operations of every terminal state; every state leads to one."""
    graph = enumerate_states(env)
    assert bool((env.forward_masks(graph.states).num_actions() > 0).all())
    return {env.terminal(graph.states, index).values for index in graph.terminal.tolist()}


def brute_force(cell: Cell, costs: SlotCosts, caps: tuple[int | None, int | None]) -> set[tuple[Any, ...]]:
    """Return the operations of every cell within the caps."""
    within = set()
    for choice in product(range(len(cell.operations)), repeat=len(cell.places)):
        cost = costs.of(choice)
        if all(cap is None or x <= cap for x, cap in zip((cost.num_parameters, cost.multiply_adds), caps, strict=True)):
            within.add(tuple(cell.operations[position] for position in choice))
    return within


@pytest.mark.parametrize("seed", range(8))
def test_cost_caps_random_costs(seed):
    """Random costs of which some places share theirs, with random caps."""
    rng = random.Random(seed)
    rows = [tuple(OperationCost(rng.randrange(9), rng.randrange(9)) for _ in range(3)) for _ in range(3)]
    costs = SlotCosts(OperationCost(5, 7), tuple(rng.choice(rows) for _ in range(4)))
    cell = Cell(("a", "b", "c", "d"), ("x", "y", "z"))
    mean = [sum(rng.choice(row).num_parameters for row in costs.places) for _ in range(2)]
    caps = rng.choice([(5 + mean[0], None), (None, 7 + mean[1]), (5 + mean[0], 7 + mean[1])])
    expected = brute_force(cell, costs, caps)
    if not expected:
        with pytest.raises(UserError, match="expected a cell within"):
            CostCaps(costs, *caps)
        return
    assert cells_within(CellEnv(cell, CostCaps(costs, *caps))) == expected


@pytest.mark.parametrize(
    ("options", "caps"),
    [(OWN_EDGES, (700, None)), (OWN_EDGES, (800, 14_000)), (OWN_LAYERS, (None, 6_000)), (OWN_LAYERS, (500, 9_000))],
)
def test_cells_context_caps_are_exact(options, caps):
    config = EnvConfig(cells=CellsEnvConfig(**options, max_parameters=caps[0], max_multiply_adds=caps[1]))
    env = CellsContext.build_env(config, input_sizes=(DIGITS,), output_sizes=(10,))
    slots = networks(options, DIGITS)
    expected = brute_force(slots.cell, slots.costs, caps)
    assert 0 < len(expected) < len(slots.cell.operations) ** len(slots.cell.places)
    assert isinstance(env, CellEnv)
    assert cells_within(env) == expected


def test_cost_caps_with_too_many_classes_raise():
    costs = SlotCosts(OperationCost(), tuple((OperationCost(), OperationCost(place, 0)) for place in range(1, 20)))
    with pytest.raises(UserError, match=r"caps need at most 100,000 combinations of places .*, got 524,288"):
        CostCaps(costs, 3, None)
