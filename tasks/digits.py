"""Handwritten digits: the 1,797 real 8 x 8 images that scikit-learn bundles (UCI, Alpaydin and Kaynak 1998)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from gflownet.evaluation.supervised import Splits, SupervisedTask
from gflownet.evaluation.training import Split

# Shares of the examples; the remainder is the test set.
TRAIN_SHARE = 0.6
VALIDATION_SHARE = 0.2
# Grey values of the images run from 0 to 16.
MAX_GREY_VALUE = 16.0


class DigitsTask(SupervisedTask):
    """Classify 64 grey values in [0, 1] as one of 10 digits; stratified 60/20/20 split by `evaluation.split_seed`."""

    def splits(self) -> Splits:
        return digits_splits(seed=self.config.evaluation.split_seed)


def digits_splits(*, seed: int) -> Splits:
    """Return the three splits, 64 grey values in [0, 1] per image."""
    images, digits = images_and_digits()
    inputs = torch.from_numpy(images / MAX_GREY_VALUE).float()
    targets = torch.from_numpy(digits).long()
    parts = _stratified_parts(digits, seed=seed)
    train, validation, test = (Split(inputs[part], targets[part]) for part in parts)
    return Splits(train=train, validation=validation, test=test)


def images_and_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return `load_digits(return_X_y=True)`, read from the file: importing scikit-learn takes over a CPU second."""
    spec = importlib.util.find_spec("sklearn")
    (folder,) = (spec and spec.submodule_search_locations) or ("",)
    path = Path(folder, "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)  # pyright: ignore[reportReturnType]
    rows = np.loadtxt(path, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(int)


def _stratified_parts(digits: np.ndarray, *, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of the train, validation and test examples, stratified by digit."""
    rng = np.random.default_rng(seed)
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for digit in np.unique(digits):
        members = rng.permutation(np.flatnonzero(digits == digit))
        ends = np.round(len(members) * np.array([TRAIN_SHARE, TRAIN_SHARE + VALIDATION_SHARE])).astype(int)
        for part, indices in zip(parts, np.split(members, ends), strict=True):
            part.append(indices)
    train, validation, test = (np.sort(np.concatenate(part)) for part in parts)
    return train, validation, test
