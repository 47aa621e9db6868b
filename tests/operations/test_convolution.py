"""Padding of convolutions and pooling, against torch's own."""

from __future__ import annotations

import itertools
from math import ceil

import pytest
import torch
import torch.nn.functional as F

from gflownet.graphs.operation import read_operation
from gflownet.operations.tensor_shape import Layout, Shape, ShapeError
from gflownet.testing.operations import StandaloneOperation


def infer(name: str, shape: Shape, **settings: object) -> Shape:
    applied = read_operation({"name": name, **settings})
    return applied.row.infer_shape({"input": shape}, applied.settings)


def made(name: str, shape: Shape, **settings: object) -> StandaloneOperation:
    applied = read_operation({"name": name, **settings})
    return StandaloneOperation(applied.row, {"input": shape}, applied.settings)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # of the expected values
def test_same_padding_equals_torch() -> None:
    for kernel_size, dilation, padding in itertools.product((1, 2, 3, 4, 5), (1, 2), ("same", "same_upper")):
        if padding == "same" and (kernel_size - 1) * dilation % 2:
            continue
        settings = {"features": 3, "kernel_size": kernel_size, "dilation": dilation, "padding": padding}
        module = made("conv1d", Shape((2, 9), Layout.SIGNAL), **settings)
        x, (weight, bias) = torch.randn(4, 2, 9), module.parameters()
        expected = F.conv1d(x, weight, bias, padding="same", dilation=dilation)
        torch.testing.assert_close(module(x), expected)


def test_same_upper_padding_covers_ceil_of_size_over_stride() -> None:
    for size, kernel_size, stride in itertools.product(range(1, 9), (1, 2, 3, 4), (1, 2, 3)):
        settings = {"kernel_size": kernel_size, "stride": stride, "padding": "same_upper", "bias": False}
        module = made("depthwise_conv1d", Shape((1, size), Layout.SIGNAL), **settings)
        with torch.no_grad():
            next(module.parameters()).fill_(1.0)
        x = torch.arange(1.0, size + 1).view(1, 1, size)
        length = ceil(size / stride)
        first = -(max(0, (length - 1) * stride + kernel_size - size) // 2)
        starts = [first + stride * position for position in range(length)]
        expected = [sum(p + 1 for p in range(start, start + kernel_size) if 0 <= p < size) for start in starts]
        assert module(x).flatten().tolist() == expected


def test_average_pooling_does_not_count_padding() -> None:
    module = made("avg_pool2d", Shape.of((2, 4, 4)), kernel_size=3, stride=1, padding="same")
    torch.testing.assert_close(module(torch.ones(1, 2, 4, 4)), torch.ones(1, 2, 4, 4))


def test_max_pooling_does_not_see_padding() -> None:
    module = made("max_pool1d", Shape((2, 5), Layout.SIGNAL), kernel_size=3, stride=2, padding="same")
    torch.testing.assert_close(module(-torch.ones(1, 2, 5)), -torch.ones(1, 2, 3))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("conv2d", {"features": 3, "kernel_size": 2}, "expected an odd kernel_size with padding=same, got 2"),
        ("conv2d", {"features": 3, "groups": 3}, "expected channels and features divisible by groups=3, got 4 and 3"),
        ("conv2d", {"features": 4, "groups": 3}, "expected channels and features divisible by groups=3, got 4 and 4"),
        ("max_pool2d", {"kernel_size": 5}, r"expected at least 5 positions along each axis, got image \[4, 4, 6\]"),
        ("conv1d", {"features": 3}, r"expected a signal, got image \[4, 4, 6\]"),
    ],
)
def test_window_refusals_name_the_reason(name: str, settings: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=f"^{message}$"):
        infer(name, Shape.of((4, 4, 6)), **settings)


def test_layout_refusal_has_the_right_article() -> None:
    with pytest.raises(ShapeError, match=r"^expected an image, got vector \[8\]$"):
        infer("conv2d", Shape.of(8), features=3)
