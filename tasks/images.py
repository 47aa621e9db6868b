"""Classification of images: scikit-learn's digits, 5,000 images of MNIST, or images from files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from gflownet.evaluation.datasets import load_splits, standardised
from gflownet.evaluation.examples import Splits
from gflownet.evaluation.reference_models import classifier_or_regressor, estimator_reference, model_reference
from gflownet.evaluation.task import Reference
from gflownet.evaluation.tensor_task import TensorTask
from gflownet.options import option

_LENET_SIZE = (28, 28)


@dataclass
class ImagesConfig:
    """The images."""

    data: str = option(
        "digits",
        "digits (1,797 of 8 x 8), mnist5k (5,000 of 28 x 28, extra [data]), a path (npz, IDX file or folder) or "
        "module:callable",
    )
    data_test: str = option("", "path of test images; empty: those of the data, or a fifth of them")
    normalise: Literal["none", "channel"] = option(
        "none", "channel: mean 0 and deviation 1 of each channel over the training images"
    )


class ImagesTask(TensorTask):
    """Classify images [C, H, W], by default in a stratified 60/20/20 split by `evaluation.split_seed`."""

    Config = ImagesConfig

    def data(self) -> Splits:
        options = self.config.task_options
        splits = load_splits(
            options.data, key="task_options.data", seed=self.config.evaluation.split_seed, test=options.data_test
        )
        return standardised(splits, per_channel=True) if options.normalise == "channel" else splits

    def references(self, *, seeds: Sequence[int]) -> Sequence[Reference]:
        """Return the scores of scikit-learn's RandomForest and MLP and, for images of 28 x 28, of LeNet-5."""
        forest = classifier_or_regressor(self, "ensemble.RandomForestClassifier", "ensemble.RandomForestRegressor")
        mlp = classifier_or_regressor(self, "neural_network.MLPClassifier", "neural_network.MLPRegressor")
        references = [
            estimator_reference(self, "scikit-learn RandomForest", forest, seeds=seeds),
            estimator_reference(self, "scikit-learn MLP", mlp, seeds=seeds),
        ]
        channels, *size = self.input_shape.sizes
        if tuple(size) == _LENET_SIZE:
            references.append(model_reference(self, "LeNet-5", lambda: lenet5(channels, self.num_outputs), seeds=seeds))
        return [reference for reference in references if reference is not None]


def lenet5(channels: int, num_classes: int) -> nn.Module:
    """Return LeNet-5 with ReLU and max pooling for images of 28 x 28 (LeCun et al. 1998): 61,706 parameters."""
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )
