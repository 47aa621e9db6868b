"""Handwritten digits: the 1,797 real 8 x 8 images that scikit-learn bundles (UCI, Alpaydin and Kaynak 1998)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gflownet.evaluation.candidates.supervised import Splits, SupervisedTask
from gflownet.evaluation.candidates.trainer import Split
from gflownet.evaluation.data.datasets import MAX_GREY_VALUE, images_and_digits, split
from gflownet.evaluation.data.labelled_arrays import LabelledArrays
from gflownet.evaluation.presentation import Reference
from gflownet.evaluation.task import soft_size_objective

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier


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
        code="from sklearn.neural_network import MLPClassifier; model = MLPClassifier().fit(inputs, targets)",
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
    return split(LabelledArrays(images / MAX_GREY_VALUE, digits), seed=seed)
