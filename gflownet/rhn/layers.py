"""The layers of a Recurrent Hyper Network, token by token as seed 002 tells it.

R is the number of rows (sequences of a batch), T of tokens, H the hidden size, I the intermediate size, r the rank and
J = bottleneck + 1 the width of what the heads of a BHN read: a constant 1 and the bottleneck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.rhn.config import Norm, RHNConfig

# Of the squared norm of an adapted row in units of the row's own: float32 knows the expanded form no better than this.
MIN_SQUARED_NORM = 1e-6


def embedding_table(vocabulary_size: int, width: int) -> nn.Parameter:
    """Return random vectors [vocabulary, width] of about unit length.

    A residual stream of embeddings that are small beside what layers add says little of the token itself: with a
    standard deviation of 0.02 a GRU layer of 97,000 parameters learns 0.09 bits per byte less in 300 steps.
    """
    return nn.Parameter(torch.randn(vocabulary_size, width) * width**-0.5)


class RMSNorm(nn.Module):
    """Root mean square layer normalisation (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, size: int, epsilon: float) -> None:
        """Start with gain 1."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return x over its root mean square, times the gain; [..., size] both."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class FFN(nn.Module):
    """Feed-forward network with a SwiGLU gate (Shazeer 2020, equation 6)."""

    def __init__(self, config: RHNConfig) -> None:
        """Start with outputs that a residual stream of this depth can add up."""
        super().__init__()
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        nn.init.normal_(self.gate_proj.weight, std=hidden**-0.5)
        nn.init.normal_(self.up_proj.weight, std=hidden**-0.5)
        nn.init.normal_(self.down_proj.weight, std=(intermediate * config.depth) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projection of the gated x; [R, H] both."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


@dataclass(frozen=True)
class Adapter:
    """How the rows of a batch change one projection of (out, in)."""

    a: Tensor  # [R, r, in]
    b: Tensor  # [R, out, r]
    delta: Tensor  # [R, out], of the magnitude ||W_o|| (1 + delta_o) of output row o, or without a norm its factor


@dataclass(frozen=True)
class Adapters:
    """How the rows of a batch change a feed-forward network."""

    gate: Adapter
    up: Adapter
    down: Adapter
    beta: Tensor  # [R, 1], added to the gate before its activation


class AdapterHeads(nn.Module):
    """Writes the adapter of one projection; affine in the bottleneck."""

    def __init__(self, config: RHNConfig, size_in: int, size_out: int) -> None:
        """Start with b = 0 and delta = 0, which leaves the projection as it is, and a random, so that b can learn."""
        super().__init__()
        width = config.bottleneck + 1
        self.a = nn.Parameter(torch.randn(width, config.rank, size_in) * (width * size_in) ** -0.5)
        self.b = nn.Parameter(torch.zeros(width, size_out, config.rank))
        self.delta = nn.Parameter(torch.zeros(width, size_out))

    def forward(self, features: Tensor) -> Adapter:
        """Return the adapter that features [R, J] write."""
        return Adapter(*(torch.einsum("bj,j...->b...", features, head) for head in (self.a, self.b, self.delta)))


class BHN(nn.Module):
    """Backward hyper network: the state of a token writes the adapters of the next token's feed-forward network."""

    def __init__(self, config: RHNConfig) -> None:
        """Start with adapters that change nothing."""
        super().__init__()
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.norm = RMSNorm(hidden, config.epsilon)
        self.squeeze = nn.Linear(hidden, config.bottleneck)
        nn.init.normal_(self.squeeze.weight, std=hidden**-0.5)
        nn.init.zeros_(self.squeeze.bias)
        self.gate = AdapterHeads(config, hidden, intermediate)
        self.up = AdapterHeads(config, hidden, intermediate)
        self.down = AdapterHeads(config, intermediate, hidden)
        self.beta = nn.Parameter(torch.zeros(config.bottleneck + 1))

    def forward(self, state: Tensor, has_previous: Tensor | None = None) -> Adapters:
        """Return the adapters that a state [R, H] writes; where `has_previous` [R, 1] is 0, adapters of zero."""
        features = F.pad(F.silu(self.squeeze(self.norm(state))), (1, 0), value=1.0)
        if has_previous is not None:
            features = features * has_previous
        beta = (features @ self.beta).unsqueeze(-1)
        return Adapters(self.gate(features), self.up(features), self.down(features), beta)


