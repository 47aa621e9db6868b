"""Reference for the Recurrent Hyper Network: loops over rows and tokens, with explicit adapted matrices W + B A."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def rms_norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return gain * x / torch.sqrt((x * x).mean() + epsilon)


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def adapted(weight: Tensor, heads: Mapping[str, Tensor], features: Tensor, norm: str) -> Tensor:
    """Return the matrix m (W + B A) / ||W + B A||, norms by row; with norm none (1 + delta) (W + B A)."""
    a, b, delta = (
        torch.stack([f * head for f, head in zip(features, heads[name], strict=True)]).sum(0)
        for name in ("a", "b", "delta")
    )
    rows = weight + b @ a
    if norm == "none":
        return rows * (1 + delta)[:, None]
    norms = torch.sqrt((rows * rows).sum(1))
    # The squared norm is at least a millionth of the norm of the plain row.
    plain_norms = torch.sqrt((weight * weight).sum(1))
    norms = torch.maximum(norms, plain_norms * 1e-3)
    return rows * (plain_norms * (1 + delta) / norms)[:, None]


def under(parameters: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the parameters with a name prefix, the prefix removed."""
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def cell(block: Mapping[str, Tensor], x: Tensor, previous: Tensor | None, epsilon: float, norm: str) -> Tensor:
    """Return X_{k:n} of one row from X_{k:n-1} and X_{k-1:n}, vectors."""
    weights = [block[f"ffn.plain.{name}_proj.weight"] for name in ("gate", "up", "down")]
    normed = rms_norm(x, block["norm.weight"], epsilon)
    beta = torch.zeros((), dtype=x.dtype)
    if previous is not None:
        squeezed = block["bhn.squeeze.weight"] @ rms_norm(previous, block["bhn.norm.weight"], epsilon)
        features = torch.cat([torch.ones(1, dtype=x.dtype), silu(squeezed + block["bhn.squeeze.bias"])])
        heads = [under(block, f"bhn.{name}.") for name in ("gate", "up", "down")]
        weights = [adapted(weight, head, features, norm) for weight, head in zip(weights, heads, strict=True)]
        beta = (features * block["bhn.beta"]).sum()
    gate, up, down = weights
    return x + down @ (silu(gate @ normed + beta) * (up @ normed))


def forward(
    parameters: Mapping[str, Tensor],
    tokens: Tensor,
    *,
    depth: int,
    epsilon: float,
    norm: str,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return logits [R, T, V] and last states [depth, R, H] of tokens [R, T], after `state` if given."""
    all_logits, all_states = [], []
    for row, sequence in enumerate(tokens.tolist()):
        before = [None if state is None else state[n, row] for n in range(depth)]
        logits = []
        for token in sequence:
            x = parameters["embedding"][token]
            for n in range(depth):
                x = cell(under(parameters, f"blocks.{n}."), x, before[n], epsilon, norm)
                before[n] = x
            logits.append(parameters["embedding"] @ rms_norm(x, parameters["norm.weight"], epsilon))
        all_logits.append(torch.stack(logits))
        all_states.append(torch.stack([last for last in before if last is not None]))
    return torch.stack(all_logits), torch.stack(all_states, 1)
