"""Networks: initial values, training, input checks, sizes; mixed stacks compared with the oracle."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gflownet.errors import UserError
from gflownet.rhn.checkpoint import load_language_model, save_language_model
from gflownet.rhn.config import CONFIGS, Norm, RHNConfig, StackConfig, StackLayer
from gflownet.rhn.network import RHN, RecurrentNetwork, RecurrentStack, fit_parameters, num_parameters
from tests.oracles import recurrent_stack as oracle
from tests.rhn.random_networks import random_stack


@pytest.mark.parametrize("norm", ["dora", "none"])
def test_new_network_equals_plain_feed_forward_layers(norm: Norm) -> None:
    torch.manual_seed(0)
    network = RHN(replace(CONFIGS["small"], norm=norm)).double()
    tokens = torch.randint(256, (2, 9))
    x = network.embedding[tokens]
    for block in network.layers:
        x = x + block.ffn.plain(block.norm(x))
    expected = network.norm(x) @ network.embedding.mT
    torch.testing.assert_close(network(tokens)[0], expected, rtol=1e-12, atol=1e-12)


MIXED = (StackLayer(), StackLayer("repeat"), StackLayer("lstm"), StackLayer(projections=("down",)), StackLayer("gru"))
NETWORKS: dict[str, Callable[[], RecurrentNetwork]] = {
    "rhn": lambda: RHN(CONFIGS["tiny"]),
    "stack": lambda: RecurrentStack(StackConfig(MIXED, width=16)),
}
each_network = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS.keys())


@each_network
def test_every_parameter_of_a_new_network_learns(make: Callable[[], RecurrentNetwork]) -> None:
    torch.manual_seed(0)
    network = make()
    tokens = torch.randint(256, (2, 9))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(tokens)[0].flatten(0, 1), tokens.flatten()).backward()
        optimiser.step()
    still = [name for name, parameter in network.named_parameters() if torch.equal(parameter, before[name])]
    assert still == []


@each_network
def test_invalid_shapes_raise(make: Callable[[], RecurrentNetwork]) -> None:
    network = make()
    for shape in ((2, 0), (2,)):
        with pytest.raises(ValueError, match=r"tokens: expected \(rows, tokens\), at least one of each, got \(2,"):
            network(torch.zeros(shape, dtype=torch.long))
    depth, width = network.state_shape
    message = f"state: expected {(depth, 1, width)} as (layers, rows, width), got {(depth, 3, width)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        network(torch.zeros(1, 4, dtype=torch.long), torch.zeros(depth, 3, width))


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


@pytest.mark.parametrize(("name", "expected"), [("tiny", 66e3), ("medium", 2.2e6), ("100m", 100e6)])
def test_named_configs_have_their_number_of_parameters(name: str, expected: float) -> None:
    with torch.device("meta"):
        network = RHN(CONFIGS[name])
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(expected, rel=0.1)


SEEDS = range(12)


def case(seed: int) -> tuple[RecurrentStack, Tensor, Tensor | None]:
    """Return a stack, tokens for it and, every other time, a state to go on from."""
    model = random_stack(seed)
    config, generator = model.config, torch.Generator().manual_seed(seed)
    rows, length = 1 + seed % 3, 1 + seed % 7
    tokens = torch.randint(config.vocabulary_size, (rows, length), generator=generator)
    state = torch.randn(len(config.layers), rows, config.state_width, generator=generator, dtype=torch.float64)
    return model, tokens, state if seed % 2 else None


def answer(parts: tuple[Tensor, Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return logits, states that the layers use, and the gradients of a fixed sum of both."""
    logits, states = parts
    total = (logits * torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)).sum()
    total = total + (states * torch.linspace(1, 2, states.numel(), dtype=states.dtype).view_as(states)).sum()
    return [logits.detach(), states.detach(), *torch.autograd.grad(total, parameters, materialize_grads=True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_stack_logits_and_gradients_equal_oracle(seed: int) -> None:
    model, tokens, state = case(seed)
    parameters = dict(model.named_parameters())
    asked = list(parameters.values())
    got = answer(model(tokens, state), asked)
    wanted = answer(oracle.forward(parameters, model.config, tokens, state), asked)
    for name, one, other in zip(["logits", "states", *parameters], got, wanted, strict=True):
        size = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        tolerance = (1e-10 if name in ("logits", "states") else 1e-8) * size
        assert torch.allclose(one, other, rtol=0, atol=tolerance), name


@pytest.mark.parametrize("seed", SEEDS)
def test_decoder_steps_and_prefill_equal_forward(seed: int) -> None:
    model, tokens, state = case(seed)
    whole, last = model(tokens, state)
    decoder = model.decoder()
    assert decoder.state_shape == (last.shape[0], last.shape[2])
    assert (decoder.vocabulary_size, decoder.dtype) == (whole.shape[2], torch.float64)
    given = torch.full_like(last, 7.0) if state is None else state
    for token in range(tokens.shape[1]):
        starts = torch.ones(len(tokens), dtype=torch.bool) if token == 0 and state is None else None
        logits, given = decoder.step(tokens[:, token], given, starts)
        torch.testing.assert_close(logits, whole[:, token], rtol=0, atol=1e-10)
        prefilled, kept = decoder.prefill(tokens[:, : token + 1], state)
        torch.testing.assert_close(prefilled, logits, rtol=0, atol=1e-10)
        torch.testing.assert_close(kept, given, rtol=0, atol=1e-10)
        rest = tokens[:, token + 1 :]
        if rest.shape[1]:
            torch.testing.assert_close(model(rest, given)[0], whole[:, token + 1 :], rtol=0, atol=1e-10)
    torch.testing.assert_close(given, last, rtol=0, atol=1e-10)


def test_unadapted_projections_have_no_parameters_and_equal_neighbours_share_a_run() -> None:
    plain = StackLayer(projections=("up",), beta=False)
    layers = (StackLayer(), plain, StackLayer("repeat"), StackLayer("lstm"), StackLayer(rank=2), StackLayer(rank=3))
    model = RecurrentStack(StackConfig(layers, width=6))
    assert [(run.layers.start, run.layers.stop, len(run.blocks)) for run in model.runs()] == [
        (0, 3, 3),
        (3, 4, 0),
        (4, 5, 1),
        (5, 6, 1),
    ]
    names = {name for name, _ in model.named_parameters() if name.startswith("layers.1.bhn")}
    heads = {f"layers.1.bhn.up.{part}" for part in ("a", "b", "delta")}
    assert names == heads | {f"layers.1.bhn.{name}" for name in ("norm.weight", "squeeze.weight", "squeeze.bias")}
    assert not any(name.startswith("layers.2.") for name in model.state_dict())


def test_load_invalid_stack_raises_one_line(tmp_path: Path) -> None:
    config = StackConfig((StackLayer(),), width=4)
    save_language_model(tmp_path, RecurrentStack(config))
    described = {"kind": "recurrent_stack", "config": asdict(config)}
    for change in ({"cell": "rnn"}, {"projections": ["up", "gate"]}, {"rank": 0}, {"ratio": -1.0}, {"cell": "repeat"}):
        layers = [{**described["config"]["layers"][0], **change}]
        text = json.dumps({**described, "config": {**described["config"], "layers": layers}})
        (tmp_path / "model.json").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"model.json: config: .*expected .*got") as caught:
            load_language_model(tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ()}, "layers: expected at least one layer, .* got none"),
        ({"layers": (StackLayer("repeat"),)}, "layers: expected .* first one with a cell, got .repeat. first"),
        ({"width": 0}, "width: expected at least 1, got 0"),
        ({"epsilon": 0.0}, "epsilon: expected a number > 0, got 0.0"),
    ],
)
def test_invalid_stack_config_raises(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(StackConfig((StackLayer(),)), **change)


def test_fit_parameters_meets_the_budget() -> None:
    layers = (StackLayer(rank=2), StackLayer("repeat"), StackLayer("gru"))
    for budget in (20_000, 100_000, 300_000):
        fitted = fit_parameters(StackConfig(layers), budget)
        model = RecurrentStack(fitted)
        assert num_parameters(fitted) == sum(parameter.numel() for parameter in model.parameters())
        assert num_parameters(fitted) == pytest.approx(budget, rel=0.005)
    for budget, cells in ((100_000, ("gru",)), (300_000, ("lstm",) * 4)):
        fitted = fit_parameters(StackConfig(tuple(map(StackLayer, cells))), budget)
        sizes = [num_parameters(replace(fitted, width=width)) for width in range(fitted.width - 1, fitted.width + 2)]
        assert min(sizes, key=lambda size: abs(size - budget)) == sizes[1]
