"""Cell spaces of NAS benchmarks: the same cells and codes as in the tables of the benchmarks."""

import re
from typing import Any

import pytest

from gflownet.certificate.exact import enumerate_states
from gflownet.envs.cell_design import NAS_BENCH_201, NAS_BENCH_MACRO
from gflownet.envs.cells import CellEnv, CellGraphEnv, CellsContext
from gflownet.envs.config import CellsEnvConfig, EnvConfig
from gflownet.graphs.assignment import Assignment
from gflownet.graphs.canonical import ColouredGraph
from gflownet.mdp.environment import Environment
from tasks.cells import graph_of_row
from tests.benchmark_tables import real_rows


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


def test_nas_bench_macro_codes_match_table():
    env = make_env("nb_macro")
    assert isinstance(env, CellEnv)
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
    graph = enumerate_states(make_env("nb101", max_vertices=4, max_edges=3))
    assert int(graph.states[graph.terminal].has_edge.sum((1, 2)).max()) == 3


def test_nas_bench_101_unknown_operation_raises():
    graph = ColouredGraph(("input", "output", "conv7x7"), {(0, 2): "edge", (2, 1): "edge"})
    with pytest.raises(ValueError, match=r"graph 0: expected a operation out of .*, got 'conv7x7'"):
        make_env("nb101").states_of([graph])


def test_cell_graph_env_with_one_vertex_raises():
    with pytest.raises(ValueError, match="expected max_vertices >= 2, got 1"):
        CellGraphEnv(("a",), max_vertices=1, max_edges=3)


def test_cells_context_from_config():
    config = EnvConfig(cells=CellsEnvConfig(name="nb_macro"))
    env = CellsContext.from_config(config, input_sizes=(), output_sizes=(), num_cond_dim=1).env
    assert env.vocabulary.node_types == tuple(f"layer{i}" for i in range(8))
