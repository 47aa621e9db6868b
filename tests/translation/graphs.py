"""Small graphs that several tests use, as node-link data."""

from typing import Any

Data = dict[str, Any]


def chain(*sizes: int, activation: str = "relu", multigraph: bool = False) -> Data:
    """Node 0 is the input, the last the output; hidden nodes in between take `activation`."""
    nodes: list[Data] = [{"id": 0, "node_type": "input", "output_size": sizes[0]}]
    for node_id, size in enumerate(sizes[1:-1], start=1):
        nodes.append({"id": node_id, "node_type": "hidden", "output_size": size, "activation_function": activation})
    nodes.append({"id": len(sizes) - 1, "node_type": "output", "output_size": sizes[-1]})
    edges = [{"source": i, "target": i + 1, "edge_id": i} for i in range(len(sizes) - 1)]
    return {"multigraph": multigraph, "nodes": nodes, "edges": edges}


def recurrent() -> Data:
    """An lstm with a recurrent edge back from the output, and a gru node."""
    data = chain(4, 5, 3, activation="lstm")
    data["nodes"].append(
        {
            "id": 7,
            "node_type": "hidden",
            "output_size": 2,
            "activation_function": "gru",
            "attributes": {"aggregation": "mean"},
        }
    )
    data["edges"] += [
        {"source": 2, "target": 1, "edge_id": 5, "attributes": {"is_recurrent": True}},
        {"source": 0, "target": 7, "edge_id": 6},
        {"source": 0, "target": 2, "edge_id": 7, "attributes": {"is_recurrent": True}},
        {"source": 7, "target": 2, "edge_id": 8},
    ]
    return data


def mixed() -> Data:
    """One node of every aggregation between two inputs and two outputs."""
    kinds = ("sum", "mean", "max", "min", "concat", "matrix_product", "attention", "multi_head_attention")
    kinds += ("attn_pool", "topk_weighted_sum", "moe", "gated_sum")
    activations = ("relu", "tanh", "sigmoid", "gelu", "elu", "leaky_relu", "softmax", "silu", "linear", "identity")
    extra: dict[str, Data] = {
        "multi_head_attention": {"num_heads": 2},
        "attn_pool": {"pool_heads": 2, "attn_eps": 0.1},
        "topk_weighted_sum": {"top_k": 1},
        "moe": {"router_type": "topk", "top_k": 1},
    }
    data: Data = {"multigraph": False, "edges": [], "nodes": []}
    data["nodes"] += [{"id": i, "node_type": "input", "output_size": 3} for i in (0, 1)]
    for position, kind in enumerate(kinds):
        node = {"id": 10 + position, "node_type": "hidden", "output_size": 3 + position % 2}
        node |= {"activation_function": activations[position % len(activations)]}
        data["nodes"].append({**node, "attributes": {"aggregation": kind, **extra.get(kind, {})}})
        for source in (0, 1, 9 + position)[: 2 + (position > 0)]:
            data["edges"].append({"source": source, "target": 10 + position, "edge_id": len(data["edges"])})
    for node_id in (50, 51):
        data["nodes"].append({"id": node_id, "node_type": "output", "output_size": 2})
        for source in (21, 18, 15):
            data["edges"].append({"source": source, "target": node_id, "edge_id": len(data["edges"])})
    return data
