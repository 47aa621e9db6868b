"""Devices, the precision of matrix products, the memory format of images, and the faster of both on this machine."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gflownet.errors import UserError
from gflownet.files import cached
from gflownet.training.random_states import seeded

Precision = Literal["float32", "bfloat16"]
Choice = TypeVar("Choice")

_AMPERE = (8, 0)  # the first GPUs of NVIDIA with matrix products in bfloat16
# Instructions for matrix products in bfloat16, as torch names them.
_BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def choose_device(name: str) -> torch.device:
    """Return the device of the option `device`. Raises UserError for CUDA without a GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        cause = "" if torch.backends.cuda.is_built() else f": torch {torch.__version__} is built without CUDA"
        raise UserError(f"device: expected cpu or one of {torch.cuda.device_count()} CUDA devices, got {name}{cause}")
    return torch.device(name)


def has_bfloat16(device: torch.device) -> bool:
    """Return whether matrix products in bfloat16 are faster than in float32."""
    if device.type == "cuda":  # earlier GPUs compute it in float32
        return bool(torch.version.hip) or torch.cuda.get_device_capability(device) >= _AMPERE
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in _BFLOAT16_INSTRUCTIONS)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return a context with matrix products in a precision; with bfloat16, weights and sums stay in float32.

    No loss scaling is needed: bfloat16 has the exponent range of float32 (Micikevicius et al. 2018).
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def synchronize(device: torch.device) -> None:
    """Wait for the queued kernels of a device, before a clock is read."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@dataclass(frozen=True)
class Numerics:
    """Memory format of images and signals after the first convolution, and precision of products, in a training.

    Pooling of one channel is several times slower in channels_last: the inputs stay contiguous.
    """

    memory_format: str = "contiguous"  # or channels_last, see flat_steps
    precision: str = "float32"

    def outputs(self, model: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Return the outputs of a model, in float32 where its products are in bfloat16."""
        if self.precision == "float32":
            return model(inputs)
        with autocast(inputs.device, self.precision):
            outputs = model(inputs)
        return outputs.float() if outputs.dtype == torch.bfloat16 else outputs


class SignalConvolution(nn.Conv1d):
    """Convolution of signals as one of images of one row, which keeps channels_last: torch makes signals contiguous."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of signals [N, C, L]."""
        if self.in_channels == 1:  # the format of one channel is ambiguous, and a pointwise kernel does not carry it
            input = input.flatten(1).unsqueeze(2).mT
        (stride,), (dilation,), padding = self.stride, self.dilation, self.padding
        assert not isinstance(padding, str)
        sizes = (1, stride), (0, *padding), (1, dilation)
        return F.conv2d(input.unsqueeze(2), self.weight.unsqueeze(2), self.bias, *sizes, self.groups).squeeze(2)


class SignalBatchNorm(nn.BatchNorm1d):
    """Batch norm of signals as that of images of one row: torch's is several times slower in channels_last."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept images too."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised vectors [N, C] or signals [N, C, L]."""
        return super().forward(input.unsqueeze(2)).squeeze(2) if input.ndim == 3 else super().forward(input)


_SIGNAL_CLASSES = {nn.Conv1d: SignalConvolution, nn.BatchNorm1d: SignalBatchNorm}


def use_channels_last(model: nn.Module) -> None:
    """Let the modules of signals pass the memory format on; parameters, buffers and results stay the same."""
    for module in model.modules():
        module.__class__ = _SIGNAL_CLASSES.get(type(module), type(module))


