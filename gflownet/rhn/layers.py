"""Layers of recurrent language models: the RHN layer, defined token by token, and GRU and LSTM layers.

R is the number of rows (sequences of a batch), T of tokens, H the hidden size, I the intermediate size, r the rank and
J = bottleneck + 1 the number of features: a constant 1 and the bottleneck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gflownet.rhn.config import Norm, RHNConfig

# Lower bound of ||W_o + B_o A||^2 / ||W_o||^2: the rounding error of the expanded norm in float32.
MIN_SQUARED_NORM = 1e-6


def embedding_table(vocabulary_size: int, width: int) -> nn.Parameter:
    """Return random vectors [vocabulary, width] of about unit length.

    With shorter vectors the outputs of the layers dominate the residual stream: at a standard deviation of 0.02 a GRU
    layer of 97,000 parameters learns 0.09 bits per byte less in 300 steps.
    """
    return nn.Parameter(torch.randn(vocabulary_size, width) * width**-0.5)


class RMSNorm(nn.Module):
    """Root mean square layer normalisation (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., size] over its root mean square, times the gain."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class FFN(nn.Module):
    """Feed-forward network with a SwiGLU gate (Shazeer 2020, equation 6)."""

    def __init__(self, config: RHNConfig) -> None:
        super().__init__()
        hidden, intermediate = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        nn.init.normal_(self.gate_proj.weight, std=hidden**-0.5)
        nn.init.normal_(self.up_proj.weight, std=hidden**-0.5)
        nn.init.normal_(self.down_proj.weight, std=(intermediate * config.depth) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return down(silu(gate(x)) * up(x)); [R, H] both."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


@dataclass(frozen=True)
class Adapter:
    """Change of one projection (out, in), one for each row of a batch."""

    a: Tensor  # [R, r, in]
    b: Tensor  # [R, out, r]
    delta: Tensor  # [R, out]: output row o has magnitude ||W_o|| (1 + delta_o), without a norm the factor 1 + delta_o


@dataclass(frozen=True)
class Adapters:
    """Change of a feed-forward network, one for each row of a batch."""

    gate: Adapter
    up: Adapter
    down: Adapter
    beta: Tensor  # [R, 1], added to the gate before its activation


class AdapterHeads(nn.Module):
    """Compute the adapter of one projection; affine in the bottleneck."""

    def __init__(self, config: RHNConfig, size_in: int, size_out: int) -> None:
        """Start with b = 0 and delta = 0, which change nothing, and a random a, so that b can learn."""
        super().__init__()
        width = config.bottleneck + 1
        self.a = nn.Parameter(torch.randn(width, config.rank, size_in) * (width * size_in) ** -0.5)
        self.b = nn.Parameter(torch.zeros(width, size_out, config.rank))
        self.delta = nn.Parameter(torch.zeros(width, size_out))

    def forward(self, features: Tensor) -> Adapter:
        """Return the adapter for features [R, J]."""
        return Adapter(*(torch.einsum("bj,j...->b...", features, head) for head in (self.a, self.b, self.delta)))


class BHN(nn.Module):
    """Backward hyper network: the state of a token gives the adapters of the next token's feed-forward network."""

    def __init__(self, config: RHNConfig) -> None:
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
        """Return the adapters for a state [R, H]; where `has_previous` [R, 1] is 0, adapters of zero."""
        features = F.pad(F.silu(self.squeeze(self.norm(state))), (1, 0), value=1.0)
        if has_previous is not None:
            features = features * has_previous
        beta = (features * self.beta).sum(1, keepdim=True)
        return Adapters(self.gate(features), self.up(features), self.down(features), beta)


def lora(x: Tensor, layer: nn.Module, adapter: Adapter) -> Tensor:
    """Return y_o = (1 + delta_o) ((W + B A) x)_o: x [R, in] through a projection [out, in], y [R, out]."""
    low_rank = (adapter.b @ (adapter.a @ x.unsqueeze(-1))).squeeze(-1)
    return (1 + adapter.delta) * (layer(x) + low_rank)


def dora(x: Tensor, layer: nn.Module, adapter: Adapter) -> Tensor:
    """Return y [R, out] of x [R, in] through a projection (Liu et al. 2024, equation 5: weight-decomposed adaptation).

    y_o = m_o ((W + B A) x)_o / ||W_o + B_o A|| with m_o = ||W_o|| (1 + delta_o). The norm is expanded, so that no
    tensor of (R, out, in) is made: ||W_o + B_o A||^2 = ||W_o||^2 + sum_r B_or (2 (W A^T)_or + (B A A^T)_or).
    """
    a, b, weight = adapter.a, adapter.b, layer.weight
    weight = weight if isinstance(weight, Tensor) else weight().dequantize()  # a method of quantised layers
    squared = weight.square().sum(-1)
    cross = 2 * (a @ weight.mT).mT + b @ (a @ a.mT)
    relative = (1 + (b * cross).sum(2) / squared).clamp(min=MIN_SQUARED_NORM)
    return relative.rsqrt() * lora(x, layer, adapter)


ADAPTATIONS: dict[Norm, Callable[[Tensor, nn.Module, Adapter], Tensor]] = {"dora": dora, "none": lora}


class DoraFFN(nn.Module):
    """Feed-forward network whose projections are adapted row by row."""

    def __init__(self, config: RHNConfig) -> None:
        super().__init__()
        self.plain = FFN(config)
        self.norm: Norm = config.norm

    def forward(self, x: Tensor, adapters: Adapters) -> Tensor:
        """Return the adapted down(silu(gate(x) + beta) * up(x)); [R, H] both."""
        adapt = ADAPTATIONS[self.norm]
        gate = F.silu(adapt(x, self.plain.gate_proj, adapters.gate) + adapters.beta)
        up = adapt(x, self.plain.up_proj, adapters.up)
        return adapt(gate * up, self.plain.down_proj, adapters.down)


class RHNBlock(nn.Module):
    """One RHN layer: each token's feed-forward network is adapted by the layer's state of the token before.

    `step` defines the layer. `gflownet.rhn.wavefront` computes the same for whole sequences, with its gradient, and
    `gflownet.rhn.decoding` for generation, without one.
    """

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

    def forward(
        self, x: Tensor, state: Tensor | None = None, has_previous: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the states of all tokens [R, T, H] and of the last one [R, H] for x [R, T, H].

        `state` [R, H] belongs to the token before the first; None at the beginning of the sequences, `has_previous` as
        in `step`.
        """
        states = []
        for token in x.unbind(1):
            state, has_previous = self.step(token, state, has_previous), None
            states.append(state)
        return torch.stack(states, 1), states[-1]


class SequenceLayer(nn.Module):
    """Base of layers that map a sequence and a state to a sequence and a state, computed one layer at a time."""

    norm: RMSNorm  # of the input
    state_width: int  # S

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs [R, T, H] and the last state [R, S] for x [R, T, H].

        `state` [R, S] belongs to the token before the first; None, equal to zeros, at the beginning of the sequences.
        """
        raise NotImplementedError


class RecurrentLayer(SequenceLayer):
    """x + project(cell(RMSNorm(x))) with a GRU or LSTM of torch.

    Cells as wide as x have no projection; without `residual`, x is not added. The state of an LSTM is its output and
    its memory cell, concatenated.
    """

    def __init__(
        self, cell: str, width: int, epsilon: float, *, units: int | None = None, residual: bool = True
    ) -> None:
        super().__init__()
        self.units, self.residual = units or width, residual
        self.norm = RMSNorm(width, epsilon)
        self.cell = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](width, self.units, batch_first=True)
        self.project = nn.Identity() if self.units == width else nn.Linear(self.units, width, bias=False)
        self.state_width = self.units * (2 if cell == "lstm" else 1)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the outputs [R, T, H] and the last state [R, S], see `SequenceLayer`."""
        is_lstm, initial = self.state_width > self.units, None
        if state is not None:
            parts = tuple(part.contiguous().unsqueeze(0) for part in state.split(self.units, -1))
            initial = parts if is_lstm else parts[0]
        out, last = self.cell(self.norm(x), initial)
        out = self.project(out)
        return x + out if self.residual else out, torch.cat(last if is_lstm else (last,), -1).squeeze(0)


@dataclass(frozen=True)
class Run:
    """Consecutive layers of a network that are computed together: RHN layers of equal sizes, or one other layer."""

    layers: slice
    blocks: tuple[RHNBlock, ...] = ()
    other: SequenceLayer | None = None


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
