"""The layers that torch.nn does not have, against other implementations."""

from __future__ import annotations

import cmath

import pytest
import torch
from torch import Tensor, nn

from gflownet.graphs.operation import operation, read_operation
from gflownet.operations import layers
from gflownet.operations.sequences import RHNLayer
from gflownet.operations.tensor_shape import Shape
from gflownet.rhn.config import RHNConfig


def module_of(name: str, *shapes: Shape, **settings: object) -> nn.Module:
    applied = read_operation({"name": name, **settings})
    module = applied.row.build(dict(zip(applied.row.ports, shapes, strict=True)), applied.settings)
    assert module is not None
    return module


def causal_mask(length: int, num_keys: int) -> Tensor:
    return torch.ones(length, num_keys, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_self_attention_equals_multihead_attention(causal: bool, bias: bool) -> None:
    torch.manual_seed(0)
    settings = {"heads": 2, "causal": causal, "bias": bias, "output_bias": bias}
    ours = module_of("self_attention", Shape.of((5, 8)), **settings)
    theirs = nn.MultiheadAttention(8, 2, bias=bias, batch_first=True)
    names = {"qkv.weight": "in_proj_weight", "qkv.bias": "in_proj_bias"}
    names |= {"output.weight": "out_proj.weight", "output.bias": "out_proj.bias"}
    theirs.load_state_dict({names[name]: value for name, value in ours.state_dict().items()})
    x = torch.randn(3, 5, 8)
    mask = causal_mask(5, 5) if causal else None
    torch.testing.assert_close(ours(x), theirs(x, x, x, attn_mask=mask, need_weights=False)[0])


def test_cross_attention_equals_multihead_attention() -> None:
    torch.manual_seed(0)
    ours = module_of("cross_attention", Shape.of((5, 8)), Shape.of((3, 4)), Shape.of((3, 6)), heads=4, causal=True)
    theirs = nn.MultiheadAttention(8, 4, kdim=4, vdim=6, batch_first=True)
    state = ours.state_dict()
    names = ("query", "key", "value")
    weights = {f"{name[0]}_proj_weight": state[f"{name}.weight"] for name in names}
    weights["in_proj_bias"] = torch.cat([state[f"{name}.bias"] for name in names])
    weights |= {f"out_proj.{kind}": state[f"output.{kind}"] for kind in ("weight", "bias")}
    theirs.load_state_dict(weights)
    query, key, value = torch.randn(2, 5, 8), torch.randn(2, 3, 4), torch.randn(2, 3, 6)
    expected = theirs(query, key, value, attn_mask=causal_mask(5, 3), need_weights=False)[0]
    torch.testing.assert_close(ours(query, key, value), expected)


def test_rotary_positions_multiply_complex_numbers() -> None:
    length, size, base = 6, 4, 100.0
    x = torch.randn(2, 3, length, size, dtype=torch.float64)
    y = layers.RotaryPositions(length, size, base).double()(x)
    half = size // 2
    for position in range(length):
        for pair in range(half):
            factor = cmath.exp(1j * position * base ** (-2 * pair / size))
            number = torch.complex(x[..., position, pair], x[..., position, pair + half]) * factor
            torch.testing.assert_close(y[..., position, pair], number.real, rtol=0, atol=1e-6)
            torch.testing.assert_close(y[..., position, pair + half], number.imag, rtol=0, atol=1e-6)


def test_rotary_row_splits_heads() -> None:
    torch.manual_seed(0)
    row, inputs, settings = operation("rotary_positions"), {"input": Shape.of((5, 8))}, {"heads": 2, "base": 50.0}
    module = row.build(inputs, settings)
    assert module is not None
    x = torch.randn(3, 5, 8)
    y = eval(row.call(inputs, settings).format(module="module", input="x"), {"module": module, "x": x})
    single = layers.RotaryPositions(5, 4, 50.0)
    torch.testing.assert_close(y, torch.cat([single(x[..., :4]), single(x[..., 4:])], -1))


def test_causal_attention_ignores_later_positions() -> None:
    torch.manual_seed(0)
    module = module_of("self_attention", Shape.of((6, 8)), heads=2, causal=True, rotary=True)
    x = torch.randn(2, 6, 8)
    changed = torch.cat([x[:, :4], torch.randn(2, 2, 8)], 1)
    torch.testing.assert_close(module(x)[:, :4], module(changed)[:, :4])
    assert not torch.allclose(module(x)[:, 4:], module(changed)[:, 4:])


@pytest.mark.parametrize("name", ["self_attention", "cross_attention"])
def test_attention_dropout_is_off_in_evaluation(name: str) -> None:
    torch.manual_seed(0)
    ports = operation(name).ports
    module = module_of(name, *[Shape.of((6, 8))] * len(ports), dropout=0.5)
    values = [torch.randn(2, 6, 8) for _ in ports]
    assert not torch.equal(module(*values), module(*values))
    module.eval()
    assert torch.equal(module(*values), module(*values))


def test_gated_linear_equals_glu() -> None:
    module = layers.GatedLinear(5, 3, "sigmoid")
    x = torch.randn(4, 5)
    torch.testing.assert_close(module(x), nn.functional.glu(module.projection(x)))


def test_squeeze_excitation_equals_convolutions() -> None:
    module = layers.SqueezeExcitation(4, 2)
    x = torch.randn(3, 4, 5, 6)
    mean = nn.functional.adaptive_avg_pool2d(x, 1)
    hidden = nn.functional.conv2d(mean, module.squeeze.weight[:, :, None, None], module.squeeze.bias).relu()
    gate = nn.functional.conv2d(hidden, module.excite.weight[:, :, None, None], module.excite.bias).sigmoid()
    torch.testing.assert_close(module(x), x * gate)


def test_rhn_layer_equals_its_definition() -> None:
    torch.manual_seed(0)
    layer = RHNLayer(RHNConfig(hidden_size=4, intermediate_size=8, depth=1, rank=2, bottleneck=3)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    parameters = [x, *layer.parameters()]
    weights = torch.randn(2, 5, 4, dtype=torch.float64)
    outputs = [layer(x), layer.block(x)[0]]
    torch.testing.assert_close(*outputs)
    gradients = [torch.autograd.grad((output * weights).sum(), parameters) for output in outputs]
    torch.testing.assert_close(*gradients)