def choose_numerics(
    memory_format: str, precision: str, *, image: Sequence[int], batch_size: int, device: torch.device
) -> Numerics:
    """Return the memory format and precision of two options; `auto` is the fastest one of a measured training step.

    The choice is kept in a file of this machine, so that all its runs make the same one.

    Args:
        memory_format: auto, contiguous or channels_last.
        precision: auto, float32 or bfloat16; auto is float32 without instructions for bfloat16.
        image: sizes [C, H, W] of an image or [C, L] of a signal; empty: other inputs, for which auto is contiguous and
            float32.
        batch_size: of a step.
        device: of the training.
    """
    formats = ["contiguous", "channels_last"] if image else ["contiguous"]
    precisions = ["float32", "bfloat16"] if image and has_bfloat16(device) else ["float32"]
    formats, precisions = (
        found if option == "auto" else [option] for option, found in ((memory_format, formats), (precision, precisions))
    )
    sides = [Numerics(*pair) for pair in itertools.product(formats, precisions)]
    if len(sides) == 1:
        return sides[0]
    key = json.dumps([_machine(device), list(image), batch_size, [asdict(side) for side in sides]], sort_keys=True)
    return cached(
        "numerics.json",
        key,
        compute=lambda: json.dumps(asdict(_measured(sides, image, batch_size, device))).encode(),
        parse=lambda content: sides[sides.index(Numerics(**json.loads(content)))],
    )


def fastest(sides: Mapping[Choice, Callable[[], object]], *, seconds: float, share: float) -> Choice:
    """Return the side with the shortest call, the first one unless another takes at most `share` of its time.

    All are called in turn, at least twice after a warm-up, and until the seconds are over.
    """
    times: dict[Choice, list[float]] = {side: [] for side in sides}
    end = time.perf_counter() + seconds
    while len(times[next(iter(sides))]) < 3 or time.perf_counter() < end:
        for side, call in sides.items():
            start = time.perf_counter()
            call()
            times[side].append(time.perf_counter() - start)
    shortest = {side: min(values[1:]) for side, values in times.items()}
    first, best = next(iter(sides)), min(shortest, key=lambda side: shortest[side])
    return best if shortest[best] <= share * shortest[first] else first


# A choice that saves less would depend on the noise of the measurement.
_SHARE = 0.9
_SECONDS = 0.5
_FEATURES = 16  # of the convolutions of the measured network
_MAX_PIXELS = 2**16  # of a measured batch


def _machine(device: torch.device) -> list[str]:
    """Return what the time of a step depends on, besides its shape."""
    capabilities = dict(getattr(torch.cpu, "get_capabilities", dict)())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else json.dumps(capabilities, sort_keys=True)
    return [torch.__version__, device.type, name]


def _measured(sides: Sequence[Numerics], image: Sequence[int], batch_size: int, device: torch.device) -> Numerics:
    """Return the fastest of some sides for steps of a small network on images [C, H, W], on one thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the processes of candidates
    try:
        with seeded(0):
            num_images = max(1, min(batch_size, _MAX_PIXELS // math.prod(image[1:])))
            inputs = torch.randn(num_images, *image, device=device)
            models = {side: _network(image, side.memory_format).to(device) for side in sides}

        def step(side: Numerics) -> None:
            side.outputs(models[side], inputs).sum().backward()
            synchronize(device)

        calls = {side: (lambda side=side: step(side)) for side in sides}
        return fastest(calls, seconds=_SECONDS, share=_SHARE)
    finally:
        torch.set_num_threads(num_threads)


def _network(image: Sequence[int], memory_format: str) -> nn.Module:
    """Return a network of the operations in which memory formats and precisions differ most.

    Of 24 random networks for 28 x 28 pixels, channels_last took .52 to 1.02 of the time of contiguous (.69 in the sum),
    and bfloat16 .75 to 2.5: less for wide convolutions, more for separable ones on a CPU.
    """
    width = _FEATURES
    if len(image) == 2:
        convolution, norm, pool = nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d
    else:
        convolution, norm, pool = nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d
    model = nn.Sequential(
        *(convolution(image[0], width, 3, padding=1), norm(width), nn.ReLU()),
        *(convolution(width, width, 5, stride=2, padding=2, groups=width), convolution(width, width, 1)),
        *(norm(width), nn.ReLU(), pool(2), convolution(width, width, 3, padding=1)),
    )
    if memory_format == "channels_last":
        use_channels_last(model)
        for kernel in model.parameters():
            if kernel.ndim > 2:
                kernel.data = kernel.detach().movedim(1, -1).contiguous().movedim(-1, 1)
    return model
