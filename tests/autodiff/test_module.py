"""Tensor graphs as modules of torch: parameters, gradients of every order, state dicts, export."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from gflownet.autodiff import factories as build
from gflownet.autodiff.compilation import compile_gradient
from gflownet.autodiff.module import GraphModule, to_module
from gflownet.autodiff.nodes import LeafNode, Node

DOUBLE = torch.float64
DIFFERENTIATIONS: tuple[Literal["program", "autograd"], ...] = ("program", "autograd")
N, D, H, C = 5, 4, 3, 2


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def network() -> tuple[Node, Node, LeafNode]:
    """Return logits and hidden values of a small network and its input."""
    x = build.Input([N, D], dtype=DOUBLE, name="x")
    first, second = build.Parameter(random(D, H), name="first"), build.Parameter(random(H, C, seed=1), name="second")
    bias = build.FixedParameter(random(H, seed=2), name="bias")
    scale = build.Constant(random(C, seed=3), name="scale")
    hidden = build.Tanh(x @ first + bias)
    return (hidden @ second) * scale + 0.5, hidden, x


class Reference(nn.Module):
    """The same by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(random(D, H)), nn.Parameter(random(H, C, seed=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(x @ self.first + random(H, seed=2))
        return (hidden @ self.second) * random(C, seed=3) + 0.5, hidden


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
def test_values_and_gradients_match_torch(differentiation: Literal["program", "autograd"]) -> None:
    logits, hidden, _ = network()
    module, reference = to_module([logits, hidden], differentiation=differentiation), Reference()
    assert dict(module.named_parameters()).keys() == {"first", "second", "bias"}
    assert [name for name, _ in module.named_buffers()] == ["scale"]
    assert not module.get_parameter("bias").requires_grad
    for seed in (7, 8):
        x, same = (random(N, D, seed=seed).requires_grad_() for _ in range(2))
        result, expected = module(x), reference(same)
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
        (result[0].square().sum() + result[1].sum()).backward()
        (expected[0].square().sum() + expected[1].sum()).backward()
        torch.testing.assert_close(x.grad, same.grad, rtol=1e-10, atol=1e-10)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(module.get_parameter(name).grad, parameter.grad, rtol=1e-10, atol=1e-10)
    assert module.get_parameter("bias").grad is None


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
@pytest.mark.parametrize("is_scalar", [False, True])
def test_gradients_of_every_order(is_scalar: bool, differentiation: Literal["program", "autograd"]) -> None:
    logits, _, x = network()
    node = build.Sum(build.Square(logits)) if is_scalar else logits
    function = to_module(node, differentiation=differentiation)
    parameters = [parameter for parameter in function.parameters() if parameter.requires_grad]

    def call(x: Tensor, *_: Tensor) -> Tensor:
        return function(x)

    point = random(N, D, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(call, (point, *parameters))
    assert torch.autograd.gradgradcheck(call, (point, *parameters))
    assert x.kind == 0


def test_torch_func_with_autograd() -> None:
    logits, _, _ = network()
    module = to_module(build.Sum(logits), differentiation="autograd")
    at = random(N, D)
    plain = at.clone().requires_grad_()
    module(plain).backward()
    torch.testing.assert_close(torch.func.grad(module)(at), plain.grad)


def test_a_second_backward_pass_and_no_grad() -> None:
    w = build.Parameter(random(3), name="w")
    module = to_module(w @ w)
    loss = module()
    loss.backward(retain_graph=True)
    (2 * loss).backward()
    torch.testing.assert_close(module.get_parameter("w").grad, 6 * random(3))
    with torch.no_grad():
        assert not module().requires_grad
    assert module(*()).shape == ()


def test_state_dict_round_trip() -> None:
    logits, _, _ = network()
    module, other = to_module(logits), to_module(network()[0])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    x = random(N, D, seed=6)
    assert not torch.equal(module(x), other(x))
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x), other(x))
    duplicate = copy.deepcopy(module)
    assert torch.equal(module(x), duplicate(x))
    with torch.no_grad():
        duplicate.get_parameter("first").zero_()
    assert not torch.equal(module(x), duplicate(x))
    assert not torch.equal(module.get_parameter("first"), random(D, H))


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
@pytest.mark.parametrize("strict", [False, True])
def test_torch_export(strict: bool, differentiation: Literal["program", "autograd"]) -> None:
    logits, hidden, _ = network()
    module = copy.deepcopy(to_module([logits, hidden], differentiation=differentiation))
    x = random(N, D, seed=6)
    exported = torch.export.export(module, (x,), strict=strict)
    torch.testing.assert_close(exported.module()(x), module(x), rtol=1e-12, atol=1e-12)
    assert exported.state_dict.keys() == module.state_dict().keys()


def test_input_order() -> None:
    a, b = build.Input([2], dtype=DOUBLE, name="a"), build.Input([2], dtype=DOUBLE, name="b")
    first, second = random(2), random(2, seed=1)
    assert torch.equal(to_module(a - b)(first, second), first - second)
    assert torch.equal(to_module(a - b, inputs=[b, a])(first, second), second - first)
    fixed = to_module(a - b, inputs=[a], initial={b: second})
    assert torch.equal(fixed(first), first - second)
    assert [name for name, _ in fixed.named_buffers()] == ["b"]


def test_parameter_values_and_names() -> None:
    leaves = [build.Parameter([2], dtype=DOUBLE, name=name) for name in ("w", "w", "forward", "a.b", None)]
    node: Node = leaves[0]
    for leaf in leaves[1:]:
        node = node * leaf
    with pytest.raises(
        ValueError, match="to_module: LeafNode 'w': expected a value, given to the leaf or in `initial`"
    ):
        to_module(node)
    module = to_module(node, initial={leaf: random(2, seed=k) for k, leaf in enumerate(leaves)})
    assert list(module.state_dict()) == ["w", "w_1", "forward_1", "a_b", "parameter"]
    expected = torch.stack([random(2, seed=k) for k in range(5)]).prod(0)
    torch.testing.assert_close(module(), expected)


def test_module_input_errors() -> None:
    logits, _, _ = network()
    module: GraphModule = to_module(logits)
    with pytest.raises(ValueError, match="forward: expected 1 inputs, got 0"):
        module()
    with pytest.raises(ValueError, match=r"LeafNode 'x': expected shape \[5, 4\] and torch.float64, got \[5, 3\]"):
        module(random(5, 3))
    with pytest.raises(ValueError, match="differentiation: expected 'program' or 'autograd', got 'numeric'"):
        to_module(logits, differentiation="numeric")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("differentiation", DIFFERENTIATIONS)
def test_saved_modules_and_programs(differentiation: Literal["program", "autograd"]) -> None:
    logits, _, x = network()
    module, point = to_module(build.Sum(build.Square(logits)), differentiation=differentiation), random(N, D, seed=5)
    for is_called in (False, True):  # with and without cached programs
        if is_called:
            module(point).backward()
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        for same in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
            torch.testing.assert_close(same(point), module(point), rtol=0.0, atol=0.0)
            same.zero_grad()
            same(point).backward()
            assert all(p.grad is not None for p in same.parameters() if p.requires_grad)
    program = compile_gradient(build.Sum(build.Square(logits)), x)
    for same in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        torch.testing.assert_close(same(point), program(point), rtol=0.0, atol=0.0)
