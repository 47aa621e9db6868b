"""Seeded random networks and stacks in float64 with non-zero adapters, and comparisons with the oracle."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from gflownet.rhn.config import CELLS, GATED_CELLS, PROJECTIONS, REPEAT, RHNConfig, StackConfig, StackLayer
from gflownet.rhn.network import RHN, RecurrentStack, Stack
from tests.oracles import rhn as oracle

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Case:
    """A network, its input, and weights for a scalar loss."""

    network: RHN
    tokens: Tensor  # [R, T]
    state: Tensor | None  # [depth, R, H]
    logit_weights: Tensor  # [R, T, V], of the sum whose gradient is compared
    state_weights: Tensor  # [depth, R, H]


def random_network(config: RHNConfig, seed: int) -> RHN:
    """Return a network in float64 with large adapters."""
    return scattered(RHN(config), seed)


def scattered(network: Network, seed: int) -> Network:
    """Return a language model in float64 with random parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.double().named_parameters():
            std = 1.0 if name == "embedding" else 0.4 * max(parameter.shape[-1], 1) ** -0.5
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * std
            parameter.copy_(noise + (1 if name.endswith("norm.weight") else 0))
    return network


def random_case(seed: int) -> Case:
    """Return a case of random sizes; every other one continues from a state."""
    chance = random.Random(seed)
    config = RHNConfig(
        vocabulary_size=chance.randint(1, 7),
        hidden_size=chance.randint(1, 6),
        intermediate_size=chance.randint(1, 7),
        depth=chance.randint(1, 6),
        rank=chance.randint(1, 4),
        bottleneck=chance.randint(1, 4),
        epsilon=chance.choice([1e-6, 1e-2]),
        norm="dora" if seed % 3 else "none",
    )
    rows, length = chance.randint(1, 3), chance.randint(1, 8)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    states = (config.depth, rows, config.hidden_size)
    return Case(
        random_network(config, seed),
        torch.randint(config.vocabulary_size, (rows, length), generator=generator),
        normal(*states) if seed % 2 else None,
        normal(rows, length, config.vocabulary_size),
        normal(*states),
    )


@dataclass(frozen=True)
class Answer:
    """Outputs of a network, and the gradients of a weighted sum of them."""

    logits: Tensor  # [R, T, V]
    states: Tensor  # [depth, R, H]
    gradients: dict[str, Tensor]  # by parameter, and "state" for the initial state


def _answer(
    case: Case, parameters: Mapping[str, Tensor], logits: Tensor, states: Tensor, state: Tensor | None
) -> Answer:
    total = (logits * case.logit_weights).sum() + (states * case.state_weights).sum()
    asked = dict(parameters) if state is None else {**parameters, "state": state}
    gradients = torch.autograd.grad(total, list(asked.values()), materialize_grads=True)
    return Answer(logits.detach(), states.detach(), dict(zip(asked, gradients, strict=True)))


def answer_of(case: Case, stack: Stack) -> Answer:
    state = None if case.state is None else case.state.clone().requires_grad_()
    logits, states = case.network(case.tokens, state, stack=stack)
    return _answer(case, dict(case.network.named_parameters()), logits, states, state)


def oracle_answer(case: Case) -> Answer:
    state = None if case.state is None else case.state.clone().requires_grad_()
    parameters = dict(case.network.named_parameters())
    config = case.network.config
    logits, states = oracle.forward(
        parameters, case.tokens, depth=config.depth, epsilon=config.epsilon, state=state, norm=config.norm
    )
    return _answer(case, parameters, logits, states, state)


def assert_equal(answer: Answer, expected: Answer) -> None:
    """Compare numbers to 1e-10 and gradients to 1e-8, of the size of the largest where that is above 1."""
    for got, wanted in ((answer.logits, expected.logits), (answer.states, expected.states)):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10 * max(1.0, wanted.abs().max().item()))
    largest = max(1.0, *(gradient.abs().max().item() for gradient in expected.gradients.values()))
    for name, wanted in expected.gradients.items():
        torch.testing.assert_close(
            answer.gradients[name],
            wanted,
            rtol=1e-8,
            atol=1e-8 * largest,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def random_layer(chance: random.Random, *, may_repeat: bool) -> StackLayer:
    cell = chance.choice((*CELLS, "rhn", REPEAT) if may_repeat else CELLS)
    is_gated = cell in GATED_CELLS
    return StackLayer(
        cell=cell,
        rank=chance.randint(1, 2),
        projections=tuple(name for name in PROJECTIONS if chance.random() < 0.6),
        beta=chance.random() < 0.5,
        ratio=chance.choice((0.5, 2.0)),
        residual=not is_gated or chance.random() < 0.6,
        units=chance.choice((None, 1, 3, 7)) if is_gated else None,
    )


def random_stack(seed: int) -> RecurrentStack:
    chance = random.Random(seed)
    config = StackConfig(
        tuple(random_layer(chance, may_repeat=place > 0) for place in range(chance.randint(1, 6))),
        width=chance.randint(2, 5),
        vocabulary_size=chance.randint(2, 7),
        bottleneck=chance.randint(1, 3),
        epsilon=1e-3,
    )
    return scattered(RecurrentStack(config), seed)
