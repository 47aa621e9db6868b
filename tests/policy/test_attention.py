"""Attention in bfloat16 on a CPU goes another way, and says the same."""

import pytest
import torch

from gflownet.policy.layers import AttentionLayer


@pytest.mark.parametrize("is_biased", [False, True])
def test_attention_by_products_is_attention(is_biased):
    torch.manual_seed(0)
    layer = AttentionLayer(16, 2, is_compiled=False).double()
    with torch.no_grad():
        layer.project.weight.mul_(6)  # so that it matters who attends to whom
    tokens, bias = torch.randn(5, 7, 16).double(), 3 * torch.randn(5, 2, 7, 7).double() if is_biased else None
    exact = layer(tokens, bias)
    rough = layer.bfloat16()(tokens.bfloat16(), None if bias is None else bias.bfloat16())
    assert rough.dtype == torch.bfloat16
    assert float(((rough - exact).norm() / exact.norm()).detach()) < 0.01
