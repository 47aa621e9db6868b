"""Reference for GraphActionCategorical: one softmax per graph, in Python floats."""

import math


def legal_logits(logits, masks, row_graphs, graph: int) -> dict[tuple[int, int, int], float]:
    """Return the logit of every legal (type, row, column) of one graph; rows count within the graph."""
    legal = {}
    for t, (values, mask, graphs) in enumerate(zip(logits, masks, row_graphs, strict=True)):
        rows = [r for r, g in enumerate(graphs.tolist()) if g == graph]
        for local, r in enumerate(rows):
            for c in range(mask.shape[1]):
                if bool(mask[r, c]):
                    legal[t, local, c] = float(values[r, c])
    return legal


def probabilities(legal: dict) -> dict[tuple[int, int, int], float]:
    """Return the softmax over the legal actions."""
    largest = max(legal.values())
    weights = {action: math.exp(value - largest) for action, value in legal.items()}
    total = math.fsum(weights.values())
    return {action: weight / total for action, weight in weights.items()}


def logsumexp(legal: dict) -> float:
    largest = max(legal.values())
    return largest + math.log(math.fsum(math.exp(value - largest) for value in legal.values()))


def entropy(legal: dict) -> float:
    """Return the entropy in nats."""
    return -math.fsum(p * math.log(p) for p in probabilities(legal).values() if p > 0)
