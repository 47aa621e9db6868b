"""Cell spaces of NAS benchmarks: the same cells and codes as in the tables of the benchmarks."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.cell_networks import Cell
from gflownet.envs.cells import NAS_BENCH_201, NAS_BENCH_MACRO, NB101_OPERATIONS, CellGraphEnv, CellsContext, cell_env
from gflownet.envs.choice_limits import SummedCosts
from gflownet.envs.config import CellsEnvConfig, EnvConfig
from gflownet.errors import UserError
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.environment import Environment
from gflownet.operations.tensor_shape import Shape
from tasks.cells import graph_of_row
from tests.benchmark_tables import real_rows
from tests.contracts.environments import cells
from tests.envs.test_cell_networks import OWN_EDGES, OWN_LAYERS, networks
from tests.oracles.weisfeiler_lehman import cell_graph
from tests.search.terminal_states import random_terminal_states


def make_env(name: Any, **options) -> Environment:
    return CellsContext.build_env(
        EnvConfig(cells=CellsEnvConfig(name=name, **options)), input_sizes=(), output_sizes=()
    )


def operations_of(arch: str) -> dict[str, str]:
    """Return the operation of every edge `target<-source` of an architecture string of NAS-Bench-201."""
    nodes = [re.findall(r"\|([^|~]+)~(\d+)", node) for node in arch.split("+")]
    return {f"{target}<-{source}": op for target, node in enumerate(nodes, 1) for op, source in node}


def test_nas_bench_201_codes_match_table():
    rows = real_rows("nb201.csv.gz")
    env = make_env("nb201")
    cells = [operations_of(row["arch"]) for row in rows]
    objects = [Assignment(tuple(cell), tuple(cell.values())) for cell in cells]
    assert [NAS_BENCH_201.code(cell) for cell in objects] == [row["code"] for row in rows]
    assert len({cell.canonical_key() for cell in objects}) == len(rows) == 15_625 == 5**6
    states = env.states_of(objects)
    assert len(env.identify(states).unique()) == 15_625


@pytest.mark.slow
def test_nas_bench_macro_codes_match_table():
    env: Any = make_env("nb_macro")
    graph = enumerate_states(env, max_states=4**8)
    assert len(graph) == 4**8
    codes = {NAS_BENCH_MACRO.code(env.terminal(graph.states, i)) for i in graph.terminal.tolist()}
    assert codes == {row["code"] for row in real_rows("nb_macro.csv.gz")}
    assert len(codes) == 6_561


@pytest.mark.parametrize(("max_vertices", "num_classes", "spaces"), [(4, 91, {"4V9E"}), (5, 2_532, {"5V9E"})])
def test_nas_bench_101_cells_match_table(max_vertices, num_classes, spaces):
    """Each of the two spaces of the table also holds the graphs with fewer vertices."""
    env = make_env("nb101", max_vertices=max_vertices)
    graph = enumerate_states(env)
    keys = {env.terminal(graph.states, i).canonical_key() for i in graph.terminal.tolist()}
    rows = [row for row in real_rows("nb101_ec_4epochs.csv.gz") if row["space"] in spaces]
    assert keys == {graph_of_row(row).canonical_key() for row in rows}
    assert len(keys) == len(graph.terminal) == num_classes


def test_nas_bench_101_cells_of_three_vertices_match_hand_count():
    """Input to output directly, through one of three operations, or both."""
    env = make_env("nb101", max_vertices=3)
    graph = enumerate_states(env)
    objects = [env.terminal(graph.states, i) for i in graph.terminal.tolist()]
    chain, both = {(0, 2): "edge", (2, 1): "edge"}, {(0, 2): "edge", (2, 1): "edge", (0, 1): "edge"}
    expected = [ColouredGraph(("input", "output"), {(0, 1): "edge"})]
    for operation in ("conv3x3-bn-relu", "conv1x1-bn-relu", "maxpool3x3"):
        expected += [ColouredGraph(("input", "output", operation), edges) for edges in (chain, both)]
    assert {cell.canonical_key() for cell in objects} == {cell.canonical_key() for cell in expected}
    states = env.states_of(expected)
    assert set(env.identify(states).tolist()) == set(env.identify(graph.states[graph.terminal]).tolist())


def test_nas_bench_101_max_edges_limits_cells():
    graph = enumerate_states(CellGraphEnv(NB101_OPERATIONS, max_vertices=4, max_edges=3))
    assert int(graph.states[graph.terminal].has_edge.sum((1, 2)).max()) == 3


def test_nas_bench_101_unknown_operation_raises():
    graph = ColouredGraph(("input", "output", "conv7x7"), {(0, 2): "edge", (2, 1): "edge"})
    with pytest.raises(ValueError, match=r"graph 0: expected a operation out of .*, got 'conv7x7'"):
        make_env("nb101").states_of([graph])


def test_cell_graph_env_with_one_vertex_raises():
    with pytest.raises(ValueError, match="expected max_vertices >= 2, got 1"):
        CellGraphEnv(("a",), max_vertices=1)


DIGITS = Shape.of((1, 8, 8))


def cells_within(env: Any) -> set[tuple[Any, ...]]:
    """Return the operations of every terminal state; every state leads to one."""
    graph = enumerate_states(env)
    assert bool((env.forward_masks(graph.states).num_actions() > 0).all())
    return {env.terminal(graph.states, index).values for index in graph.terminal.tolist()}


def brute_force(cell: Cell, costs: SummedCosts, caps: tuple[int | None, int | None]) -> set[tuple[Any, ...]]:
    """Return the operations of every cell within the caps."""
    within = set()
    for choice in product(range(len(cell.operations)), repeat=len(cell.places)):
        cost = costs.of(choice)
        if all(cap is None or x <= cap for x, cap in zip(cost, caps, strict=True)):
            within.add(tuple(cell.operations[position] for position in choice))
    return within


@pytest.mark.parametrize("seed", range(8))
def test_cost_caps_random_costs(seed):
    """Random costs of which some places share theirs, with random caps."""
    rng = random.Random(seed)
    rows = [tuple((rng.randrange(9), rng.randrange(9)) for _ in range(3)) for _ in range(3)]
    costs = SummedCosts((5, 7), tuple(rng.choice(rows) for _ in range(4)))
    cell = Cell(("a", "b", "c", "d"), ("x", "y", "z"))
    mean = [sum(rng.choice(row)[0] for row in costs.places) for _ in range(2)]
    caps = rng.choice([(5 + mean[0], None), (None, 7 + mean[1]), (5 + mean[0], 7 + mean[1])])
    expected = brute_force(cell, costs, caps)
    if not expected:
        with pytest.raises(UserError, match="expected a cell within"):
            replace(costs, caps=caps)
        return
    assert cells_within(cell_env(cell, replace(costs, caps=caps))) == expected


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
    assert cells_within(env) == expected


def test_cost_caps_with_too_many_classes_raise():
    with pytest.raises(UserError, match=r"caps need at most 100,000 combinations of places .*, got 524,288"):
        SummedCosts((0, 0), tuple(((0, 0), (place, 0)) for place in range(1, 20)), (3, None))


OWN = Cell(("1<-0", "2<-1", "3<-0", "3<-2", "4<-1", "4<-3"), ("conv", "nothing", "skip"), zeros=("nothing",))


@pytest.mark.parametrize("cell", [NAS_BENCH_201, OWN], ids=["nb201", "edges"])
def test_labelled_graphs_of_cells_match_paths(cell):
    env = cell_env(cell)
    states = random_terminal_states(env, 60, seed=0)
    graphs = env.labelled_graphs(states)
    places = cell.places
    last, names = max(int(place[0]) for place in places), [*places, "input", "output"]
    for index in range(len(states)):
        operations: Any = env.terminal(states, index).as_dict()
        expected, followers = cell_graph(operations, cell.zeros, last=last)
        labels = [cell.operations[i] for i in graphs.labels[index, :-2, 0].tolist() if i >= 0]
        assert Counter(labels) == expected
        assert {(names[s], names[t]) for s, t in graphs.edges[index].nonzero().tolist()} == followers
        assert graphs.places[index].tolist() == [cell.operations.index(operations[place]) for place in places]


def test_labelled_graphs_of_layers_form_chain():
    env = cells("nb_macro")
    graphs = env.labelled_graphs(random_terminal_states(env, 3, seed=1))
    chain = [(8, 0), *((layer, layer + 1) for layer in range(7)), (7, 9)]
    assert all(sorted(map(tuple, edges.nonzero().tolist())) == sorted(chain) for edges in graphs.edges)
