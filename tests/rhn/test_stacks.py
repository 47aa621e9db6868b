"""Values and gradients of every `Stack`, whole and in chunks, compared with the oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gflownet.rhn.config import CONFIGS, Norm, RHNConfig
from gflownet.rhn.fold import fold, folded_bytes
from gflownet.rhn.network import RHN, Stack, backward_in_chunks, layer_by_layer
from gflownet.rhn.wavefront import along_wavefront, in_groups, layers_per_group
from tests.fast_cases import slow_except
from tests.oracles import rhn as oracle
from tests.rhn.random_networks import Case, answer_of, assert_equal, oracle_answer, random_case, random_network

WAVEFRONTS: dict[str, Stack] = {
    "one group": along_wavefront,
    "groups of 2": partial(in_groups, layers=2),
    "groups of 1": partial(in_groups, layers=1),
}
each_wavefront = pytest.mark.parametrize("stack", WAVEFRONTS.values(), ids=WAVEFRONTS.keys())
CONFIG = RHNConfig(vocabulary_size=5, hidden_size=6, intermediate_size=8, depth=3, rank=2, bottleneck=3)


@pytest.mark.parametrize("seed", slow_except(range(4), range(8)))
def test_stacks_equal_oracle(seed: int) -> None:
    case = random_case(seed)
    expected = oracle_answer(case)
    for stack in (layer_by_layer, *WAVEFRONTS.values()):
        assert_equal(answer_of(case, stack), expected)


@each_wavefront
def test_retained_graph_gives_equal_gradients(stack: Stack) -> None:
    network = random_network(CONFIG, 0)
    loss = network(torch.arange(5)[None], stack=stack)[0].square().sum()
    parameters = list(network.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, parameters), first, rtol=0, atol=0)


@each_wavefront
def test_frozen_parameters_get_no_gradient(stack: Stack) -> None:
    network = random_network(CONFIG, 0)
    network.layers[1].requires_grad_(False)
    network(torch.arange(5)[None], stack=stack)[0].square().sum().backward()
    with_gradient = {name.split(".")[1] for name, p in network.blocks.named_parameters("b") if p.grad is not None}
    assert with_gradient == {"0", "2"}
    free = random_network(CONFIG, 0)
    free(torch.arange(5)[None], stack=layer_by_layer)[0].square().sum().backward()
    got, wanted = network.layers[0].bhn.gate.b.grad, free.layers[0].bhn.gate.b.grad
    torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("held", ["bhn", "ffn", "bhn.squeeze", "bhn.gate.a", "norm"])
def test_frozen_modules_do_not_change_other_gradients(held: str) -> None:
    gradients = []
    for stack in (along_wavefront, layer_by_layer):
        network = random_network(CONFIG, 0)
        for block in network.layers:
            for name, parameter in block.named_parameters():
                parameter.requires_grad_(not name.startswith(held))
        network(torch.arange(5)[None], stack=stack)[0].square().sum().backward()
        gradients.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
    assert 0 < len(gradients[0]) < len(list(random_network(CONFIG, 0).parameters()))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-8, atol=1e-8)


@each_wavefront
def test_repeated_block_gets_the_sum_of_gradients(stack: Stack) -> None:
    blocks = random_network(CONFIG, 0).layers
    x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = []
    for run in (stack, layer_by_layer):
        y, _ = run([*blocks, blocks[0]], x, None)
        gradients.append(torch.autograd.grad(y.square().sum(), list(blocks[0].parameters())))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("norm", ["dora", "none"])
def test_folded_bytes_equals_the_size_of_the_fold(norm: Norm) -> None:
    block = RHN(replace(CONFIG, norm=norm)).layers[0]
    assert folded_bytes(block) == sum(tensor.nbytes for tensor in fold([block]).tensors)


@each_wavefront
def test_returned_tensors_are_no_inference_tensors(stack: Stack) -> None:
    network = random_network(CONFIG, 0)
    with torch.no_grad():
        _, state = network(torch.arange(5)[None], stack=stack)
    logits, last = network(torch.arange(5)[None], state, stack=stack)
    (logits.sum() + last.sum()).backward()
    returned = [state, logits, last, *(p.grad for p in network.parameters() if p.grad is not None)]
    assert not any(tensor.is_inference() for tensor in returned)


def test_parameter_change_before_backward_raises() -> None:
    network = random_network(CONFIG, 0)
    loss = network(torch.arange(5)[None], stack=along_wavefront)[0].sum()
    with torch.no_grad():
        network.layers[0].bhn.squeeze.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_bfloat16_network_keeps_norms_of_nearly_cancelled_rows() -> None:
    """B A = -0.9 W: the expanded norm in bfloat16 would be far off."""
    torch.manual_seed(0)
    network = RHN(RHNConfig(vocabulary_size=16, hidden_size=16, intermediate_size=16, depth=2, rank=16)).bfloat16()
    with torch.no_grad():
        for block in network.layers:
            plain = block.ffn.plain
            for head, projection in (
                (block.bhn.gate, plain.gate_proj),
                (block.bhn.up, plain.up_proj),
                (block.bhn.down, plain.down_proj),
            ):
                head.a.zero_()[0] = torch.eye(16)
                head.b.zero_()[0] = -0.9 * projection.weight
    exact = RHN(network.config).double()
    exact.load_state_dict(network.state_dict())
    tokens = torch.arange(16)[None]
    for stack in (along_wavefront, partial(in_groups, layers=1)):
        got, wanted = network(tokens, stack=stack)[0], exact(tokens, stack=layer_by_layer)[0]
        assert got.dtype == torch.bfloat16
        assert (got.double() - wanted).norm() < 0.02 * wanted.norm()


def test_layers_per_group_fit_the_cache() -> None:
    with torch.device("meta"):
        networks = {name: RHN(CONFIGS[name]) for name in ("small", "large", "100m")}
        deep = RHN(RHNConfig(hidden_size=32, intermediate_size=64, depth=24, rank=4))
    assert layers_per_group(deep.layers) == 24
    assert layers_per_group(networks["small"].layers) == 4
    assert 1 < layers_per_group(networks["large"].layers) < 12
    assert layers_per_group(networks["100m"].layers) == 1


def expected_in_chunks(case: Case, targets: Tensor, chunk: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return loss, last state and gradients."""
    config, parameters = case.network.config, dict(case.network.named_parameters())
    state, loss = case.state, torch.zeros((), dtype=torch.float64)
    for first in range(0, case.tokens.shape[1], chunk):
        part = slice(first, first + chunk)
        logits, last = oracle.forward(
            parameters, case.tokens[:, part], depth=config.depth, epsilon=config.epsilon, state=state, norm=config.norm
        )
        loss = loss + F.cross_entropy(logits.flatten(0, 1), targets[:, part].flatten(), reduction="sum")
        state = last.detach()
    assert state is not None
    loss = loss / targets.numel()
    gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    return loss.detach(), state, list(gradients)


@pytest.mark.parametrize("seed", slow_except((1, 2), range(4)))
@each_wavefront
def test_backward_in_chunks_equals_oracle(seed: int, stack: Stack) -> None:
    case = random_case(100 + seed)
    chunk = 1 + seed % 4
    targets = case.tokens.flip(1)
    loss, state, gradients = expected_in_chunks(case, targets, chunk)
    got, last = backward_in_chunks(case.network, case.tokens, targets, chunk=chunk, state=case.state, stack=stack)
    torch.testing.assert_close((got, last), (loss, state), rtol=1e-10, atol=1e-10)
    for parameter, gradient in zip(case.network.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-8)


def test_invalid_chunk_raises() -> None:
    case = random_case(0)
    with pytest.raises(ValueError, match="targets: expected the shape"):
        backward_in_chunks(case.network, case.tokens, case.tokens[:, :0], chunk=1)
    with pytest.raises(ValueError, match="chunk: expected at least 1 token, got 0"):
        backward_in_chunks(case.network, case.tokens, case.tokens, chunk=0)
