"""References of graph files that no package ships: plain modules in the order of their graph files."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class LlamaBlock(nn.Module):
    """A decoder layer of package transformers with its rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.llama.configuration_llama import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2}
        options: Any = {"attn_implementation": "sdpa"}
        config = LlamaConfig(**sizes, **options)
        self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])[None]
        return self.layer(x, position_embeddings=self.rotary(x, places))


class InceptionReduction(nn.Module):
    """The first block of Inception-v3 that halves the positions (Szegedy et al. 2016, figure 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.single = _conv_bn(288, 384, 3, stride=2)
        self.deep = nn.Sequential(_conv_bn(288, 64, 1), _conv_bn(64, 96, 3, padding=1), _conv_bn(96, 96, 3, stride=2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.single(x), self.deep(x), nn.functional.max_pool2d(x, 3, 2)), 1)


def _conv_bn(size_in: int, size_out: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    convolution = nn.Conv2d(size_in, size_out, kernel, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(size_out, eps=0.001), nn.ReLU())


def vgg16() -> nn.Module:
    """VGG-16 without batch norm (Simonyan and Zisserman 2015, configuration D)."""
    layers: list[nn.Module] = []
    channels = 3
    for depth, features in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, features, 3, padding=1), nn.ReLU()]
            channels = features
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(25_088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(), nn.Linear(4096, 1000))


class ShuffleNetUnit(nn.Module):
    """A unit of ShuffleNet v2 that keeps the positions (Ma et al. 2018, figure 3c)."""

    def __init__(self) -> None:
        super().__init__()
        depthwise = nn.Conv2d(58, 58, 3, padding=1, groups=58, bias=False)
        ends = [[nn.Conv2d(58, 58, 1, bias=False), nn.BatchNorm2d(58), nn.ReLU()] for _ in range(2)]
        self.branch = nn.Sequential(*ends[0], depthwise, nn.BatchNorm2d(58), *ends[1])

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, 1)
        y = torch.cat((kept, self.branch(changed)), 1)
        return y.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


class UNet(nn.Module):
    """Three levels of a U-Net with padded convolutions (Ronneberger et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_two_convolutions(*sizes) for sizes in ((3, 16), (16, 32), (32, 64), (64, 128))])
        self.up: Any = nn.ModuleList(
            nn.ModuleList([nn.ConvTranspose2d(2 * size, size, 2, stride=2), _two_convolutions(2 * size, size)])
            for size in (64, 32, 16)
        )
        self.output = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down[:-1]:
            skips.append(level(x))
            x = nn.functional.max_pool2d(skips[-1], 2)
        x = self.down[-1](x)
        for (upsample, level), skip in zip(self.up, reversed(skips), strict=True):
            x = level(torch.cat((skip, upsample(x)), 1))
        return self.output(x)


def _two_convolutions(size_in: int, size_out: int) -> nn.Sequential:
    convolutions = [nn.Conv2d(size, size_out, 3, padding=1) for size in (size_in, size_out)]
    return nn.Sequential(convolutions[0], nn.ReLU(), convolutions[1], nn.ReLU())


class UNet3dLevel(nn.Module):
    """One level of a 3D U-Net, with channels doubled before the pooling (Cicek et al. 2016, figure 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(VolumeConvolution(1, 8), VolumeConvolution(8, 16))
        self.inner = nn.Sequential(nn.MaxPool3d(2), VolumeConvolution(16, 16), VolumeConvolution(16, 32))
        self.upsample = nn.ConvTranspose3d(32, 32, 2, stride=2)
        self.after = nn.Sequential(VolumeConvolution(48, 16), VolumeConvolution(16, 16), nn.Conv3d(16, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        skip = self.before(x)
        return self.after(torch.cat((skip, self.upsample(self.inner(skip))), 1))


class VolumeConvolution(nn.Module):
    """A convolution, batch norm, and ReLU unless it is the end of a branch."""

    def __init__(self, size_in: int, size_out: int, kernel: Any = 3, *, is_end: bool = False, **options: Any) -> None:
        super().__init__()
        self.convolution = nn.Conv3d(size_in, size_out, kernel, **dict[str, Any](padding=1) | options)
        self.norm, self.is_end = nn.BatchNorm3d(size_out), is_end

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.convolution(x))
        return x if self.is_end else torch.relu(x)


class R3DBlock(nn.Module):
    """A residual block of R3D-18; its first stride halves all axes where the channels grow."""

    def __init__(self, size_in: int, size_out: int) -> None:
        super().__init__()
        is_same = size_in == size_out
        first = VolumeConvolution(size_in, size_out, stride=1 if is_same else 2, bias=False)
        self.branch = nn.Sequential(first, VolumeConvolution(size_out, size_out, bias=False, is_end=True))
        shortcut = {"stride": 2, "padding": 0, "bias": False, "is_end": True}
        self.shortcut = nn.Identity() if is_same else VolumeConvolution(size_in, size_out, 1, **shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def r3d_18() -> nn.Module:
    """ResNet-18 of 3D convolutions for videos of 400 classes (Tran et al. 2018, table 1), as in torchvision."""
    layers: list[nn.Module] = [VolumeConvolution(3, 64, (3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3), bias=False)]
    for size_in, size_out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [R3DBlock(size_in, size_out), R3DBlock(size_out, size_out)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400))


class WaveNetStack(nn.Module):
    """Causal dilated convolutions with gates and skips (van den Oord et al. 2016, figure 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.dilations = 1, 2, 4, 8
        self.layers: Any = nn.ModuleList()
        for dilation in self.dilations:
            gated = [nn.Conv1d(16, 32, 2, dilation=dilation) for _ in range(2)]
            sizes = (24,) if dilation == self.dilations[-1] else (24, 16)  # skip and residual
            self.layers.append(nn.ModuleList([*gated, *(nn.Conv1d(32, size, 1) for size in sizes)]))
        self.output = nn.Sequential(nn.ReLU(), nn.Conv1d(24, 24, 1), nn.ReLU(), nn.Conv1d(24, 10, 1))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(())
        for dilation, (value, gate, skip, *residual) in zip(self.dilations, self.layers, strict=True):
            padded = nn.functional.pad(x, (dilation, 0))
            hidden = value(padded).tanh() * gate(padded).sigmoid()
            total = total + skip(hidden)
            x = x + residual[0](hidden) if residual else x
        return self.output(total)


class Siamese(nn.Module):
    """One network for two images, and their distance (Koch et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        convolutions += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.branch = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1568, 64))
        self.output = nn.Linear(64, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.sigmoid(self.output((self.branch(first) - self.branch(second)).abs()))
