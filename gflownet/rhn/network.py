"""The network from tokens to logits; how its layers are run over a sequence is an argument.

R is the number of rows (sequences of a batch), T of tokens, H the hidden size, V of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.layers import RHNBlock, RMSNorm, embedding_table
from gflownet.rhn.wavefront import Wavefront

if TYPE_CHECKING:
    from gflownet.rhn.decoding import RHNDecoder

# Runs blocks over embedded tokens [R, T, H] from the states [depth, R, H] of the token before, None where there is
# none; returns what the last block makes of all tokens [R, T, H], and the last token's states [depth, R, H].
Stack = Callable[[Sequence[RHNBlock], Tensor, Tensor | None], tuple[Tensor, Tensor]]

WAVEFRONT = Wavefront()


def layer_by_layer(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run one block after the other over the whole sequence, as seed 002 tells it; a `Stack`."""
    last_states = []
    for n, block in enumerate(blocks):
        x, last_state = block(x, None if state is None else state[n])
        last_states.append(last_state)
    return x, torch.stack(last_states)


def check_tokens(tokens: Tensor) -> None:
    """Raise ValueError unless tokens are (rows, tokens), at least one of each."""
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise ValueError(f"tokens: expected (rows, tokens), at least one of each, got {tuple(tokens.shape)}")


def check_state(state: Tensor | None, **sizes: int) -> None:
    """Raise ValueError, naming the sizes, if there is a state of another shape."""
    expected = tuple(sizes.values())
    if state is not None and tuple(state.shape) != expected:
        names = ", ".join(sizes).replace("_", " ")
        raise ValueError(f"state: expected {expected} as ({names}), got {tuple(state.shape)}")


class Embedding(nn.Module):
    """A vector per token."""

    def __init__(self, config: RHNConfig) -> None:
        """Start random."""
        super().__init__()
        self.weight = embedding_table(config.vocabulary_size, config.hidden_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors [..., H] of tokens [...]."""
        return F.embedding(tokens, self.weight)


class Unembedding(nn.Module):
    """A logit per token of the vocabulary; tied, it has no weight of its own, so that a checkpoint holds none twice."""

    def __init__(self, config: RHNConfig) -> None:
        """Start random."""
        super().__init__()
        self.weight = None if config.tied else embedding_table(config.vocabulary_size, config.hidden_size)

    def forward(self, x: Tensor, embedding: Embedding) -> Tensor:
        """Return the logits [..., V] of x [..., H]."""
        return F.linear(x, embedding.weight if self.weight is None else self.weight)


class RHN(nn.Module):
    """Recurrent Hyper Network."""

    def __init__(self, config: RHNConfig) -> None:
        """Start as a network of plain feed-forward layers, drawn from torch's random state."""
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(RHNBlock(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.hidden_size, config.epsilon)
        self.unembedding = Unembedding(config)

    @property
    def layers(self) -> list[RHNBlock]:
        """The blocks, first to last."""
        return cast(list[RHNBlock], list(self.blocks))

    def decoder(self) -> RHNDecoder:
        """Return what generates from the weights as they are now."""
        from gflownet.rhn.decoding import RHNDecoder  # which imports this module

        return RHNDecoder(self)

    def forward(
        self, tokens: Tensor, state: Tensor | None = None, *, stack: Stack = WAVEFRONT
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of the token after each, and the state to go on from.

        Args:
            tokens: [R, T], of the vocabulary.
            state: [depth, R, H] as an earlier call returned it; None at the beginning of the sequences.
            stack: how the layers are run; the numbers are the same.

        Returns:
            logits [R, T, V] and the states [depth, R, H] of the last tokens.

        Raises:
            ValueError: no token, or a state of another shape.
        """
        check_tokens(tokens)
        check_state(state, depth=self.config.depth, rows=len(tokens), hidden_size=self.config.hidden_size)
        x, last_states = stack(self.layers, self.embedding(tokens), state)
        return self.unembedding(self.norm(x), self.embedding), last_states
