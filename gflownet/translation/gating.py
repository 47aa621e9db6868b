"""Multiplicative aggregations of recurrent cells, used by their names module:Class.

B is the batch, J the number of in-edges, d the width of a message.
"""

from __future__ import annotations

from torch import Tensor

from gflownet.operations.vocabulary import Aggregation


class Product(Aggregation):
    """prod_j X_j, elementwise."""

    @staticmethod
    def forward(messages: Tensor) -> Tensor:
        """Return [B, d] for messages [B, J, d]."""
        product, *factors = messages.unbind(1)
        for other in factors:  # not Tensor.prod, whose gradient at a zero is slow
            product = product * other
        return product


class Blend(Aggregation):
    """s X_2 + (1 - s) (X_3 + ... + X_J) with s = sigmoid(X_1); X_1 alone for J = 1.

    The elementwise blend of NAS-Bench-NLP (Klyuchnikov et al. 2020), with its gate inside: the update of a GRU.
    """

    is_order_sensitive = True

    @staticmethod
    def forward(messages: Tensor) -> Tensor:
        """Return [B, d] for messages [B, J, d]."""
        gate, *values = messages.unbind(1)
        if not values:
            return gate
        share = gate.sigmoid()
        blended = share * values[0]
        for value in values[1:]:
            blended = blended + (1 - share) * value
        return blended
