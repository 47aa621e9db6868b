"""Devices and precision: what a GPU has, a missing GPU, accuracy in bfloat16."""

import pytest
import torch
from torch import nn

from gflownet.errors import UserError
from gflownet.training import precision


@pytest.mark.parametrize(("capability", "has_it"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_gpu_that_computes_bfloat16_in_float32_has_none(monkeypatch, capability, has_it):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or has_it)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {torch.device("cuda:1"): capability}.__getitem__)
    assert precision.has_bfloat16(torch.device("cuda:1")) == has_it


@pytest.mark.parametrize(
    ("is_built", "cause"), [(False, f": torch {torch.__version__} is built without CUDA"), (True, "")]
)
def test_missing_gpu_names_the_cause(monkeypatch, is_built, cause):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError) as error:
        precision.choose_device("cuda:1")
    assert str(error.value) == f"device: expected cpu or one of 0 CUDA devices, got cuda:1{cause}"


def test_outputs_in_bfloat16_are_float32_with_small_errors():
    torch.manual_seed(0)
    model, inputs = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    exact, rounded = (precision.computed_in(name, model, inputs) for name in ("float32", "bfloat16"))
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    torch.testing.assert_close(rounded, exact, rtol=0, atol=0.03)
