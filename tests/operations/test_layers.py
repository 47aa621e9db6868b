"""The layers that torch.nn does not have, against other implementations."""

from __future__ import annotations

import cmath
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gflownet.graphs.operation import operation, read_operation
from gflownet.operations import layers
from gflownet.operations.tensor_shape import Shape
from gflownet.rhn.config import RHNConfig
from gflownet.rhn.wavefront import RHNLayer


def module_of(name: str, *shapes: Shape, **settings: object) -> Any:
    applied = read_operation({"name": name, **settings})
    module = applied.row.build(dict(zip(applied.row.ports, shapes, strict=True)), applied.settings)
    assert module is not None
    return module


@pytest.mark.parametrize("values", [[0, 3], [2, 0], [0, -1], [-1, 0], [0, 7]])
def test_column_embedding_refuses_values_beyond_their_column(values: list[int]) -> None:
    """The vector after the last one of a column is the first one of the next column."""
    embedding = layers.ColumnEmbedding((2, 3), 4)
    largest = embedding(torch.tensor([[1, 2], [0, 0]]))
    assert torch.equal(largest, embedding.embedding.weight[torch.tensor([[1, 4], [0, 2]])])
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        embedding(torch.tensor([[0, 0], values]))


def test_slopes_of_linear_bias_follow_the_dtype() -> None:
    bias = layers.LinearBias(12)  # the last four slopes are rounded in float32
    expected = [2.0 ** -(head + 1) for head in range(8)] + [2.0 ** -(head + 0.5) for head in range(4)]
    slopes = -bias.double()(torch.tensor([[1]])).flatten()
    assert slopes.dtype == torch.float64
    torch.testing.assert_close(slopes, torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)


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


def plain_attention(module: Any, x: Tensor, heads: int, kv_heads: int, added: Tensor) -> Tensor:
    """Return attention query by query; `added` [heads, T, T] is what the scores get."""
    projected = module.qkv(x).unflatten(2, (heads + 2 * kv_heads, -1))
    y = torch.zeros(*x.shape[:2], heads, projected.shape[-1])
    for head in range(heads):
        group = head // (heads // kv_heads)
        query, key, value = (projected[:, :, place] for place in (head, heads + group, heads + kv_heads + group))
        scores = torch.einsum("btd,bsd->bts", query, key) / query.shape[-1] ** 0.5 + added[head]
        y[:, :, head] = torch.einsum("bts,bsd->btd", scores.softmax(-1), value)
    return module.output(y.flatten(2))


@pytest.mark.parametrize("causal", [False, True])
def test_grouped_queries_with_a_window_and_falling_scores_equal_plain_attention(causal: bool) -> None:
    torch.manual_seed(0)
    settings = {"heads": 6, "kv_heads": 2, "head_size": 4, "causal": causal, "window": 3, "distances": "linear"}
    module, x = module_of("self_attention", Shape.of((7, 8)), **settings), torch.randn(2, 7, 8)
    slopes = [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]  # of 4 heads, then every second of 8 (Press et al. 2022)
    added = torch.full((6, 7, 7), -torch.inf)
    for query in range(7):
        for key in range(7):
            if abs(query - key) < 3 and (key <= query or not causal):
                added[:, query, key] = -torch.tensor(slopes) * abs(query - key)
    torch.testing.assert_close(module(x), plain_attention(module, x, 6, 2, added))


@pytest.mark.parametrize("distances", [None, "linear", "relative"])
@pytest.mark.parametrize("lengths", [[1] * 9, [4, 1, 4]])
def test_carried_attention_continues_the_calls_before(lengths: list[int], distances: str | None) -> None:
    torch.manual_seed(0)
    settings = {"heads": 4, "kv_heads": 2, "causal": True, "window": 3, "rotary": distances is None, "norm": True}
    settings["distances"] = distances
    whole = module_of("self_attention", Shape.of((9, 8)), **settings)
    carried = module_of("self_attention", Shape.of((9, 8)), **settings, carry=True)
    carried.load_state_dict(whole.state_dict())
    x, outputs = torch.randn(2, 9, 8), []
    state = torch.zeros(2, 2, 3, 2), torch.zeros(2, 2, 3, 2), torch.zeros(2, 3)
    for part in x.split(lengths, 1):
        y, *state = carried(part, *state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), whole(x))


def test_carried_attention_ends_no_sequence_in_bfloat16() -> None:
    torch.manual_seed(0)
    settings = {"heads": 2, "causal": True, "window": 2, "rotary": True, "carry": True}
    module = module_of("self_attention", Shape.of((1, 4)), **settings).bfloat16()
    with torch.inference_mode():
        state = [torch.zeros(1, 2, 2, 2, dtype=torch.bfloat16)] * 2 + [torch.zeros(1, 2, dtype=torch.bfloat16)]
        outputs = []
        for x in 3 * torch.randn(2, 1, 1, 4, dtype=torch.bfloat16).repeat(150, 1, 1, 1):  # 256 + 1 = 256 in bfloat16
            y, *state = module(x, *state)
            outputs.append(y)
    torch.testing.assert_close(outputs[-2:], outputs[2:4])


