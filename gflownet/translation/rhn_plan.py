"""What an rhn node has, and which of them are run together: chains in which one is all that the next one reads.

D is the node's width, I = 2 D that of its feed-forward network, J = bottleneck + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gflownet.rhn.config import RHNConfig

if TYPE_CHECKING:
    from gflownet.translation.plan import NodePlan

# One message through any of these is the message.
_ONE_IS_ALL = frozenset({"sum", "mean", "max", "min", "concat", "matrix_product"})


def rhn_config(size: int) -> RHNConfig:
    """Return the sizes of an rhn node of a width: the defaults of `RHNConfig`, a feed-forward network twice as wide."""
    return RHNConfig(hidden_size=size, intermediate_size=2 * size, depth=1)


def projections(config: RHNConfig) -> Iterator[tuple[str, int, int]]:
    """Yield name, width in and width out of the three projections."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    yield from (("gate", hidden, intermediate), ("up", hidden, intermediate), ("down", intermediate, hidden))


def rhn_matrix_multiply_adds(size: int) -> int:
    """Return the multiply-adds of matrix products of one step of one row."""
    config = rhn_config(size)
    width, rank = config.bottleneck + 1, config.rank
    total = size * config.bottleneck
    for _, size_in, size_out in projections(config):
        heads = width * (rank * (size_in + size_out) + size_out)
        norm = rank * size_in * size_out + rank * rank * (size_in + size_out)
        total += heads + norm + size_in * size_out + rank * (size_in + size_out)
    return total


def rhn_elementwise(size: int) -> int:
    """Return the elementwise operations of one step of one row, roughly: norms, gates and scales."""
    config = rhn_config(size)
    of_projections = sum((3 * config.rank + 6) * size_out for _, _, size_out in projections(config))
    return 8 * size + 3 * config.bottleneck + 4 * config.intermediate_size + of_projections


def chains(nodes: Sequence[NodePlan]) -> list[list[NodePlan]]:
    """Return the rhn nodes in chains, each node in one.

    A node goes on with a chain if its only message is the output of the chain's last node at the same time, which is as
    wide; where several could, the first does.
    """
    found: dict[int, list[NodePlan]] = {}  # by last node
    for node in nodes:
        if node.activation != "rhn":
            continue
        chain = found.pop(node.edges[0].source, []) if _is_link(node) else []
        if chain and chain[-1].output_size != node.output_size:
            found[chain[-1].node_id] = chain
            chain = []
        found[node.node_id] = [*chain, node]
    return list(found.values())


def _is_link(node: NodePlan) -> bool:
    """Return whether what the node reads is one message, no more than scaled and projected."""
    is_one = len(node.edges) == 1 and not node.edges[0].is_recurrent
    return is_one and node.aggregation in _ONE_IS_ALL and not node.has_post
