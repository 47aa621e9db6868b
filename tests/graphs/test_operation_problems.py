"""Problems of operation graphs."""

import copy
from math import nan
from typing import Any

import pytest

from gflownet.graphs.computation_graph import ComputationGraph
from tests.graphs.test_operation_graph_format import EXAMPLE, edited
from tests.oracles import operation_graphs as oracle


def problems(data: dict[str, Any]) -> list[tuple[str, str, int | None, int | None]]:
    found = ComputationGraph.from_dict(data).validate()
    assert all("\n" not in problem.message for problem in found)
    return [(problem.code, problem.subgraph, problem.node_id, problem.edge_id) for problem in found]


def image_chain(*operations: dict[str, Any], subgraphs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Input 0 [4, 8, 8], the nodes 1, 2, ..., and a head."""
    head = {"node_type": "output", "operation": {"name": "head", "features": 2}}
    nodes = [{"shape": [4, 8, 8]}, *operations, head]
    edges = [{"source": place, "target": place + 1} for place in range(len(nodes) - 1)]
    nodes = [{"id": place, **node} for place, node in enumerate(nodes)]
    return {"nodes": nodes, "edges": edges, "subgraphs": subgraphs or {}}


def conv(features: int, **settings: Any) -> dict[str, Any]:
    return {"operation": {"name": "conv2d", "features": features, **settings}}


def cell(*nodes: dict[str, Any]) -> dict[str, Any]:
    """A subgraph: a chain of nodes between an input and an identity."""
    chain = [{"node_type": "input"}, *nodes, {"node_type": "output", "operation": {"name": "identity"}}]
    edges = [{"source": place, "target": place + 1} for place in range(len(chain) - 1)]
    return {"nodes": [{"id": place, **node} for place, node in enumerate(chain)], "edges": edges}


@pytest.mark.parametrize("seed", range(20))
def test_valid_operation_graphs_have_no_problems(seed):
    assert problems(oracle.random_data(oracle.Random(seed))) == []


@pytest.mark.parametrize(
    ("path", "value", "codes"),
    [
        ("nodes.0.shape", [3, 0, 8], ["invalid_shape"]),
        ("nodes.0.shape", "x", ["invalid_shape"]),
        ("nodes.0.shape", [True], ["invalid_shape"]),
        ("nodes.0.shape", [1, 2, 3, 4, 5], ["invalid_shape"]),
        ("nodes.0.layout", "picture", ["invalid_layout"]),
        ("nodes.0.layout", "vector", ["invalid_shape"]),
        ("nodes.0.dtype", "int", ["invalid_dtype"]),
        ("nodes.0.output_size", 3, ["invalid_shape"]),
        ("nodes.0.bias", 1.0, ["invalid_input_node"]),
        ("nodes.0.activation_function", "relu", ["invalid_input_node"]),
        ("nodes.0.align", "auto", ["unknown_attribute"]),
        ("nodes.1.operation", {"name": "conv3d"}, ["unknown_operation"]),
        ("nodes.1.operation", "conv2d", ["invalid_operation"]),
        ("nodes.1.operation", {"features": 3}, ["invalid_operation"]),
        ("nodes.1.operation", {"name": "math:sqrt"}, ["unknown_operation"]),
        ("nodes.1.operation", {"name": "conv2d"}, ["missing_setting"]),
        (
            "nodes.1.operation",
            {"name": "conv2d", "kernel": 3, "stride": 0, "bias": 1},
            ["unknown_setting", "invalid_setting", "invalid_setting", "missing_setting"],
        ),
        ("nodes.1.activation_function", "Relu", ["invalid_activation"]),
        ("nodes.1.activation_function", "lstm", ["invalid_activation"]),
        ("nodes.1.aggregation", "attention", ["invalid_aggregation"]),
        ("nodes.1.aggregation", ["sum"], ["invalid_aggregation"]),
        ("nodes.1.align", "crop", ["invalid_align"]),
        ("nodes.1.edge_weight", 1, ["invalid_attribute"]),
        ("nodes.1.repeat", 2, ["unknown_attribute"]),
        ("nodes.1.shape", [4, 8, 8], ["unknown_attribute"]),
        ("nodes.1.attributes", {"head_dim": 3}, ["unknown_attribute"]),
        ("nodes.1.subgraph", "cell", ["unknown_attribute"]),
        ("nodes.1.output_size", 4, ["unused_output_size"]),
        ("nodes.1.bias", 0.5, ["unused_bias"]),
        ("nodes.2.subgraph", "stage", ["unknown_subgraph"]),
        ("nodes.2.subgraph", 3, ["unknown_subgraph"]),
        ("nodes.2.subgraph", {"a": 1}, ["unknown_subgraph"]),
        ("nodes.2.repeat", 0, ["invalid_repeat"]),
        ("nodes.2.repeat", True, ["invalid_repeat"]),
        ("nodes.2.repeat", 1001, ["invalid_repeat"]),
        ("nodes.2.share", 1, ["invalid_share"]),
        ("nodes.3.operation", {"name": "batch_norm"}, []),
    ],
)
def test_operation_node_problems(path, value, codes):
    node_id = int(path.split(".")[1])
    assert problems(edited(path, value)) == [(code, "", node_id, None) for code in codes]


def test_edge_weight_allows_bias_and_weight():
    data = edited("nodes.1.bias", 0.5)
    data["nodes"][1]["edge_weight"] = True
    data["edges"][0]["weight"] = 2.0
    assert problems(data) == []


def test_missing_shape_problem():
    data = copy.deepcopy(EXAMPLE)
    data["nodes"][0] = {"id": 0, "node_type": "input"}
    assert problems(data) == [("missing_shape", "", 0, None)]
    data["nodes"][0]["output_size"] = 5
    assert problems(data) == [("shape_mismatch", "", 1, None)]


@pytest.mark.parametrize(
    ("edge", "codes"),
    [
        ({"target": 0}, ["edge_into_input"]),
        ({"source": 77}, ["dangling_edge"]),
        ({"weight": nan}, ["non_finite_weight", "unused_weight"]),
        ({"weight": 0.5}, ["unused_weight"]),
        ({"port": 3}, ["invalid_attribute"]),
        ({"port": {"a": [1]}}, ["invalid_attribute"]),
        ({"operation": {"name": "identity"}}, ["operation_on_edge"]),
        ({"attributes": {"is_recurrent": "yes"}}, ["invalid_attribute"]),
        ({"attributes": {"size": 1}}, ["unknown_attribute"]),
        ({"source": 0, "target": 1}, ["duplicate_edge"]),
        ({"source": 3, "target": 1}, ["cycle"]),
        ({"source": 3, "target": 3}, ["cycle"]),
    ],
)
def test_operation_edge_problems(edge, codes):
    data = copy.deepcopy(EXAMPLE)
    data["edges"].append({"source": 0, "target": 3, **edge})
    assert problems(data) == [(code, "", None, 3) for code in codes]


def test_parallel_edges_into_ports_are_no_duplicates():
    inner = cell()
    inner["nodes"].append({"id": 5, "node_type": "input", "port": "key"})
    inner["edges"].append({"source": 5, "target": 1})
    data = image_chain({"subgraph": "inner"}, subgraphs={"inner": inner})
    data["edges"].append({"source": 0, "target": 1, "port": "key"})
    assert problems(data) == []


def test_port_problems():
    assert problems(edited("edges.1.port", "query")) == [("unknown_port", "", 2, None), ("missing_port", "", 2, None)]
    assert problems(edited("edges.0.enabled", False)) == [("missing_port", "", 1, None)]
    assert problems(edited("edges.2.port", "key")) == [("unknown_port", "", 3, None), ("missing_port", "", 3, None)]


def test_subgraph_problems():
    without_ends = {"nodes": [{"id": 1, "operation": {"name": "identity"}}], "edges": []}
    codes = [(code, name) for code, name, *_ in problems(edited("subgraphs.cell", without_ends))]
    assert codes == [("missing_input", "cell"), ("subgraph_outputs", "cell"), ("missing_port", "cell")]
    two_outputs = cell(conv(4))
    two_outputs["nodes"].append({"id": 9, "node_type": "output", "operation": {"name": "identity"}})
    two_outputs["edges"].append({"source": 0, "target": 9})
    assert problems(edited("subgraphs.cell", two_outputs)) == [("subgraph_outputs", "cell", None, None)]
    recursive = cell({"subgraph": "cell"})
    assert problems(edited("subgraphs.cell", recursive)) == [("recursive_subgraph", "", 2, None)]
    same_ports = cell()
    same_ports["nodes"].append({"id": 9, "node_type": "input"})
    assert problems(edited("subgraphs.cell", same_ports)) == [("duplicate_port", "", 2, None)]
    other_port = cell()
    other_port["nodes"][0]["port"] = "key"
    data = edited("subgraphs.cell", other_port)
    data["edges"][1]["port"] = "key"
    assert problems(data) == [("repeat_mismatch", "", 2, None)]
    data["nodes"][2]["repeat"] = 1
    assert problems(data) == []
    other_port["nodes"][0]["port"] = {"a": 1}
    assert problems(edited("subgraphs.cell", other_port)) == [("invalid_attribute", "cell", 0, None)]


def test_problem_in_subgraph_is_reported_once():
    broken = cell(conv(4, kernel=1))
    data = image_chain({"subgraph": "a"}, {"subgraph": "a"}, subgraphs={"a": broken})
    assert problems(data) == [("unknown_setting", "a", 1, None)]
    data = image_chain({"subgraph": "a"}, subgraphs={"a": cell({"subgraph": "b"}), "b": broken})
    assert problems(data) == [("unknown_setting", "b", 1, None)]
    misfit = cell({"operation": {"name": "linear", "features": 3}})
    data = image_chain({"subgraph": "a"}, conv(4), {"subgraph": "a"}, subgraphs={"a": misfit})
    data["nodes"].append({"id": 9, "subgraph": "a"})
    data["edges"].append({"source": 0, "target": 9})
    (problem,) = ComputationGraph.from_dict(data).validate()
    assert problem.message == "subgraph a: node 1: linear: expected a vector or sequence, got image [4, 8, 8]"


def test_subgraph_that_fits_only_once():
    """The first repetition halves the image to 1x1 or less."""
    pool = {"operation": {"name": "max_pool2d", "kernel_size": 5, "stride": 2}}
    data = image_chain({"subgraph": "a", "repeat": 2}, subgraphs={"a": cell(pool)})
    assert problems(data) == [("repeat_mismatch", "", 1, None)]
    data["nodes"][1]["repeat"] = 1
    assert problems(data) == []


def test_shape_problem_is_reported_once():
    """Both branches depend on node 1; node 4 has a problem of its own."""
    data = image_chain(conv(4, kernel_size=2), conv(4), conv(4))
    data["nodes"].append({"id": 9, "operation": {"name": "linear", "features": 3}})
    data["edges"] += [{"source": 1, "target": 3}, {"source": 0, "target": 9}, {"source": 9, "target": 4}]
    assert problems(data) == [("shape_mismatch", "", 1, None), ("shape_mismatch", "", 9, None)]


@pytest.mark.parametrize(
    ("first", "second", "fields", "message"),
    [
        (
            [8, 16, 16],
            [8, 8, 8],
            {},
            "shape, with axes of size 1, or vectors over the channels, got image [8, 16, 16], image [8, 8, 8]; "
            '"align": "pool" averages positions',
        ),
        (
            [8, 16, 16],
            [4, 8, 8],
            {"align": "project"},
            "shape with align=project, got image [8, 16, 16], image [4, 8, 8]; "
            '"align": "auto" averages positions and learns a projection of the channels, "pad" fills them',
        ),
        (
            [8, 16, 16],
            [8],
            {"align": "never"},
            'shape with align=never, got image [8, 16, 16], vector [8]; "align": "pool" averages positions',
        ),
        (
            [12, 32],
            [4, 32],
            {"aggregation": "concat"},
            "layout and size of positions, got sequence [12, 32], sequence [4, 32]; "
            '"align": "pool" averages positions, "axis": "positions" appends them',
        ),
        (
            [12, 32],
            [12, 16],
            {"aggregation": "concat", "axis": "positions"},
            "size of every axis but positions, got sequence [12, 32], sequence [12, 16]; "
            '"align": "project" learns a projection of the channels, "pad" fills them with zeros, '
            '"axis": "channels" appends them',
        ),
        (
            [3, 8, 8],
            [3, 8, 6],
            {"aggregation": "concat", "axis": "height"},
            "size of every axis but height, got image [3, 8, 8], image [3, 8, 6]; "
            '"align": "pool" averages positions, "axis": "width" appends them',
        ),
        (
            [3, 8, 8],
            [3, 8, 6],
            {"aggregation": "concat", "axis": "depth"},
            "layout with depth for axis=depth, got image [3, 8, 8], image [3, 8, 6]",
        ),
        (
            [3, 4, 8, 8],
            [3, 4, 8],
            {},
            "shape, with axes of size 1, or vectors over the channels, got volume [3, 4, 8, 8], image [3, 4, 8]; "
            '"align": "pool" averages positions',
        ),
        (
            [8],
            [8],
            {"aggregation": "concat", "axis": "positions"},
            "layout with positions for axis=positions, got vector [8], vector [8]",
        ),
    ],
)
def test_merge_refusal_names_repair(first, second, fields, message):
    node = {"id": 2, "node_type": "output", **IDENTITY, **fields}
    edges = [{"source": 0, "target": 2}, {"source": 1, "target": 2}]
    data = {"nodes": [{"id": 0, "shape": first}, {"id": 1, "shape": second}, node], "edges": edges}
    (problem,) = ComputationGraph.from_dict(data).validate()
    assert (problem.code, problem.message) == ("shape_mismatch", f"node 2: expected inputs of one {message}")


def test_merge_refusal_of_equal_sizes_names_the_layout():
    """Two axes after an image are a signal unless the operation says otherwise."""
    heads = [{"name": "torch:unflatten", "dim": 2, "sizes": [2, 3]}, {"name": "torch:flatten", "start_dim": 2}]
    nodes = [{"id": 0, "shape": [5, 6]}, *({"id": 1 + place, "operation": each} for place, each in enumerate(heads))]
    data = {"nodes": [*nodes, {"id": 3, "node_type": "output", **IDENTITY}], "edges": []}
    data["edges"] = [{"source": source, "target": target} for source, target in ((0, 1), (1, 2), (2, 3), (0, 3))]
    (problem,) = ComputationGraph.from_dict(data).validate()
    assert 'got signal [5, 6], sequence [5, 6]; "layout", a setting of modules' in problem.message
    data["nodes"][2]["operation"]["layout"] = "sequence"
    assert ComputationGraph.from_dict(data).validate() == []


IDENTITY = {"operation": {"name": "identity"}}


def test_axis_needs_concat():
    data = image_chain({**IDENTITY, "axis": "positions"})
    (problem,) = ComputationGraph.from_dict(data).validate()
    message = "node 1: expected axis with aggregation concat, got 'sum'"
    assert (problem.code, problem.message) == ("invalid_axis", message)
    assert problems(image_chain({**IDENTITY, "aggregation": "concat", "axis": "time"})) == [
        ("invalid_axis", "", 1, None)
    ]


def test_align_of_node_without_operation():
    data = image_chain(
        {"operation": {"name": "global_pool"}}, {"node_type": "output", "output_size": 3, "align": "crop"}
    )
    assert problems(data) == [("invalid_align", "", 2, None)]
    data["nodes"][2]["align"] = "pool"
    assert problems(data) == []


def test_shared_subgraph_needs_equal_inputs():
    data = image_chain({"subgraph": "a", "share": True}, {**conv(5)}, {"subgraph": "a", "share": True})
    data["subgraphs"] = {"a": cell()}
    (problem,) = ComputationGraph.from_dict(data).validate()
    first = ComputationGraph.from_dict(data).nodes[0].attributes["shape"]
    message = (
        f"node 3: expected image {list(first)} at the port input of the shared subgraph 'a', as at node 1, "
        f"got image {[5, *first[1:]]}"
    )
    assert (problem.code, problem.message) == ("share_mismatch", message)
    data["nodes"][3]["share"] = False
    assert problems(data) == []


def test_tied_weights_are_not_scaled():
    data = {
        "nodes": [
            {"id": 0, "shape": [3]},
            {"id": 1, "operation": {"name": "linear", "features": 3}},
            {"id": 2, "node_type": "output", "operation": {"name": "tied_linear"}, "edge_weight": True},
        ],
        "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}, {"source": 1, "target": 2, "port": "weight"}],
    }
    assert problems(data) == []
    data["edges"][2]["weight"] = 7.0
    assert problems(data) == [("unused_weight", "", None, 2)]
    data["nodes"][1], data["edges"][2]["weight"] = {"id": 1, "node_type": "hidden", "output_size": 3}, 1.0
    (problem,) = ComputationGraph.from_dict(data).validate()
    assert "an operation with a weight at the port weight, got node 1" in problem.message


def test_translation_settings_of_subgraph_are_refused():
    data = image_chain({"subgraph": "a"}, subgraphs={"a": {**cell(), "graph": {"translation": {"dtype": "float64"}}}})
    assert problems(data) == [("invalid_translation_setting", "a", None, None)]


@pytest.mark.parametrize(("layout", "dtype"), [("vector", "token"), ("tokens", "float")])
def test_contradictory_layout_and_dtype_are_refused(layout, dtype):
    node = {"id": 1, "node_type": "output", "operation": {"name": "identity"}}
    data = {"nodes": [{"id": 0, "shape": [4], "layout": layout, "dtype": dtype}, node]}
    data["edges"] = [{"source": 0, "target": 1}]
    assert problems(data) == [("invalid_shape", "", 0, None)]


def test_port_weight_of_subgraph_is_refused():
    inner = cell()
    inner["nodes"][0]["port"] = "weight"
    data = image_chain({"subgraph": "a"}, subgraphs={"a": inner})
    data["edges"][0]["port"] = "weight"
    assert problems(data) == [("invalid_attribute", "a", 0, None)]


def test_size_limits():
    assert problems(image_chain(conv(2**19), conv(2**19))) == [("too_many_parameters", "", None, None)]
    wide = [{"subgraph": "a", "repeat": 9}]
    data = image_chain(*wide, subgraphs={"a": cell(conv(2**12))})
    assert problems(data) == [("too_many_parameters", "", None, None)]
    data = image_chain(conv(16), conv(16))
    data["nodes"][0]["shape"] = [1, 2**14, 2**14]
    assert problems(data) == [("tensor_too_large", "", 1, None)]


def test_repetitions_of_repetitions_are_limited():
    subgraphs = {f"s{level}": cell({"subgraph": f"s{level + 1}", "repeat": 1000}) for level in range(3)}
    data = image_chain({"subgraph": "s0"}, subgraphs={**subgraphs, "s3": cell()})
    assert problems(data) == [("too_many_nodes", "", None, None)]


def test_empty_operation_graph_problems():
    nodes = [{"id": 1, "operation": {"name": "identity"}}]
    assert [code for code, *_ in problems({"nodes": nodes})] == ["missing_input", "missing_output", "missing_port"]


def test_subgraph_on_a_recurrent_loop_that_does_not_fit_its_inputs() -> None:
    data = image_chain(conv(6), {"subgraph": "block"}, subgraphs={"block": cell(conv(3))})
    loop = {"source": 2, "target": 1, "attributes": {"is_recurrent": True}}
    data["edges"] += [{"source": 0, "target": 2}, loop]
    assert problems(data) == [("shape_mismatch", "", 2, None)]


def test_typed_graph_is_kept_until_the_graph_changes() -> None:
    graph = ComputationGraph.from_dict(image_chain(conv(6)))
    first = graph.typed()
    assert graph.typed() is first is not graph.typed("always")
    graph.add_node(9, "hidden", output_size=None, attributes=conv(3))
    assert [problem.node_id for problem in graph.typed().problems] == [9]