@pytest.mark.parametrize("shift", [0, 3])
def test_window_attention_equals_that_of_swin(shift: int) -> None:
    from transformers.models.swin.configuration_swin import SwinConfig
    from transformers.models.swin.modeling_swin import SwinLayer

    torch.manual_seed(0)
    theirs: Any = SwinLayer(SwinConfig(window_size=7), 12, (14, 21), 3, shift_size=shift).eval()
    for norm in (theirs.layernorm_before, theirs.layernorm_after):
        norm.forward = lambda x: x
    attention, table = theirs.attention, theirs.attention.relative_position_bias.relative_position_bias_table
    ours = module_of("window_attention", Shape.of((12, 14, 21)), heads=3, window=7, shift=shift)
    with torch.no_grad():
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        ours.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
        ours.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
        ours.output.load_state_dict(attention.o_proj.state_dict())
        ours.table.copy_(nn.init.normal_(table))
        for each in theirs.mlp.fc2.parameters():
            each.zero_()
    x = torch.randn(2, 12, 14, 21)
    expected = theirs(x.flatten(2).mT, (14, 21))[0].mT.unflatten(2, (14, 21)) - x
    torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("length", "chunk"), [(1, 8), (9, 64), (37, 8)])
def test_a_selective_scan_equals_the_block_of_mamba(length: int, chunk: int) -> None:
    from transformers.models.mamba.configuration_mamba import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    torch.manual_seed(0)
    theirs = MambaMixer(MambaConfig(hidden_size=32, state_size=4), layer_idx=0).eval()
    ours = module_of("selective_scan", Shape.of((length, 32)), state_size=4, chunk=chunk)
    with torch.no_grad():  # not initialised outside of a whole model
        theirs.A_log.copy_(torch.arange(1.0, 5.0).log().expand(64, 4))
        theirs.D.normal_()
    names = {"A_log": "log_decay", "D": "skip", "in_proj": "input", "conv1d": "convolution", "x_proj": "selection"}
    names |= {"dt_proj": "rate", "out_proj": "output"}
    state = theirs.state_dict()
    ours.load_state_dict({".".join(names.get(part, part) for part in key.split(".")): state[key] for key in state})
    x = torch.randn(2, length, 32)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_a_carried_selective_scan_continues_the_calls_before() -> None:
    torch.manual_seed(0)
    whole, carried = (module_of("selective_scan", Shape.of((9, 6)), carry=carry) for carry in (False, True))
    carried.load_state_dict(whole.state_dict())
    x, outputs = torch.randn(2, 9, 6), []
    state = torch.zeros(2, 12, 16), torch.zeros(2, 12, 3)
    for part in x.split([1, 4, 4], 1):
        y, *state = carried(part, *state)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), whole(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("active", [1, 2])
def test_experts_read_the_rows_of_their_gates_and_balance_their_load(active: int) -> None:
    torch.manual_seed(0)
    module = module_of("experts", Shape.of((5, 4)), experts=3, active=active, hidden_features=6, balance=0.1)
    x = torch.randn(2, 5, 4)
    expected = torch.zeros(2, 5, 4)
    gates = module.router(x).softmax(-1)
    chosen = gates.topk(active, -1)
    for row in range(2):
        for time in range(5):
            weights = chosen.values[row, time] / (chosen.values[row, time].sum() if active > 1 else 1)  # Fedus: p E(x)
            for weight, expert in zip(weights, chosen.indices[row, time], strict=True):
                hidden = nn.functional.gelu(module.up[expert] @ x[row, time] + module.up_bias[expert])
                expected[row, time] += weight * (module.down[expert] @ hidden + module.down_bias[expert])
    torch.testing.assert_close(module(x), expected)
    # The loss of Fedus et al. 2022, equation 4: its gradient is added to that of any other loss.
    shares = nn.functional.one_hot(chosen.indices, 3).sum(-2).flatten(0, 1).float().mean(0) / active
    loss = 0.1 * 3 * (shares * gates.flatten(0, 1).mean(0)).sum()
    (wanted,) = torch.autograd.grad(loss, module.router.weight)
    module(x).sum().mul(0.0).backward()
    torch.testing.assert_close(module.router.weight.grad, wanted)
    (of_output,) = torch.autograd.grad(module.eval()(x).square().sum(), module.router.weight)
    assert of_output.abs().max() > 1e-4
    module.train()
    parameters = dict(module.named_parameters())
    gradient = torch.func.grad(lambda values, row: torch.func.functional_call(module, values, row).sum())
    each = torch.func.vmap(gradient, (None, 0))(parameters, x)
    for row in range(2):
        expected = torch.autograd.grad(module(x[row]).sum(), list(parameters.values()))
        for got, one in zip(each.values(), expected, strict=True):
            torch.testing.assert_close(got[row], one, rtol=1e-4, atol=1e-5)


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
