"""Sizes and padding of windows that slide over positions: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gflownet.operations.tensor_shape import Shape, ShapeError
from gflownet.operations.vocabulary import Parameter

PADDINGS = ("same", "valid")
CONVOLUTION_PADDINGS = (*PADDINGS, "same_upper")
PADDING = Parameter(f"one of {', '.join(PADDINGS)}", lambda value: value in PADDINGS)
CONVOLUTION_PADDING = Parameter(
    f"one of {', '.join(CONVOLUTION_PADDINGS)}", lambda value: value in CONVOLUTION_PADDINGS
)


def reach(settings: Mapping[str, Any]) -> int:
    """Return the distance between the first and the last position of a window."""
    return (settings["kernel_size"] - 1) * settings.get("dilation", 1)


def padding(shape: Shape, settings: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the added positions before and after each position axis.

    same: reach / 2 on each side, for odd kernels; same_upper: as many as give ceil(size / stride) positions, the odd
    one at the end (ONNX's SAME_UPPER, TensorFlow's SAME); valid: none.
    """
    distance, stride = reach(settings), settings["stride"]
    match settings["padding"]:
        case "same":
            return [(distance // 2, distance // 2)] * len(shape.positions)
        case "same_upper":
            totals = [max(0, (-(-size // stride) - 1) * stride + distance + 1 - size) for size in shape.positions]
            return [(total // 2, total - total // 2) for total in totals]
        case _:
            return [(0, 0)] * len(shape.positions)


def num_windows(shape: Shape, settings: Mapping[str, Any]) -> list[int]:
    """Return the number of windows along each position axis. Raises ShapeError where none fits."""
    distance = reach(settings)
    if settings["padding"] == "same" and distance % 2:
        raise ShapeError(f"expected an odd kernel_size with padding=same, got {settings['kernel_size']}")
    sizes = [size + sum(added) for size, added in zip(shape.positions, padding(shape, settings), strict=True)]
    if min(sizes) <= distance:
        raise ShapeError(f"expected at least {distance + 1} positions along each axis, got {shape}")
    return [(size - distance - 1) // settings["stride"] + 1 for size in sizes]
