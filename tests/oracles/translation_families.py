"""Seeded random graphs as node-link data, one family per difficult feature of the translator."""

from typing import Any

import numpy as np

ACTIVATIONS = (
    *("relu", "sigmoid", "tanh", "softmax", "leaky_relu", "elu", "gelu", "silu", "linear", "identity"),
    *("gelu_tanh", "relu6", "hard_sigmoid", "hard_swish"),
)
CELLS = ("lstm", "gru")
AGGREGATIONS = (
    *("sum", "mean", "max", "min", "concat", "matrix_product", "attention", "multi_head_attention"),
    *("attn_pool", "topk_weighted_sum", "moe", "gated_sum"),
)
FAMILIES = ("simple", "multigraph", "recurrent", "disabled", "unfed")
RHN_FAMILIES = ("rhn", "rhn_recurrent")  # most nodes with a cell are rhn nodes
Data = dict[str, Any]


def random_graph(family: str, seed: int) -> Data:
    """Return graph number `seed` of a family: 1-2 inputs, up to 6 hidden nodes, 1-2 outputs, shuffled ids."""
    rng = np.random.default_rng([(*FAMILIES, *RHN_FAMILIES).index(family), seed])
    num_inputs, num_hidden, num_outputs = rng.integers(1, 3), rng.integers(0, 7), rng.integers(1, 3)
    ids = [int(i) for i in rng.permutation(40)[: num_inputs + num_hidden + num_outputs]]
    nodes = [_random_node(rng, node_id, family) for node_id in ids]
    for position, node in enumerate(nodes):
        if position < num_inputs:
            nodes[position] = {"id": node["id"], "node_type": "input", "output_size": node["output_size"]}
        elif position >= num_inputs + num_hidden:
            node["node_type"] = "output"
    pairs = _random_pairs(rng, len(nodes), int(num_inputs), int(num_outputs), family)
    edges = _random_edges(rng, ids, pairs, family)
    if family == "unfed":
        _starve(rng, nodes, edges)
    rng.shuffle(nodes)  # type: ignore[arg-type]
    rng.shuffle(edges)  # type: ignore[arg-type]
    return {"directed": True, "multigraph": family == "multigraph", "graph": {}, "nodes": nodes, "edges": edges}


def _random_node(rng: np.random.Generator, node_id: int, family: str) -> Data:
    names = ACTIVATIONS if family == "simple" or rng.random() < 0.75 else CELLS
    if family in RHN_FAMILIES and rng.random() < 0.6:
        names = ("rhn",)
    return {
        "id": node_id,
        "node_type": "hidden",
        # Few widths, so that edges of equal width (scalars) and projected edges both occur.
        "output_size": int(rng.choice((1, 3, 3, 4, 5))),
        "activation_function": str(rng.choice(names)),
        "bias": float(rng.normal()),
        "attributes": _random_attributes(rng),
    }


def _random_attributes(rng: np.random.Generator) -> Data:
    """Return a random aggregation with a random half of its attributes; dropout is excluded because it is random."""
    aggregation = str(rng.choice(AGGREGATIONS))
    choices: Data = {"post_projection": bool(rng.random() < 0.3)}
    if aggregation in ("attention", "multi_head_attention", "attn_pool"):
        choices |= {"head_dim": int(rng.choice((2, 3, 4))), "temperature": 0.7, "attn_eps": 0.05}
    if aggregation == "multi_head_attention":
        choices["num_heads"] = int(rng.integers(1, 4))
    if aggregation == "attn_pool":
        choices["pool_heads"] = int(rng.integers(1, 4))
    if aggregation in ("topk_weighted_sum", "moe"):
        choices |= {"top_k": int(rng.integers(1, 5)), "normalize": bool(rng.random() < 0.5)}
    if aggregation == "topk_weighted_sum":
        choices["temperature"] = 0.6
    if aggregation == "moe":
        choices |= {"router_type": str(rng.choice(("softmax", "topk"))), "router_temperature": 1.7}
    if aggregation == "gated_sum":
        choices["normalize"] = bool(rng.random() < 0.5)
    attributes = {name: value for name, value in choices.items() if rng.random() < 0.5}
    if attributes.get("router_type", "softmax") == "softmax" and aggregation == "moe":
        attributes.pop("top_k", None)
    return {"aggregation": aggregation, **attributes}


def _random_pairs(
    rng: np.random.Generator, count: int, num_inputs: int, num_outputs: int, family: str
) -> list[tuple[int, int]]:
    """Return forward edges (source position < target position); every node except inputs has an in-edge."""
    pairs = []
    for target in range(num_inputs, count):
        candidates = [s for s in range(target) if s < count - num_outputs or rng.random() < 0.3]
        sources = rng.choice(candidates, size=min(len(candidates), int(rng.integers(1, 5))), replace=False)
        pairs += [(int(source), target) for source in sources]
        if family == "multigraph":
            pairs += [(int(source), target) for source in sources for _ in range(int(rng.integers(0, 3)))]
    return pairs


def _random_edges(rng: np.random.Generator, ids: list[int], pairs: list[tuple[int, int]], family: str) -> list[Data]:
    edge_ids = [int(i) for i in rng.permutation(200)[: 2 * len(pairs)]]
    edges = []
    for source, target in pairs:
        edge: Data = {"source": ids[source], "target": ids[target], "edge_id": edge_ids.pop()}
        edge["weight"] = float(rng.normal())
        if family == "disabled":
            edge["enabled"] = bool(rng.random() < 0.6)
        if family in ("recurrent", "multigraph", "rhn_recurrent") and rng.random() < 0.2:
            edge["attributes"] = {"is_recurrent": True}  # a forward edge may be marked as recurrent too
        edges.append(edge)
    if family in ("recurrent", "multigraph", "rhn_recurrent"):
        existing = {(edge["source"], edge["target"]) for edge in edges}
        fed = sorted({ids[target] for _, target in pairs})
        for _ in range(int(rng.integers(1, len(pairs) + 1))):
            pair = (int(rng.choice(fed)), int(rng.choice(fed)))
            if pair in existing and family != "multigraph":
                continue
            existing.add(pair)
            attributes = {"is_recurrent": True}
            edges.append({"source": pair[0], "target": pair[1], "edge_id": edge_ids.pop(), "attributes": attributes})
    return edges


def _starve(rng: np.random.Generator, nodes: list[Data], edges: list[Data]) -> None:
    """Remove or disable all in-edges of about 40 % of the hidden nodes."""
    for node in nodes:
        if node["node_type"] == "hidden" and rng.random() < 0.4:
            is_removed = bool(rng.random() < 0.5)
            for edge in [edge for edge in edges if edge["target"] == node["id"]]:
                edge["enabled"] = False
                if is_removed:
                    edges.remove(edge)
