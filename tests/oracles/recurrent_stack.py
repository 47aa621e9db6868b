"""Reference for stacks of RHN, GRU and LSTM layers: loops over rows, tokens and layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gflownet.rhn.config import PROJECTIONS, StackConfig, StackLayer
from tests.oracles import rhn


def forward(
    parameters: Mapping[str, Tensor], config: StackConfig, tokens: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return logits [R, T, V] and last states [L, R, S] of tokens [R, T], after `state` if given."""
    all_logits, all_states = [], []
    for row, sequence in enumerate(tokens.tolist()):
        carried: list[Tensor | None] = [None if state is None else state[n, row] for n in range(len(config.layers))]
        logits = []
        for token in sequence:
            x = parameters["embedding"][token]
            for n in range(len(config.layers)):
                owner = n
                while config.layers[owner].cell == "repeat":
                    owner -= 1
                weights = rhn.under(parameters, f"layers.{owner}.")
                x, carried[n] = _layer(config.layers[owner], weights, x, carried[n], config)
            logits.append(parameters["embedding"] @ rhn.rms_norm(x, parameters["norm.weight"], config.epsilon))
        all_logits.append(torch.stack(logits))
        all_states.append(torch.stack([last for last in carried if last is not None]))
    return torch.stack(all_logits), torch.stack(all_states, 1)


def _layer(
    layer: StackLayer, weights: Mapping[str, Tensor], x: Tensor, state: Tensor | None, config: StackConfig
) -> tuple[Tensor, Tensor]:
    """Return the output of a layer for x [W], and its state [S], padded with zeros."""
    width = config.width
    if layer.cell == "rhn":
        before = None if state is None else state[:width]
        out = rhn.cell(_with_zeros(layer, weights, config), x, before, config.epsilon, "dora")
        new_state = out
    else:
        normed = rhn.rms_norm(x, weights["norm.weight"], config.epsilon)
        state = x.new_zeros(config.state_width) if state is None else state
        units = layer.units or width
        if layer.cell == "gru":
            new_state = _gru(rhn.under(weights, "cell."), normed, state[:units])
        else:
            new_state = _lstm(rhn.under(weights, "cell."), normed, state[:units], state[units : 2 * units])
        out = new_state[:units] if units == width else weights["project.weight"] @ new_state[:units]
        if layer.residual:
            out = x + out
    return out, torch.cat([new_state, x.new_zeros(config.state_width - len(new_state))])


def _with_zeros(layer: StackLayer, weights: Mapping[str, Tensor], config: StackConfig) -> dict[str, Tensor]:
    """Return the weights of a block, with zero heads for projections that are not adapted."""
    zeros = weights["norm.weight"].new_zeros
    features, intermediate = config.bottleneck + 1, layer.intermediate_size(config.width)
    sizes = {"gate": (config.width, intermediate), "up": (config.width, intermediate)}
    sizes["down"] = (intermediate, config.width)
    full = dict(weights)
    for name in PROJECTIONS:
        size_in, size_out = sizes[name]
        if name not in layer.projections:
            full[f"bhn.{name}.a"] = zeros(features, layer.rank, size_in)
            full[f"bhn.{name}.b"] = zeros(features, size_out, layer.rank)
            full[f"bhn.{name}.delta"] = zeros(features, size_out)
    full.setdefault("bhn.beta", zeros(features))
    return full


def _gates(weights: Mapping[str, Tensor], x: Tensor, h: Tensor, num: int) -> list[tuple[Tensor, Tensor]]:
    """Return the contributions of x and h to each gate."""
    from_x = (weights["weight_ih_l0"] @ x + weights["bias_ih_l0"]).chunk(num)
    from_h = (weights["weight_hh_l0"] @ h + weights["bias_hh_l0"]).chunk(num)
    return list(zip(from_x, from_h, strict=True))


def _gru(weights: Mapping[str, Tensor], x: Tensor, h: Tensor) -> Tensor:
    """Return the next h (Cho et al. 2014, with the reset gate after the product)."""
    reset, update, new = _gates(weights, x, h, 3)
    z, r = torch.sigmoid(update[0] + update[1]), torch.sigmoid(reset[0] + reset[1])
    return (1 - z) * torch.tanh(new[0] + r * new[1]) + z * h


def _lstm(weights: Mapping[str, Tensor], x: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """Return the next h and c, concatenated (Hochreiter and Schmidhuber 1997, with a forget gate)."""
    entry, forget, cell, out = (a + b for a, b in _gates(weights, x, h, 4))
    c = torch.sigmoid(forget) * c + torch.sigmoid(entry) * torch.tanh(cell)
    return torch.cat([torch.sigmoid(out) * torch.tanh(c), c])
