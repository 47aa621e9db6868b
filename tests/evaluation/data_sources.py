"""Data sources of the tests, named module:callable."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

NUM_TOKENS, LENGTH = 6, 5


class Stripes(Dataset[Any]):
    """Noisy images [1, 6, 6] with a bright row (class 0) or column (class 1)."""

    def __init__(self, num: int = 120, *, seed: int = 0, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = 0.3 * torch.randn(num, 1, 6, 6, generator=generator)
        self.labels = torch.arange(num) % 2
        self.noise = noise
        for image, label, place in zip(self.images, self.labels, torch.arange(num) % 6, strict=True):
            (image[0, place] if label == 0 else image[0, :, place]).add_(2.0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = self.noise * torch.randn(1, 6, 6) if self.noise else 0.0
        return self.images[index] + noise, int(self.labels[index])


def stripes() -> Stripes:
    return Stripes()


def stripes_in_three() -> dict[str, Dataset[Any]]:
    """Return a dataset per split; training images have new noise every time."""
    return {"train": Stripes(noise=0.1), "validation": Stripes(40, seed=1), "test": Stripes(40, seed=2)}


def noisy_stripes() -> Stripes:
    """Return one dataset, to be split, with new noise every time."""
    return Stripes(noise=0.1)


def stripes_in_memory() -> tuple[torch.Tensor, torch.Tensor]:
    dataset = Stripes()
    return dataset.images, dataset.labels


def counting() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return token sequences that count upwards modulo NUM_TOKENS, and the next tokens."""
    starts = torch.arange(60) % NUM_TOKENS
    tokens = (starts[:, None] + torch.arange(LENGTH + 1)) % NUM_TOKENS
    return dict.fromkeys(("train", "validation", "test"), (tokens[:, :-1], tokens[:, 1:]))


def number() -> int:
    return 7
