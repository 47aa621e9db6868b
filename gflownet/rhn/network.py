"""Language models of recurrent layers, the Recurrent Hyper Network, and training on long sequences.

R is the number of rows (sequences of a batch), T of tokens, H the hidden size, V of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.rhn.config import RHNConfig
from gflownet.rhn.decoding import RHNDecoder
from gflownet.rhn.layers import RHNBlock, RMSNorm, Run, check_state, check_tokens, embedding_table
from gflownet.rhn.wavefront import along_wavefront

# Runs blocks over embedded tokens [R, T, H] from the states [depth, R, H] of the token before, None at the beginning of
# the sequences; returns the outputs [R, T, H] of the last block, and the last token's states [depth, R, H].
Stack = Callable[[Sequence[RHNBlock], Tensor, Tensor | None], tuple[Tensor, Tensor]]


def layer_by_layer(blocks: Sequence[RHNBlock], x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run one block after the other, token by token, under torch.autograd; a `Stack`."""
    last_states = []
    for n, block in enumerate(blocks):
        x, last_state = block(x, None if state is None else state[n])
        last_states.append(last_state)
    return x, torch.stack(last_states)


class RecurrentNetwork(nn.Module):
    """Base of language models of recurrent layers.

    Subclasses provide the attributes, `runs` and `tables`.
    """

    config: Any
    norm: RMSNorm  # of the outputs of the last layer
    state_shape: tuple[int, int]  # (layers, width) of the state of one sequence

    def runs(self) -> Iterable[Run]:
        """Return the layers in the groups that are computed together, first to last."""
        raise NotImplementedError

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the weights of embedding and unembedding, [V, H] both."""
        raise NotImplementedError

    def decoder(self) -> RHNDecoder:
        """Return a `LanguageModel` with the present weights."""
        return RHNDecoder(self)

    def forward(
        self, tokens: Tensor, state: Tensor | None = None, *, stack: Stack = along_wavefront
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of the token after each, and the state to continue from.

        Args:
            tokens: [R, T], of the vocabulary.
            state: [layers, R, width] returned by an earlier call; None at the beginning of the sequences.
            stack: the algorithm that runs RHN layers; the result does not depend on it.

        Returns:
            logits [R, T, V] and the states [layers, R, width] of the last tokens.

        Raises:
            ValueError: no token, or a state of another shape.
        """
        check_tokens(tokens)
        layers, width = self.state_shape
        check_state(state, layers=layers, rows=len(tokens), width=width)
        embedding, unembedding = self.tables()
        x, last_states = F.embedding(tokens, embedding), []
        for run in self.runs():
            before = None if state is None else state[run.layers]
            if run.other is None:
                x, last = stack(run.blocks, x, None if before is None else before[..., : x.shape[-1]])
            else:
                x, last = run.other(x, None if before is None else before[0, :, : run.other.state_width])
                last = last.unsqueeze(0)
            last_states.append(F.pad(last, (0, width - last.shape[-1])))
        return F.linear(self.norm(x), unembedding), torch.cat(last_states)


class RHN(RecurrentNetwork):
    """Recurrent Hyper Network."""

    def __init__(self, config: RHNConfig) -> None:
        """Initialise from torch's global random state, with adapters that change nothing."""
        super().__init__()
        self.config = config
        self.state_shape = config.depth, config.hidden_size
        size = config.vocabulary_size, config.hidden_size
        self.embedding = nn.Embedding(*size, _weight=embedding_table(*size))
        self.blocks = nn.ModuleList(RHNBlock(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.hidden_size, config.epsilon)
        # Tied, there is no second table, so that a checkpoint holds the embedding once.
        self.unembedding = None if config.tied else nn.Embedding(*size, _weight=embedding_table(*size))

    @property
    def layers(self) -> list[RHNBlock]:
        """The blocks, first to last."""
        return cast(list[RHNBlock], list(self.blocks))

    def runs(self) -> list[Run]:
        """Return all layers as one run."""
        return [Run(slice(0, self.config.depth), tuple(self.layers))]

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return the weights of embedding and unembedding, [V, H] both."""
        return self.embedding.weight, (self.unembedding or self.embedding).weight


def backward_in_chunks(
    network: RHN,
    tokens: Tensor,
    targets: Tensor,
    *,
    chunk: int,
    state: Tensor | None = None,
    stack: Stack = along_wavefront,
) -> tuple[Tensor, Tensor]:
    """Add the gradient of the mean cross-entropy to the parameters' `grad`, with the memory of one chunk.

    Truncated backpropagation through time (Williams and Peng 1990): the state passes from chunk to chunk, the gradient
    does not. With one chunk the gradient is exact.

    Args:
        network: to differentiate.
        tokens: [R, T].
        targets: [R, T], the token after each.
        chunk: number of tokens of one backward pass.
        state: [depth, R, H] of the tokens before; None at the beginning.
        stack: the algorithm that runs the layers.

    Returns:
        the loss, in nats per token, and the state [depth, R, H] to continue from, both detached.

    Raises:
        ValueError: targets of another shape than tokens, or a chunk without a token.
    """
    if targets.shape != tokens.shape:
        raise ValueError(f"targets: expected the shape {tuple(tokens.shape)} of tokens, got {tuple(targets.shape)}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 token, got {chunk}")
    total = torch.zeros((), dtype=network.embedding.weight.dtype, device=tokens.device)
    for inputs, labels in zip(tokens.split(chunk, 1), targets.split(chunk, 1), strict=True):
        logits, last = network(inputs, state, stack=stack)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / tokens.numel()
        loss.backward()
        total, state = total + loss.detach(), last.detach()
    assert state is not None
    return total, state
