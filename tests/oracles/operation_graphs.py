"""Random operation graphs as node-link data, other ways to write them, and isomorphism by networkx."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from random import Random
from typing import Any

import networkx as nx
from networkx.algorithms.isomorphism import DiGraphMatcher

Data = dict[str, Any]

CONV_DEFAULTS = {"kernel_size": 3, "stride": 1, "dilation": 1, "groups": 1, "padding": "same", "bias": True}
OPERATIONS = {"conv2d": CONV_DEFAULTS, "identity": {}, "head": {"bias": True}}
NODE_DEFAULTS = {"aggregation": "sum", "align": "auto", "edge_weight": False, "repeat": 1, "share": False}
CELLS = {
    "narrow": {
        "nodes": [
            {"id": 0, "node_type": "input"},
            {"id": 1, "operation": {"name": "conv2d", "features": 4}},
            {"id": 2, "operation": {"name": "conv2d", "features": 4}},
            {"id": 3, "node_type": "output", "operation": {"name": "identity"}},
        ],
        "edges": [{"source": s, "target": t} for s, t in ((0, 1), (0, 2), (1, 3), (2, 3))],
    },
    "outer": {
        "nodes": [
            {"id": 0, "node_type": "input"},
            {"id": 1, "subgraph": "narrow"},
            {"id": 2, "node_type": "output", "operation": {"name": "identity"}},
        ],
        "edges": [{"source": 0, "target": 1}, {"source": 1, "target": 2}],
    },
}


def random_data(rng: Random, *, num_hidden: int = 4) -> Data:
    """Return a valid operation graph on images; few kinds of nodes, so that symmetries and equal graphs occur."""
    choices: list[Data] = [
        {"operation": {"name": "conv2d", "features": 4}},
        {"operation": {"name": "conv2d", "features": 4, "kernel_size": 1}},
        {"operation": {"name": "identity"}, "activation_function": "relu"},
        {"operation": {"name": "identity"}, "aggregation": "concat"},
        {"subgraph": "narrow", "repeat": rng.choice([1, 2])},
        {"subgraph": "outer"},
    ]
    nodes: list[Data] = [{"id": 0, "shape": [4, 8, 8]}]
    aligned = {"align": "auto"}
    nodes += [{"id": place, **aligned, **copy.deepcopy(rng.choice(choices))} for place in range(1, num_hidden + 1)]
    last = num_hidden + 1
    nodes.append({"id": last, "node_type": "output", **aligned, "operation": {"name": "head", "features": 3}})
    pairs = {(rng.randrange(target), target) for target in range(1, last + 1)}
    pairs |= {(source, last) for source in range(1, last) if not any(pair[0] == source for pair in pairs)}
    pairs |= {tuple(sorted(rng.sample(range(last + 1), 2))) for _ in range(rng.randrange(3))}
    edges = [{"source": source, "target": target} for source, target in rng.sample(sorted(pairs), len(pairs))]
    return {"nodes": nodes, "edges": edges, "subgraphs": copy.deepcopy(CELLS)}


def rewritten(data: Data, rng: Random, *, is_subgraph: bool = False) -> Data:
    """Return the same graph written otherwise.

    Other hidden ids, other names of subgraphs, defaults written out, keys in another order, an unused subgraph.
    """
    hidden = [node["id"] for node in data["nodes"] if node.get("node_type") is None and "shape" not in node]
    new_id = {node["id"]: node["id"] for node in data["nodes"]}
    new_id |= dict(zip(hidden, rng.sample(range(100, 200), len(hidden)), strict=True))
    nodes = [_rewritten_node({**node, "id": new_id[node["id"]]}, rng) for node in data["nodes"]]
    edges = []
    for edge_id, edge in enumerate(data["edges"]):
        entry = {"source": new_id[edge["source"]], "target": new_id[edge["target"]], "edge_id": 10 * edge_id}
        edges.append(entry | ({"port": "input"} if rng.random() < 0.5 else {}))
    result: Data = {"nodes": rng.sample(nodes, len(nodes)), "edges": rng.sample(edges, len(edges))}
    if not is_subgraph:
        subgraphs = {f"{name} renamed": rewritten(each, rng, is_subgraph=True) for name, each in CELLS.items()}
        unused = {"nodes": [{"id": 5, "node_type": "output"}]}
        result["subgraphs"] = {"unused": unused, **dict(reversed(subgraphs.items()))}
    return result


def _rewritten_node(node: Data, rng: Random) -> Data:
    node = copy.deepcopy(node)
    if "operation" in node:
        defaults = {key: value for key, value in OPERATIONS[node["operation"]["name"]].items() if rng.random() < 0.5}
        node["operation"] = dict(reversed({**defaults, **node["operation"]}.items()))
    if "subgraph" in node:
        node["subgraph"] += " renamed"
    if "shape" in node:
        node |= {"layout": "image", "dtype": "float"}
    elif node.get("node_type") != "input":
        names = ["aggregation", "align", "edge_weight", *(["repeat", "share"] if "subgraph" in node else [])]
        node = {**{name: NODE_DEFAULTS[name] for name in names if rng.random() < 0.5}, **node}
    return node


def labelled(data: Data, subgraphs: Mapping[str, Data]) -> nx.DiGraph:
    """Return a networkx graph whose labels hold everything that counts; `subgraphs` are those in scope."""
    graph = nx.DiGraph()
    for node in data["nodes"]:
        label = {**NODE_DEFAULTS, **node}
        node_id = label.pop("id")
        label["fixed"] = node_id if "shape" in node or "node_type" in node else None
        if "operation" in node:
            label["operation"] = {**OPERATIONS[node["operation"]["name"]], **node["operation"]}
        inner = labelled(subgraphs[label.pop("subgraph")], subgraphs) if "subgraph" in node else None
        graph.add_node(node["id"], label=label, inner=inner)
    for edge in data["edges"]:
        target = edge["target"]
        is_ordered = graph.nodes[target]["label"]["aggregation"] == "concat"
        graph.add_edge(edge["source"], target, rank=graph.in_degree(target) if is_ordered else 0)
    return graph


def matcher(first: nx.DiGraph, second: nx.DiGraph) -> DiGraphMatcher:
    """Return networkx's matcher of two labelled graphs; subgraphs are compared by isomorphism."""

    def same_node(one: Data, other: Data) -> bool:
        if one["label"] != other["label"] or (one["inner"] is None) != (other["inner"] is None):
            return False
        return one["inner"] is None or matcher(one["inner"], other["inner"]).is_isomorphic()

    return DiGraphMatcher(first, second, node_match=same_node, edge_match=lambda one, other: one == other)


def are_isomorphic(first: Data, second: Data) -> bool:
    """Return whether two graphs of `random_data` are equal up to hidden ids and the names of subgraphs."""
    graphs = [labelled(data, data["subgraphs"]) for data in (first, second)]
    return matcher(graphs[0], graphs[1]).is_isomorphic()


def count_automorphisms(data: Data) -> int:
    """Return the number of isomorphisms of a graph onto itself, by enumeration; insides of subgraphs do not count."""
    graph = labelled(data, data["subgraphs"])
    return sum(1 for _ in matcher(graph, graph).isomorphisms_iter())
