"""Initialisation, training and input checks of the network; test_stacks.py compares its values with the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gflownet.rhn.config import CONFIGS, Norm, RHNConfig
from gflownet.rhn.network import RHN


@pytest.mark.parametrize("norm", ["dora", "none"])
def test_new_network_equals_plain_feed_forward_layers(norm: Norm) -> None:
    torch.manual_seed(0)
    network = RHN(replace(CONFIGS["small"], norm=norm)).double()
    tokens = torch.randint(256, (2, 9))
    x = network.embedding(tokens)
    for block in network.layers:
        x = x + block.ffn.plain(block.norm(x))
    expected = network.norm(x) @ network.embedding.weight.mT
    torch.testing.assert_close(network(tokens)[0], expected, rtol=1e-12, atol=1e-12)


def test_every_parameter_of_a_new_network_learns() -> None:
    torch.manual_seed(0)
    network = RHN(CONFIGS["tiny"])
    tokens = torch.randint(256, (2, 9))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(tokens)[0].flatten(0, 1), tokens.flatten()).backward()
        optimiser.step()
    still = [name for name, parameter in network.named_parameters() if torch.equal(parameter, before[name])]
    assert still == []


def test_training_is_stable_and_uses_the_previous_token() -> None:
    """The next token of a cycle depends on the last two: without recurrence the loss stays at log 2 / 2."""
    torch.manual_seed(0)
    network = RHN(RHNConfig(vocabulary_size=3, hidden_size=16, intermediate_size=32, depth=2))
    cycle = torch.tensor([0, 1, 0, 2]).repeat(4)
    tokens, targets = cycle[None, :-1], cycle[None, 1:]
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-2)
    for _ in range(40):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(tokens)[0].flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
        assert norm < 20
        optimiser.step()
    assert loss.item() < 0.1


def test_cancelled_row_stays_finite() -> None:
    """B A = -W up to rounding: the norm is kept from below, the gradient finite."""
    network = RHN(RHNConfig(hidden_size=8, intermediate_size=8, depth=1, rank=8))
    block = network.layers[0]
    with torch.no_grad():
        for head, projection in (
            (block.bhn.gate, block.ffn.plain.gate_proj),
            (block.bhn.down, block.ffn.plain.down_proj),
        ):
            head.a.zero_()[0] = torch.eye(8)
            head.b.zero_()[0] = -projection.weight
    logits = network(torch.arange(6)[None])[0]
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 0}, "depth: expected at least 1, got 0"),
        ({"rank": -1}, "rank: expected at least 1, got -1"),
        ({"epsilon": 0.0}, "epsilon: expected a number > 0, got 0.0"),
        ({"norm": "l2"}, "norm: expected one of dora, none, got 'l2'"),
    ],
)
def test_invalid_config_raises(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RHNConfig(**changes)  # pyright: ignore[reportArgumentType]


def test_invalid_shapes_raise() -> None:
    network = RHN(CONFIGS["tiny"])
    with pytest.raises(ValueError, match=r"tokens: expected \(rows, tokens\), at least one of each, got \(2, 0\)"):
        network(torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(ValueError, match=r"state: expected \(2, 1, 32\) .* got \(2, 3, 32\)"):
        network(torch.zeros(1, 4, dtype=torch.long), torch.zeros(2, 3, 32))


@pytest.mark.parametrize(("name", "expected"), [("tiny", 66e3), ("medium", 2.2e6), ("100m", 100e6)])
def test_named_configs_have_their_number_of_parameters(name: str, expected: float) -> None:
    with torch.device("meta"):
        network = RHN(CONFIGS[name])
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(expected, rel=0.1)
