"""Handwritten digits: the 1,797 real 8 x 8 images that scikit-learn bundles (UCI, Alpaydin and Kaynak 1998)."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from gflownet.evaluation.supervised import Splits, SupervisedTask
from gflownet.evaluation.task import Reference, soft_size_objective
from gflownet.evaluation.training import Split

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

# Shares of the examples; the remainder is the test set.
TRAIN_SHARE = 0.6
VALIDATION_SHARE = 0.2
# Grey values of the images run from 0 to 16.
MAX_GREY_VALUE = 16.0


class DigitsTask(SupervisedTask):
    """Classify 64 grey values in [0, 1] as one of 10 digits; stratified 60/20/20 split by `evaluation.split_seed`."""

    def splits(self) -> Splits:
        return digits_splits(seed=self.config.evaluation.split_seed)

    def reference(self, *, seeds: Sequence[int]) -> Reference:
        """Return the scores of scikit-learn's MLPClassifier."""
        evaluation = self.config.evaluation
        reference = mlp_reference(digits_splits(seed=evaluation.split_seed), seeds=seeds)
        assert reference.num_parameters is not None
        factor = soft_size_objective(
            1.0,
            reference.num_parameters,
            target_parameters=evaluation.target_parameters,
            size_weight=evaluation.size_weight,
        )
        return replace(reference, validation=[factor * accuracy for accuracy in reference.validation])


def mlp_reference(splits: Splits, *, seeds: Sequence[int]) -> Reference:
    """Return the accuracies of scikit-learn's MLPClassifier with its defaults: 100 hidden units, up to 200 epochs."""
    models = [_mlp(splits.train, seed=seed) for seed in seeds]
    return Reference(
        "scikit-learn MLPClassifier",
        validation=[_accuracy(model, splits.validation) for model in models],
        test=[_accuracy(model, splits.test) for model in models],
        num_parameters=sum(values.size for values in (*models[0].coefs_, *models[0].intercepts_)),
    )


def _mlp(data: Split, *, seed: int) -> MLPClassifier:
    """Return a trained MLPClassifier; one thread is faster than several."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    model = MLPClassifier(random_state=seed)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 200 epochs are its default
        return model.fit(data.inputs.numpy(), data.targets.numpy())


def _accuracy(model: MLPClassifier, data: Split) -> float:
    return float(model.score(data.inputs.numpy(), data.targets.numpy()))


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
