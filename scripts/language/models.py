"""What a found stack is compared with: a plain LSTM, a plain GRU and a transformer of as many parameters.

R is the number of rows, T of tokens, W the width.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.evaluation.language_training import UNIFORM_BITS
from gflownet.rhn.layers import RMSNorm, embedding_table
from gflownet.rhn.stack_config import StackConfig, StackLayer
from gflownet.rhn.stack_model import RecurrentStack, fit_parameters

NUM_TOKENS = 2 ** int(UNIFORM_BITS)
HEADS = 4
NUM_PLAIN_LAYERS = (1, 2)  # that a plain network may have
# No norm makes up for small embeddings: of 0.02, 0.1, 0.3 and 1 the best (LSTM 3.47, 2.87, 2.54, 2.61 bits per byte).
PLAIN_EMBEDDING_STD = 0.3
TRANSFORMER_DEPTH = 4
_EPSILON = 1e-6
_WIDEST = 512

Make = Callable[[], nn.Module]


class PlainRecurrent(nn.Module):
    """torch.nn.LSTM or GRU between an embedding and the unembedding that shares its weights; no residual, no norm."""

    def __init__(self, cell: type[nn.LSTM | nn.GRU], num_layers: int, width: int) -> None:
        """Start as torch does."""
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(NUM_TOKENS, width) * PLAIN_EMBEDDING_STD)
        self.cell = cell(width, width, num_layers=num_layers, batch_first=True)

    def forward(self, tokens: Tensor) -> tuple[Tensor]:
        """Return the logits [R, T, 256]."""
        return (F.linear(self.cell(F.embedding(tokens, self.embedding))[0], self.embedding),)


class Block(nn.Module):
    """Causal self-attention and a SwiGLU network, each on a normalised residual stream."""

    def __init__(self, width: int) -> None:
        """Start with outputs that a residual stream of this depth can add up."""
        super().__init__()
        self.norms = nn.ModuleList(RMSNorm(width, _EPSILON) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mixed = nn.Linear(width, width, bias=False)
        self.entry = nn.Linear(width, 4 * width, bias=False)
        self.exit = nn.Linear(2 * width, width, bias=False)
        for last in (self.mixed, self.exit):
            nn.init.normal_(last.weight, std=(last.in_features * 2 * TRANSFORMER_DEPTH) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [R, T, W] after both."""
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.mixed(mixed.transpose(1, 2).flatten(2))
        gate, up = self.entry(self.norms[1](x)).chunk(2, -1)
        return x + self.exit(F.silu(gate) * up)


class Transformer(nn.Module):
    """A decoder of `TRANSFORMER_DEPTH` blocks with learned positions (Vaswani et al. 2017)."""

    def __init__(self, sequence_length: int, width: int) -> None:
        """Start small and random."""
        super().__init__()
        self.embedding = embedding_table(NUM_TOKENS, width)
        self.positions = embedding_table(sequence_length, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(TRANSFORMER_DEPTH)))
        self.norm = RMSNorm(width, _EPSILON)

    def forward(self, tokens: Tensor) -> tuple[Tensor]:
        """Return the logits [R, T, 256]."""
        x = self.blocks(F.embedding(tokens, self.embedding) + self.positions[: tokens.shape[1]])
        return (F.linear(self.norm(x), self.embedding),)


def plain(cell: type[nn.LSTM | nn.GRU], num_layers: int, num_parameters: int) -> Make:
    """Return what makes a plain network of at least so many parameters."""
    return _wide_enough(partial(PlainRecurrent, cell, num_layers), range(1, _WIDEST), num_parameters)


def transformer(sequence_length: int, num_parameters: int) -> Make:
    """Return what makes a transformer of at least so many parameters."""
    return _wide_enough(partial(Transformer, sequence_length), range(HEADS, _WIDEST, HEADS), num_parameters)


def rhn(depth: int, num_parameters: int) -> Make:
    """Return what makes an RHN with nearly so many parameters, as a stack of layers that adapt everything."""
    return partial(RecurrentStack, fit_parameters(StackConfig((StackLayer(),) * depth), num_parameters))


def size_of(make: Make) -> int:
    """Return the number of parameters of what is made."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


def _wide_enough(make: Callable[[int], nn.Module], widths: range, num_parameters: int) -> Make:
    """Return what makes the narrowest network of at least so many parameters: none is compared with too few."""
    place = bisect_left(widths, num_parameters, key=lambda width: size_of(partial(make, width)))
    return partial(make, widths[place])