def lora(x: Tensor, weight: Tensor, adapter: Adapter) -> Tensor:
    """Return y_o = (1 + delta_o) ((W + B A) x)_o: x [R, in] through a projection [out, in], y [R, out]."""
    low_rank = (adapter.b @ (adapter.a @ x.unsqueeze(-1))).squeeze(-1)
    return (1 + adapter.delta) * (x @ weight.mT + low_rank)


def dora(x: Tensor, weight: Tensor, adapter: Adapter) -> Tensor:
    """Return x through a projection under weight-decomposed low-rank adaptation (Liu et al. 2024, equation 5).

    y_o = m_o ((W + B A) x)_o / ||W_o + B_o A|| with m_o = ||W_o|| (1 + delta_o). The norm is expanded, so that no
    tensor of (R, out, in) is made: ||W_o + B_o A||^2 = ||W_o||^2 + sum_r B_or (2 (W A^T)_or + (B A A^T)_or).

    Args:
        x: [R, in].
        weight: [out, in].
        adapter: one for each of the R rows.

    Returns:
        y [R, out].
    """
    a, b = adapter.a, adapter.b
    squared = weight.square().sum(-1)
    cross = 2 * (a @ weight.mT).mT + b @ (a @ a.mT)
    relative = (1 + (b * cross).sum(-1) / squared).clamp(min=MIN_SQUARED_NORM)
    return relative.rsqrt() * lora(x, weight, adapter)


# By the norm of a configuration.
ADAPTATIONS: dict[Norm, Callable[[Tensor, Tensor, Adapter], Tensor]] = {"dora": dora, "none": lora}


class DoraFFN(nn.Module):
    """A feed-forward network whose projections are adapted row by row."""

    def __init__(self, config: RHNConfig) -> None:
        """Wrap a plain one."""
        super().__init__()
        self.plain = FFN(config)
        self.norm: Norm = config.norm

    def forward(self, x: Tensor, adapters: Adapters) -> Tensor:
        """Return the adapted projection of the gated x; [R, H] both."""
        adapt = ADAPTATIONS[self.norm]
        gate = F.silu(adapt(x, self.plain.gate_proj.weight, adapters.gate) + adapters.beta)
        up = adapt(x, self.plain.up_proj.weight, adapters.up)
        return adapt(gate * up, self.plain.down_proj.weight, adapters.down)


class RHNBlock(nn.Module):
    """One layer: token after token, each adapted by the state of the one before."""

    def __init__(self, config: RHNConfig) -> None:
        """Start as a residual plain feed-forward network."""
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.epsilon)
        self.bhn = BHN(config)
        self.ffn = DoraFFN(config)

    def step(self, x: Tensor, state: Tensor | None, has_previous: Tensor | None = None) -> Tensor:
        """Return the layer's state of a token.

        Args:
            x: [R, H], the input of the layer, X_{k:n-1}.
            state: [R, H], the layer's state of the token before, X_{k-1:n}; None before the first token.
            has_previous: [R, 1], 0 for rows whose token is the first, else 1; None if all rows have a state.

        Returns:
            X_{k:n}, [R, H].
        """
        normed = self.norm(x)
        return x + (self.ffn.plain(normed) if state is None else self.ffn(normed, self.bhn(state, has_previous)))

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what the layer makes of a sequence, and its last state to go on from.

        Args:
            x: [R, T, H].
            state: [R, H] of the token before the first; None where there is none.

        Returns:
            states of all tokens [R, T, H] and of the last one [R, H].
        """
        states = []
        for token in x.unbind(1):
            state = self.step(token, state)
            states.append(state)
        return torch.stack(states, 1), states[-1]
